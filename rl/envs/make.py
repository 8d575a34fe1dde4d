"""Environments: from a name to what an algorithm sees.

The family's import (:mod:`rl.envs.families`) → ``gymnasium.make`` → the wrappers of the hyperparameter entry
(FlatObsWrapper for MiniGrid) → float32 observations → Monitor → RestorableEpisode, then eight of them in a DummyVecEnv
inside VecNormalize. For speed FlatObsWrapper, DummyVecEnv and VecNormalize are replaced by classes of this package that
give the same numbers.

Why float32: MiniGrid's FlatObsWrapper declares uint8 observations, and VecNormalize leaves that declaration in place
although it hands out floats with mean 0 and variance 1. Since SB3 2.7.1 the rollout buffer stores observations in the
declared type, so the normalised floats are cut to 0, 1, 255, … before every update and PPO learns next to nothing
(DoorKey after 100,000 steps: 0.04 instead of 0.8).
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import DtypeObservation
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from dem_apps.errors import InputError, nearest
from rl.envs.checked_env import CheckedEnv
from rl.envs.episode_restore import RestorableEpisode
from rl.envs.families import WRAPPERS, family_of, own_id
from rl.envs.family import import_modules, load
from rl.fast.compact_normalize import CompactNormalize

#: Of SB3's NatureCNN.
_SMALLEST_PICTURE = 36
#: As the Zoo writes them: a name, ``{name: {argument: value}}``, or a list of these, the innermost first.
Wrappers = str | dict[str, dict[str, Any]] | list[str | dict[str, dict[str, Any]]] | None


def make_env(env_id: str, wrapper: Wrappers) -> RestorableEpisode:
    """One environment. Arrays of whole numbers become floats; pictures, dictionaries and numbers stay as they are.

    Args:
        env_id: a registered name, such as ``MiniGrid-DoorKey-5x5-v0``, perhaps with a module that registers it in
            front: ``my_envs:Corridor-v0``.
        wrapper: keys of :data:`rl.envs.families.WRAPPERS` in one of the forms of :data:`Wrappers`.

    Raises:
        InputError: an unknown name or wrapper, a package that the environment needs is missing, or observations that
            SB3 has no network for.
    """
    wrappers, family = _wrappers(wrapper), family_of(env_id)
    check_env_id(env_id)
    try:
        env = gym.make(env_id)
    except (gym.error.Error, ImportError) as error:
        raise InputError(f"--env {env_id}: {error}") from error
    if family.innermost is not None:
        env = load(family.innermost)(env)
    for name, arguments in wrappers:
        try:
            env = load(WRAPPERS[name])(env, **arguments)
        except (AssertionError, AttributeError, ImportError, KeyError, TypeError) as error:
            raise InputError(f"env_wrapper: {name} cannot wrap {env_id} with {arguments} ({error})") from error
    if not _known_to_sb3(env.observation_space):
        raise InputError(
            f"--env {env_id}: its observations are a {type(env.observation_space).__name__} that SB3 has no network "
            "for; name a wrapper that makes one array of them in the hyperparameter entry "
            f"(env_wrapper: {next(iter(WRAPPERS))})"
        )
    if _becomes_float(env.observation_space):
        env = DtypeObservation(env, np.float32)
    return RestorableEpisode(Monitor(CheckedEnv(env, env_id)))


def is_picture(space: spaces.Space[Any]) -> bool:
    """Whether observations are pictures that SB3's CnnPolicy takes: uint8 from 0 to 255, 36 pixels or more each way."""
    return is_image_space(space) and sorted(space.shape or ())[-2] >= _SMALLEST_PICTURE


def _known_to_sb3(space: spaces.Space[Any]) -> bool:
    known = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    return all(isinstance(part, known) for part in (space.values() if isinstance(space, spaces.Dict) else [space]))


def _becomes_float(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating) and not is_picture(space)


def make_training_envs(env_id: str, wrapper: Wrappers, count: int, normalise: bool, gamma: float) -> VecEnv:
    """``count`` environments in this process, with running normalisation of observations and rewards if asked for.

    ``gamma`` is the discount of the returns whose variance scales the rewards.
    """
    made = [make_env(env_id, wrapper) for _ in range(count)]
    space = made[0].observation_space
    # SB3's own where observations are no single array
    kind = StackedEnvs if isinstance(space, spaces.Box) else DummyVecEnv
    envs: VecEnv = kind([lambda env=env: env for env in made])  # type: ignore[misc]
    if not normalise:
        return envs
    compact = isinstance(space, spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating)
    return CompactNormalize(envs, gamma) if compact else VecNormalize(envs, gamma=gamma)


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
    wrappers = []
    for item in given if isinstance(given, list) else [given] if given is not None else []:
        for name, arguments in item.items() if isinstance(item, dict) else [(item, None)]:
            if name not in WRAPPERS:
                known = ", ".join(WRAPPERS)
                raise InputError(f"env_wrapper: unknown wrapper '{name}'{nearest(name, WRAPPERS)}; known are {known}")
            wrappers.append((str(name), arguments or {}))
    return wrappers


def episode_limit(env_id: str) -> int | None:
    """Steps after which an episode is cut off: gymnasium's time limit, or MiniGrid's ``max_steps``; None if unknown."""
    limit = gym.spec(own_id(env_id)).max_episode_steps
    if limit is not None:
        return limit
    try:
        limit = getattr(gym.make(env_id).unwrapped, "max_steps", None)
    except (gym.error.Error, ImportError):  # make_env says so
        return None
    return limit if isinstance(limit, int) and limit > 0 else None


def check_env_id(env_id: str) -> None:
    """Raise an InputError if the family's package or the id's module is missing, or gymnasium does not know the id."""
    own, colon, name = env_id.rpartition(":")
    where = f"--env {env_id}"
    if own:
        import_modules([own], where)
    family = family_of(env_id)
    if family.module is not None and name not in gym.registry:
        module, _, register = family.module.partition(":")
        import_modules([module], where)
        if register:
            load(family.module)()
    if name not in gym.registry:
        raise InputError(
            f"--env: unknown environment '{env_id}'{nearest(name, gym.registry, prefix=own + colon)}; --import MODULE "
            f"registers your own, as does --env MODULE:{name}"
        )
