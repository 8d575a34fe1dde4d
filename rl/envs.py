"""Environments: what a name becomes before an algorithm sees it.

``gymnasium.make`` → the wrapper of the hyperparameter entry (FlatObsWrapper for MiniGrid) → float32 observations →
Monitor → ReplayableEpisode, then eight of them in a DummyVecEnv inside VecNormalize.

Why float32: MiniGrid's FlatObsWrapper declares uint8 observations, and VecNormalize leaves that declaration in place
although it hands out floats with mean 0 and variance 1. Since SB3 2.7.1 the rollout buffer stores observations in the
declared type, so the normalised floats are cut to 0, 1, 255, … before every update and PPO learns next to nothing
(DoorKey after 100,000 steps: 0.04 instead of 0.8). With ``DtypeObservation`` the declared type is float32 and the
buffer keeps the values exactly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import DtypeObservation
from minigrid.wrappers import FlatObsWrapper, FullyObsWrapper, ImgObsWrapper
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from dem_apps.errors import InputError, nearest
from rl.replay import ReplayableEpisode

#: The wrappers that a hyperparameter entry may name, as the Zoo writes them.
WRAPPERS: dict[str, Callable[[gym.Env], gym.Env]] = {
    "minigrid.wrappers.FlatObsWrapper": FlatObsWrapper,
    "minigrid.wrappers.FullyObsWrapper": FullyObsWrapper,
    "minigrid.wrappers.ImgObsWrapper": ImgObsWrapper,
}


def make_env(env_id: str, wrapper: str | None) -> ReplayableEpisode:
    """One environment with float observations.

    Args:
        env_id: a registered name, such as ``MiniGrid-DoorKey-5x5-v0``.
        wrapper: a key of :data:`WRAPPERS`, or None.

    Raises:
        InputError: an unknown name or wrapper, a package that the environment needs is missing, or observations that
            are no single array.
    """
    if wrapper is not None and wrapper not in WRAPPERS:
        raise InputError(
            f"env_wrapper: unknown wrapper '{wrapper}'{nearest(wrapper, WRAPPERS)}; known are {', '.join(WRAPPERS)}"
        )
    check_env_id(env_id)
    try:
        env = gym.make(env_id)
    except gym.error.Error as error:
        raise InputError(f"--env {env_id}: {error}") from error
    if wrapper is not None:
        env = WRAPPERS[wrapper](env)
    if not isinstance(env.observation_space, spaces.Box):
        raise InputError(
            f"--env {env_id}: its observations are a {type(env.observation_space).__name__}, not one array (Box); "
            f"name a wrapper that flattens them in the hyperparameter entry (env_wrapper: {next(iter(WRAPPERS))})"
        )
    if not np.issubdtype(env.observation_space.dtype, np.floating):
        env = DtypeObservation(env, np.float32)
    return ReplayableEpisode(Monitor(env))


def make_training_envs(env_id: str, wrapper: str | None, count: int, normalise: bool, gamma: float) -> VecEnv:
    """``count`` environments in this process, with running normalisation of observations and rewards if asked for."""
    envs: VecEnv = DummyVecEnv([lambda: make_env(env_id, wrapper)] * count)
    return VecNormalize(envs, gamma=gamma) if normalise else envs


def check_env_id(env_id: str) -> None:
    """Raise an InputError that suggests the nearest name if gymnasium does not know ``env_id``."""
    if env_id not in gym.registry:
        raise InputError(f"--env: unknown environment '{env_id}'{nearest(env_id, gym.registry)}")


def warn_if_observations_are_cut(normalised: VecNormalize | None) -> None:
    """Warn where a rollout buffer would cut normalised observations to integers (see the top of this file)."""
    if normalised is None or not normalised.norm_obs:
        return
    dtype = normalised.observation_space.dtype
    if dtype is not None and not np.issubdtype(dtype, np.floating):
        warnings.warn(
            f"VecNormalize hands out floats, but the observation space is declared {dtype}, the type in which the "
            "rollout buffer stores them: normalised values will be cut to whole numbers. Wrap each environment in "
            "gymnasium.wrappers.DtypeObservation(env, numpy.float32).",
            stacklevel=2,
        )
