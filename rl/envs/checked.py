"""An environment's observations, rewards and info as Stable-Baselines3 reads them, or a sentence."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

from dem_apps.errors import InputError

#: Spaces of choices, which SB3 counts from 0.
COUNTED = (spaces.Discrete, spaces.MultiDiscrete)
#: Keys of an info by which SB3's wrappers tell the algorithm of an episode; an environment's own are its own affair.
_OF_SB3 = ("episode", "terminal_observation")


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Gives observations in the spaces that SB3's networks read, rewards as floats, and ``is_success`` at the end.

    Arrays have their declared type, whole numbers and float16 are float32, and choices count from 0. SB3's rollout
    buffer stores observations in the declared type, to which normalised ones would be cut, and the sums of a running
    variance overflow in float16.

    Args:
        env: the environment.
        env_id: its name in errors.

    Raises:
        InputError: observations that SB3 has no network for, one of another shape, or a reward that is no number.
    """

    def __init__(self, env: gym.Env, env_id: str) -> None:
        super().__init__(env)
        self._where = f"--env {env_id}"
        space = env.observation_space
        own = space.spaces if isinstance(space, spaces.Dict) else {"": space}
        if not all(
            isinstance(part, (spaces.Box, *COUNTED, spaces.MultiBinary)) for part in own.values()
        ):
            raise InputError(
                f"{self._where}: SB3 has no network for its observations, {space!s:.200}; name a wrapper that makes "
                "one array, such as --hyperparameters.env_wrapper gymnasium.wrappers.FlattenObservation, or "
                "minigrid.wrappers.FlatObsWrapper for MiniGrid"
            )
        taken = {key: read_by_sb3(part) for key, part in own.items()}
        if taken != own:
            self.observation_space = (
                spaces.Dict(taken) if isinstance(space, spaces.Dict) else taken[""]
            )
        #: Type and shape of the arrays, and the first number of the choices that do not count from 0, by key.
        self._arrays = {
            key: (part.dtype, part.shape)
            for key, part in taken.items()
            if isinstance(part, spaces.Box)
        }
        self._starts = {
            key: part.start
            for key, part in own.items()
            if isinstance(part, COUNTED) and taken[key] != part
        }
        #: The latest ``is_success`` of the episode; None if there was none.
        self._success: float | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset, and convert the observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._success = None
        return self._converted(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and convert observation, reward and info. What is kept over a reset is a copy of the environment's."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation = self._converted(observation)
        try:
            # an array of one value is a reward too, and NumPy no longer makes a float of it
            reward = float(reward.item() if isinstance(reward, np.ndarray) else reward)
        except (TypeError, ValueError) as error:
            raise InputError(f"{self._where}: the reward of its step(): {error}") from error
        if terminated or truncated:
            observation = copy.deepcopy(observation)
        info = {key: value for key, value in info.items() if key not in _OF_SB3}
        said = np.asarray(info.pop("is_success", None))
        if said.size and said.dtype.kind in "biuf":  # no text, no None
            self._success = float(said.mean())
        if self._success is not None:  # also where it was said before the last step
            info["is_success"] = self._success
        return observation, reward, terminated, truncated, info

    def _converted(self, observation: Any) -> Any:
        for key, (dtype, shape) in self._arrays.items():
            given = observation[key] if key else observation
            try:
                seen = np.asarray(given, dtype)
            except (TypeError, ValueError) as error:
                what = f"an observation {key}".rstrip()
                raise InputError(
                    f"{self._where}: {what} is no array of numbers: {error}"
                ) from error
            if seen.shape != shape:
                raise InputError(
                    f"{self._where}: an observation {key} has the shape {seen.shape}, and its observation_space says "
                    f"{shape}"
                )
            if seen is not given and dtype == np.uint8 and not np.array_equal(seen, given):
                raise InputError(
                    f"{self._where}: an observation {key} has other values than its observation_space's type, "
                    f"{dtype}, can hold; declare the type that it has"
                )
            observation = {**observation, key: seen} if key else seen
        for key, start in self._starts.items():
            observation = (
                {**observation, key: observation[key] - start} if key else observation - start
            )
        return observation


def read_by_sb3(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The space that SB3 reads in place of another: choices from 0, and float32 for whole numbers and float16."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec)
    if not isinstance(space, spaces.Box) or is_image_space(space):
        return space
    if space.dtype in (np.float32, np.float64):
        return space
    return spaces.Box(
        space.low.astype(np.float32), space.high.astype(np.float32), space.shape, np.float32
    )
