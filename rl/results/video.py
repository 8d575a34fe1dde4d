"""Episodes as a GIF, repeated by their seeds and actions: environment, action probabilities and entropy."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from PIL import Image, ImageDraw, ImageFont
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from dem_apps.errors import InputError
from dem_apps.runtime.files import whole_file
from rl.envs.make import Wrappers, make_env
from rl.results.evaluator import Episode, stacked

#: Episodes of a video, and frames of one episode at most; of a longer one every second, third, … step is shown.
EPISODES, MOST_FRAMES = 4, 120
#: Milliseconds that a frame stays; the last one of an episode stays eight times as long.
_FRAME, _LAST = 200, 8
_PICTURE, _PANEL, _TOP = 360, 360, 76


def record_episodes(
    model: OnPolicyAlgorithm, env_id: str, episodes: Sequence[Episode], file: Path, about: str, wrapper: Wrappers = None
) -> None:
    """Write the best, the worst and two episodes between to a new GIF titled ``about``; an InputError if impossible."""
    if not isinstance(model.action_space, (spaces.Discrete, spaces.MultiDiscrete)):
        raise InputError(f"--video: shows probabilities of discrete actions, {env_id} has {model.action_space}")
    env = _rendering_env(env_id, wrapper)
    ranked = sorted(episodes, key=lambda episode: (-episode.total, episode.length, episode.number))
    ranks = sorted({round(rank) for rank in np.linspace(0, len(ranked) - 1, min(EPISODES, len(ranked)))})
    frames = [
        frame
        for rank in ranks
        for frame in _film(model, env, ranked[rank], f"{about}\nnumber {rank + 1} of {len(ranked)} by return")
    ]
    # one palette for all frames: smaller, and colours do not flicker
    palette = frames[0][0].quantize(128, method=Image.Quantize.MEDIANCUT)
    images = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame, _ in frames]
    durations = [_FRAME * times for _, times in frames]
    with whole_file(file, "--video") as temporary:
        images[0].save(temporary, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0)


def _rendering_env(env_id: str, wrapper: Wrappers) -> gym.Env:
    # pictures need no window and no sound, of whose absence SDL, under pygame, complains on the terminal
    for driver in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        os.environ.setdefault(driver, "dummy")
    try:
        env = make_env(env_id, wrapper, render_mode="rgb_array")
    except (gym.error.Error, TypeError) as error:
        raise InputError(f"--video: {env_id} cannot be rendered as an image ({error})") from error
    if "rgb_array" not in env.metadata.get("render_modes", []):
        raise InputError(f"--video: {env_id} cannot be rendered as an image (it has no rgb_array mode)")
    return env


def probabilities(model: OnPolicyAlgorithm, observation: Any) -> list[np.ndarray]:
    """The policy's action probabilities, one array per action dimension."""
    policy: Any = model.policy
    policy.set_training_mode(False)
    envs, inputs = model.get_vec_normalize_env(), stacked([observation])
    tensors, _ = policy.obs_to_tensor(inputs if envs is None else envs.normalize_obs(inputs))
    with torch.no_grad():
        distribution = policy.get_distribution(tensors).distribution
    heads = distribution if isinstance(distribution, list) else [distribution]
    return [head.probs[0].double().cpu().numpy() for head in heads]


def _film(model: OnPolicyAlgorithm, env: gym.Env, episode: Episode, title: str) -> Iterator[tuple[Image.Image, int]]:
    """Frames, and how many times as long as usual each stays."""
    observation, _ = env.reset(seed=episode.seed)
    named = getattr(env.unwrapped, "actions", None)
    is_enum = isinstance(named, type) and issubclass(named, Enum)
    names = {member.value: member.name for member in named} if is_enum else {}  # type: ignore[union-attr]
    stride, total = math.ceil(episode.length / MOST_FRAMES), 0.0
    for step, action in enumerate([*episode.actions, None]):
        if action is None or step % stride == 0:
            heads = probabilities(model, observation)
            entropy = -sum(float(np.sum(p * np.log(np.maximum(p, 1e-300)))) for p in heads)
            most = sum(math.log(len(p)) for p in heads)
            text = f"{title}\nstep {step} of {episode.length}, return {total:.3f}, entropy {entropy:.2f} of {most:.2f}"
            yield _frame(_rendered(env), text, heads, action, names), _LAST if action is None else 1
        if action is None:
            return
        observation, again, *_ = env.step(action)
        if float(again) != episode.rewards[step]:
            raise InputError("--video: the episode differs when its actions are repeated; its seed does not decide it")
        total += episode.rewards[step]


def _rendered(env: gym.Env) -> np.ndarray:
    picture: Any = env.render()
    got = type(picture).__name__
    if isinstance(picture, np.ndarray):
        if picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] in (3, 4):
            return picture
        got = f"{picture.dtype} of shape {picture.shape}"
    raise InputError(f"--video: the environment's render() has to give (H, W, 3) uint8, and it gave {got}")


def _frame(
    picture: np.ndarray, text: str, heads: Sequence[np.ndarray], action: Any, names: dict[int, str]
) -> Image.Image:
    """The rendered environment, the text above it, and a bar for each action beside it."""
    frame = Image.new("RGB", (_PICTURE + _PANEL + 48, _TOP + _PICTURE + 16), "white")
    canvas = ImageDraw.Draw(frame)
    canvas.multiline_text((16, 8), text, fill="black", font=ImageFont.load_default(14))
    image = Image.fromarray(picture)
    scale = _PICTURE / max(image.size)
    frame.paste(image.resize((round(image.width * scale), round(image.height * scale))), (16, _TOP))
    rows = [(head, index, p) for head, probabilities in enumerate(heads) for index, p in enumerate(probabilities)][:24]
    taken = [] if action is None else np.atleast_1d(action).tolist()
    height, left = min(30, _PICTURE // len(rows)), _PICTURE + 32
    for row, (head, index, p) in enumerate(rows):
        top, chosen = _TOP + row * height, bool(taken) and taken[head] == index
        name = names.get(index, str(index)) if len(heads) == 1 else f"{head}: {index}"
        canvas.text((left, top), f"{'▸ ' if chosen else '  '}{name}", fill="black", font=ImageFont.load_default(13))
        colour = "#D55E00" if chosen else "#56B4E9"
        canvas.rectangle((left + 100, top + 1, left + 100 + p * (_PANEL - 160), top + height - 6), fill=colour)
        canvas.text((left + _PANEL - 48, top), f"{p:.3f}", fill="black", font=ImageFont.load_default(13))
    return frame
