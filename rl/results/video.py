"""Episodes as a GIF, repeated by their seeds and actions."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from dem_apps.errors import InputError, passed_on
from dem_apps.runtime.files import whole_file
from rl.results.evaluator import Episode, Evaluator

#: Episodes of a video, and frames of one episode at most; of a longer one every second, third, … step is shown.
EPISODES, MOST_FRAMES = 4, 120
#: Milliseconds that a frame is shown; an episode's last frame is shown eight times as long.
_FRAME, _LAST = 200, 8
_PICTURE, _TOP = 360, 76


def record_episodes(
    evaluator: Evaluator,
    model: OnPolicyAlgorithm,
    episodes: Sequence[Episode],
    file: Path,
    about: str,
) -> None:
    """Write the best, the worst and two episodes between to a new GIF titled ``about``; an InputError if impossible.

    ``episodes`` are what ``evaluator`` has played with ``model``.
    """
    # pictures need no window and no sound, of whose absence SDL, under pygame, complains on the terminal
    for driver in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        os.environ.setdefault(driver, "dummy")
    with passed_on(f"--video: {evaluator.env_id} cannot be rendered as an image"):
        envs = evaluator.environments(model, render_mode="rgb_array")
    ranked = sorted(episodes, key=lambda episode: (-episode.total, episode.length))
    shown = np.unique(np.linspace(0, len(ranked) - 1, EPISODES).round().astype(int))
    frames: list[tuple[Image.Image, int]] = []
    for rank in shown:
        episode, title = ranked[rank], f"{about}\nnumber {rank + 1} of {len(ranked)} by return"
        frames += _film(envs[episode.place], episode, title)
    # one palette for all frames: smaller, and colours do not flicker
    palette = frames[0][0].quantize(128, method=Image.Quantize.MEDIANCUT)
    images = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame, _ in frames]
    durations = [_FRAME * times for _, times in frames]
    with whole_file(file, "--video") as temporary:
        images[0].save(
            temporary, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0
        )


def _film(env: gym.Env, episode: Episode, title: str) -> Iterator[tuple[Image.Image, int]]:
    """Frames, and how many times as long as usual each is shown."""
    env.reset(seed=episode.seed)
    stride, total = math.ceil(episode.length / MOST_FRAMES), 0.0
    steps = f"{title}\nstep {{}} of {episode.length}, return {{:.3f}}"
    for step, action in enumerate(episode.actions):
        if step % stride == 0:
            yield _frame(env.render(), steps.format(step, total)), 1
        reward = float(env.step(action)[1])
        if reward != episode.rewards[step]:
            raise InputError(
                "--video: the episode differs when its actions are repeated; its seed does not decide it"
            )
        total += reward
    yield _frame(env.render(), steps.format(episode.length, total)), _LAST


def _frame(picture: Any, text: str) -> Image.Image:
    """The rendered environment, and the text above it."""
    frame = Image.new("RGB", (_PICTURE + 32, _TOP + _PICTURE + 16), "white")
    ImageDraw.Draw(frame).multiline_text(
        (16, 8), text, fill="black", font=ImageFont.load_default(14)
    )
    with passed_on("--video: the environment's render() has to give (H, W, 3) uint8"):
        image = Image.fromarray(np.asarray(picture))
    scale = _PICTURE / max(image.size)
    frame.paste(image.resize((round(image.width * scale), round(image.height * scale))), (16, _TOP))
    return frame
