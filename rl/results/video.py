"""Episodes as a GIF or MP4: what the agent sees, what it was about to do, and how sure it was.

Episodes are recorded as seeds and actions (:mod:`rl.results.episodes`); here they are repeated in an environment that
renders, with the policy's action probabilities as bars and their entropy beside it.
"""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from PIL import Image
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from dem_apps.errors import InputError
from dem_apps.runtime.files import whole_file, write_atomically
from rl.envs.make import Wrappers, make_env
from rl.results.episodes import Episode, normalised, stacked
from rl.results.frame import Moment, draw

#: Frames of one episode at most; of a longer one every second, third, … step is shown.
MOST_FRAMES = 120
#: Seconds that a frame, and the last frame of an episode, stay.
STEP_SECONDS, END_SECONDS = 0.2, 1.6


@dataclass(frozen=True)
class Shot:
    """One frame and how long it stays."""

    image: Image.Image
    seconds: float


def check_video_file(file: Path, count: int = 1) -> None:
    """Say at once what would make :func:`record_episodes` fail after all the work.

    Raises:
        InputError: an ending that is not .gif or .mp4, a file that exists, no encoder for .mp4, no episode to show.
    """
    if file.suffix not in (".gif", ".mp4"):
        raise InputError(f"--video: expected a file ending in .gif or .mp4, got {file}")
    if file.exists():
        raise InputError(f"--video: {file} exists already; name another file")
    if not file.parent.is_dir():
        raise InputError(f"--video: the folder {file.parent} does not exist")
    if file.suffix == ".mp4" and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise InputError("--video: .mp4 needs the package imageio-ffmpeg (pip install imageio-ffmpeg); .gif does not")
    if count < 1:
        raise InputError(f"--video-episodes: expected 1 or more, got {count}")


def record_episodes(
    model: OnPolicyAlgorithm,
    env_id: str,
    episodes: Sequence[Episode],
    file: Path,
    about: str,
    count: int = 4,
    wrapper: Wrappers = None,
) -> None:
    """Write the best, the worst and some episodes in between, by return, to a video.

    Args:
        model: the policy that played the episodes.
        env_id: their environment.
        episodes: to choose from, as :func:`rl.results.episodes.play` returned them.
        file: ``.gif`` or ``.mp4``, which must not exist.
        about: the title, such as environment and objective.
        count: how many episodes to show at most.
        wrapper: as in :func:`rl.envs.make.make_env`.

    Raises:
        InputError: a file that will not do, an environment that cannot be rendered as an image, actions without
            probabilities to show, an episode that is not the same when it is repeated.
    """
    check_video_file(file, count)
    if not isinstance(model.action_space, (spaces.Discrete, spaces.MultiDiscrete)):
        raise InputError(f"--video: shows probabilities of discrete actions, {env_id} has {model.action_space}")
    shown, seen = rendering_env(env_id), make_env(env_id, wrapper)
    try:
        shots = [
            shot
            for title, episode in chosen(episodes, count)
            for shot in _film(model, shown, seen, episode, (about, title))
        ]
    finally:
        shown.close()
        seen.close()
    (_write_gif if file.suffix == ".gif" else _write_mp4)(file, shots)


def chosen(episodes: Sequence[Episode], count: int) -> list[tuple[str, Episode]]:
    """Best first, worst last, those in between evenly spread by rank; each with its title."""
    ranked = sorted(episodes, key=lambda episode: (-episode.total, episode.length, episode.number))
    last = len(ranked) - 1
    ranks = sorted({round(rank) for rank in np.linspace(0, last, min(count, len(ranked)))})
    names = {last: f"worst of {len(ranked)}", 0: f"best of {len(ranked)}"} if last else {0: "the only one"}
    return [
        (f"{names.get(rank, f'number {rank + 1} of {len(ranked)}')}: return {ranked[rank].total:.3f}, "
         f"{ranked[rank].length} steps", ranked[rank])
        for rank in ranks
    ]  # fmt: skip


def rendering_env(env_id: str) -> gym.Env:
    """The environment without wrappers on its observations, rendering to arrays.

    Raises:
        InputError: it cannot, or a package that it needs for that is missing.
    """
    try:
        env = gym.make(env_id, render_mode="rgb_array")
    except (gym.error.Error, TypeError) as error:
        raise InputError(f"--video: {env_id} cannot be rendered as an image ({error})") from error
    if "rgb_array" not in env.metadata.get("render_modes", []):
        raise InputError(f"--video: {env_id} cannot be rendered as an image (it has no rgb_array mode)")
    return env


def probabilities(model: OnPolicyAlgorithm, observation: Any) -> list[np.ndarray]:
    """The policy's action probabilities, one array per action dimension."""
    policy: Any = model.policy
    policy.set_training_mode(False)
    inputs, _ = policy.obs_to_tensor(normalised(model, stacked([observation])))
    with torch.no_grad():
        distribution = policy.get_distribution(inputs).distribution
    heads = distribution if isinstance(distribution, list) else [distribution]
    return [head.probs[0].double().cpu().numpy() for head in heads]


def action_names(env: gym.Env, sizes: Sequence[int]) -> list[list[str]]:
    """Names for each action dimension: the environment's own, as MiniGrid has them, else numbers."""
    named = getattr(env.unwrapped, "actions", None)
    if isinstance(named, type) and issubclass(named, Enum) and len(sizes) == 1:
        names = {member.value: member.name for member in named}
        return [[names.get(index, str(index)) for index in range(sizes[0])]]
    return [[str(index) for index in range(size)] for size in sizes]


def _film(
    model: OnPolicyAlgorithm, shown: gym.Env, seen: gym.Env, episode: Episode, titles: tuple[str, str]
) -> Iterator[Shot]:
    observation, _ = seen.reset(seed=episode.seed)
    shown.reset(seed=episode.seed)
    stride = math.ceil(episode.length / MOST_FRAMES)
    note = "" if stride == 1 else f" (one step in {stride} is shown)"
    total = 0.0
    for step, action in enumerate([*episode.actions, None]):
        over = action is None
        if over or step % stride == 0:
            heads = probabilities(model, observation)
            taken = [] if over else np.atleast_1d(action).tolist()
            reward = episode.rewards[step - 1] if step else 0.0
            moment = Moment(
                about=titles[0], title=titles[1] + note, task=str(getattr(shown.unwrapped, "mission", "")),
                step=step, steps=episode.length, reward=reward, total=total, heads=heads, taken=taken,
                names=action_names(shown, [len(head) for head in heads]),
            )  # fmt: skip
            yield Shot(draw(np.asarray(shown.render()), moment), END_SECONDS if over else STEP_SECONDS)
        if over:
            return
        observation, again, *_ = seen.step(action)
        _, rendered, *_ = shown.step(action)
        if float(again) != episode.rewards[step] or float(rendered) != episode.rewards[step]:
            raise InputError(
                "--video: the episode does not come out the same when its actions are repeated; the environment draws "
                "randomness from somewhere else than its seed"
            )
        total += episode.rewards[step]


def _write_gif(file: Path, shots: Sequence[Shot]) -> None:
    content = io.BytesIO()
    # one palette for all frames: smaller, and colours do not flicker
    palette = shots[0].image.quantize(128, method=Image.Quantize.MEDIANCUT)
    images = [shot.image.quantize(palette=palette, dither=Image.Dither.NONE) for shot in shots]
    durations = [round(1000 * shot.seconds) for shot in shots]
    images[0].save(content, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0)
    write_atomically(file, content.getvalue())


def _write_mp4(file: Path, shots: Sequence[Shot]) -> None:
    import imageio_ffmpeg  # optional, and check_video_file has said so where it is missing

    with whole_file(file) as temporary:
        writer = imageio_ffmpeg.write_frames(
            str(temporary), shots[0].image.size, fps=1 / STEP_SECONDS, macro_block_size=2
        )
        writer.send(None)
        for shot in shots:
            for _ in range(round(shot.seconds / STEP_SECONDS)):
                writer.send(np.ascontiguousarray(shot.image))
        writer.close()
