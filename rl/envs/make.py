"""Environments: what a name becomes before an algorithm sees it.

The family's import (:mod:`rl.envs.families`) → ``gymnasium.make`` → the wrappers of the hyperparameter entry
(FlatObsWrapper for MiniGrid) → float32 observations → Monitor → RestorableEpisode, then eight of them in a DummyVecEnv
inside VecNormalize. For speed FlatObsWrapper, DummyVecEnv and VecNormalize are replaced by classes of this package that
give the same numbers.

Why float32: MiniGrid's FlatObsWrapper declares uint8 observations, and VecNormalize leaves that declaration in place
although it hands out floats with mean 0 and variance 1. Since SB3 2.7.1 the rollout buffer stores observations in the
declared type, so the normalised floats are cut to 0, 1, 255, … before every update and PPO learns next to nothing
(DoorKey after 100,000 steps: 0.04 instead of 0.8). With ``DtypeObservation`` the declared type is float32 and the
buffer keeps the values exactly.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import DtypeObservation
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from dem_apps.errors import InputError, nearest
from rl.envs.episode_restore import RestorableEpisode
from rl.envs.families import WRAPPERS, family_of
from rl.envs.family import import_modules, load
from rl.fast.compact_normalize import CompactNormalize

#: As the Zoo writes them: a name, ``{name: {argument: value}}``, or a list of these, the innermost first.
Wrappers = str | dict[str, dict[str, Any]] | list[str | dict[str, dict[str, Any]]] | None


def make_env(env_id: str, wrapper: Wrappers) -> RestorableEpisode:
    """One environment with float observations.

    Args:
        env_id: a registered name, such as ``MiniGrid-DoorKey-5x5-v0``.
        wrapper: keys of :data:`rl.envs.families.WRAPPERS` in one of the forms of :data:`Wrappers`.

    Raises:
        InputError: an unknown name or wrapper, a package that the environment needs is missing, or observations that
            are no single array.
    """
    wrappers, family = _wrappers(wrapper), family_of(env_id)
    check_env_id(env_id)
    try:
        env = gym.make(env_id)
    except gym.error.Error as error:
        raise InputError(f"--env {env_id}: {error}") from error
    for name, arguments in wrappers:
        try:
            env = load(WRAPPERS[name])(env, **arguments)
        except (AssertionError, AttributeError, ImportError, KeyError, TypeError) as error:
            raise InputError(f"env_wrapper: {name} cannot wrap {env_id} with {arguments} ({error})") from error
    if not isinstance(env.observation_space, spaces.Box):
        raise InputError(
            f"--env {env_id}: its observations are a {type(env.observation_space).__name__}, not one array (Box); "
            f"name a wrapper that flattens them in the hyperparameter entry (env_wrapper: {next(iter(WRAPPERS))})"
        )
    if family.dtype is not None and not np.issubdtype(env.observation_space.dtype, np.floating):
        env = DtypeObservation(env, family.dtype)
    return RestorableEpisode(Monitor(env))


def make_training_envs(env_id: str, wrapper: Wrappers, count: int, normalise: bool, gamma: float) -> VecEnv:
    """``count`` environments in this process, with running normalisation of observations and rewards if asked for."""
    envs: VecEnv = StackedEnvs([lambda: make_env(env_id, wrapper)] * count)
    return normalised(envs, gamma) if normalise else envs


def normalised(envs: VecEnv, gamma: float, observations: bool = True, rewards: bool = True) -> VecNormalize:
    """Running normalisation, over the columns in use where the observations have columns.

    ``gamma`` is the discount of the returns whose variance scales the rewards.
    """
    compact = len(envs.observation_space.shape or ()) == 1
    normalise = CompactNormalize(envs, gamma) if compact else VecNormalize(envs, gamma=gamma)
    normalise.norm_obs, normalise.norm_reward = observations, rewards
    return normalise


class StackedEnvs(DummyVecEnv):
    """DummyVecEnv for observations that are one array, without its deep copies of all that the environments return."""

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """As in DummyVecEnv; each info is a new dictionary, but what it holds is the environment's own."""
        observations = np.empty((self.num_envs, *(self.observation_space.shape or ())), self.observation_space.dtype)
        rewards, dones = np.empty(self.num_envs, np.float32), np.empty(self.num_envs, bool)
        infos: list[dict[str, Any]] = []
        for index, env in enumerate(self.envs):
            observation, rewards[index], terminated, truncated, info = env.step(self.actions[index])
            info = {**info, "TimeLimit.truncated": truncated and not terminated}
            dones[index] = terminated or truncated
            if dones[index]:
                info["terminal_observation"] = observation
                observation, self.reset_infos[index] = env.reset()
            observations[index] = observation
            infos.append(info)
        return observations, rewards, dones, infos


def _wrappers(given: Wrappers) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments, the innermost first."""
    if given is None:
        return []
    wrappers = []
    for item in given if isinstance(given, list) else [given]:
        for name, arguments in item.items() if isinstance(item, dict) else [(item, None)]:
            if not isinstance(name, str) or name not in WRAPPERS:
                known = ", ".join(WRAPPERS)
                raise InputError(f"env_wrapper: unknown wrapper '{name}'{nearest(name, WRAPPERS)}; known are {known}")
            if not isinstance(arguments, dict | None):
                raise InputError(f"env_wrapper: expected a mapping of arguments for {name}, found {arguments!r}")
            wrappers.append((str(name), arguments or {}))
    return wrappers


def episode_limit(env_id: str) -> int | None:
    """Steps after which an episode is cut off: gymnasium's time limit, or MiniGrid's ``max_steps``; None if unknown."""
    limit = gym.spec(env_id).max_episode_steps
    if limit is not None:
        return limit
    try:
        limit = getattr(gym.make(env_id).unwrapped, "max_steps", None)
    except Exception:  # of the environment's own code; who makes it to train says what is wrong
        return None
    return limit if isinstance(limit, int) and limit > 0 else None


def check_env_id(env_id: str) -> None:
    """Raise an InputError if the family's package is missing, or gymnasium does not know the id."""
    module = family_of(env_id).module
    import_modules([module] if module else [], f"--env {env_id}")
    if env_id not in gym.registry:
        raise InputError(
            f"--env: unknown environment '{env_id}'{nearest(env_id, gym.registry)}; --import MODULE registers your own"
        )
