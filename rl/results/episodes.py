"""Whole episodes of a policy, played side by side in a few environments and kept so that they can be shown again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from rl.fast.acting import Acting

#: Steps after which an episode is cut: 108,000 frames of Atari at four a step, and the Zoo has no longer ones.
LONGEST_EPISODE = 27_000


@dataclass
class Episode:
    """One episode: its seed and what was done in it, which is enough to repeat it.

    Args:
        number: its place among those that were asked for.
        seed: of the environment.
    """

    number: int
    seed: int
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    #: What the environment said as ``is_success`` at the end; None where it says nothing.
    said_success: bool | None = None
    #: Whether it was ended by :data:`LONGEST_EPISODE` and not by the environment.
    cut: bool = False

    @property
    def total(self) -> float:
        """The undiscounted return."""
        return sum(self.rewards)

    @property
    def length(self) -> int:
        """Number of steps."""
        return len(self.actions)


def play(model: OnPolicyAlgorithm, envs: Sequence[gym.Env], seeds: Sequence[int], greedy: bool) -> list[Episode]:
    """Play one episode per seed; an environment that ends one begins the next.

    One that the environment does not end within :data:`LONGEST_EPISODE` steps is cut there, since it might never end.

    Args:
        model: its policy acts, and the normalisation it was trained with is used and not moved.
        envs: at least one; as many as there are play side by side.
        seeds: of the episodes.
        greedy: take the most probable action instead of drawing one from torch's global generator.

    Returns:
        the episodes, in the order of the seeds.
    """
    episodes = [Episode(number, seed) for number, seed in enumerate(seeds)]
    waiting = iter(episodes)
    playing: list[tuple[gym.Env, Episode]] = list(zip(envs, waiting, strict=False))
    observations: list[Any] = [env.reset(seed=episode.seed)[0] for env, episode in playing]
    act = Acting(model)
    while playing:
        actions = act(stacked(observations), greedy)
        still: list[tuple[gym.Env, Episode]] = []
        observations = []
        for (env, episode), action in zip(playing, actions, strict=True):
            observation, over = _step(env, episode, action)
            following = next(waiting, None) if over else episode
            if following is None:
                continue
            if over:
                observation = env.reset(seed=following.seed)[0]
            still.append((env, following))
            observations.append(observation)
        playing = still
    return episodes


def stacked(observations: Sequence[Any]) -> Any:
    """Observations of several environments as one array (N, …), or a dictionary of arrays."""
    if isinstance(observations[0], dict):
        return {key: np.stack([observation[key] for observation in observations]) for key in observations[0]}
    return np.stack(observations)


def normalised(model: OnPolicyAlgorithm, observations: Any) -> Any:
    """Observations as of :func:`stacked`, normalised with the statistics of training, which are not moved."""
    envs = model.get_vec_normalize_env()
    return observations if envs is None else envs.normalize_obs(observations)


def _step(env: gym.Env, episode: Episode, action: Any) -> tuple[Any, bool]:
    observation, reward, terminated, truncated, info = env.step(action)
    episode.actions.append(action)
    episode.rewards.append(float(reward))
    over = terminated or truncated
    episode.cut = not over and episode.length >= LONGEST_EPISODE
    if over or episode.cut:
        said = info.get("is_success")
        episode.said_success = None if said is None else bool(said)
    return observation, over or episode.cut
