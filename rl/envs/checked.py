"""An environment's observations, rewards and info as Stable-Baselines3 reads them, or a sentence."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

from dem_apps.errors import InputError

#: What an environment says beside an observation, and what its ``step`` returns.
Info = dict[str, Any]
Step = tuple[Any, Any, bool, bool, Info]
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
        parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
        known = (spaces.Box, *COUNTED, spaces.MultiBinary)
        if not all(isinstance(part, known) for part in parts.values()):
            raise InputError(
                f"{self._where}: SB3 has no network for its observations, {space!s:.200}; name a wrapper that makes "
                "one array, such as --hyperparameters.env_wrapper gymnasium.wrappers.FlattenObservation, or "
                "minigrid.wrappers.FlatObsWrapper for MiniGrid"
            )
        taken = {key: read_by_sb3(part) for key, part in parts.items()}
        if taken != parts:
            self.observation_space = (
                spaces.Dict(taken) if isinstance(space, spaces.Dict) else taken[""]
            )
        #: The arrays, and the first number of the choices, by key.
        self._arrays = {key: part for key, part in taken.items() if isinstance(part, spaces.Box)}
        self._starts = {key: part.start for key, part in parts.items() if isinstance(part, COUNTED)}
        #: The latest ``is_success`` of the episode; None if there was none.
        self._success: float | None = None

    def reset(self, **arguments: Any) -> tuple[Any, Info]:
        """Reset, and convert the observation."""
        observation, info = self.env.reset(**arguments)
        self._success = None
        return self._converted(observation), info

    def step(self, action: Any) -> Step:
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
        success = np.asarray(info.pop("is_success", None))
        if success.size and success.dtype.kind in "biuf":  # no text, no None
            self._success = float(success.mean())
        if self._success is not None:  # also where an earlier step said it
            info["is_success"] = self._success
        return observation, reward, terminated, truncated, info

    def _converted(self, observation: Any) -> Any:
        """Convert an observation, part by part where it is a dictionary."""
        if isinstance(self.observation_space, spaces.Dict):
            return {key: self._part(observation[key], key) for key in self.observation_space}
        return self._part(observation, "")

    def _part(self, value: Any, key: str) -> Any:
        if key in self._starts:
            return value - self._starts[key]
        if key not in self._arrays:
            return value
        dtype, shape = self._arrays[key].dtype, self._arrays[key].shape
        what = f"{self._where}: an observation {key}".rstrip()
        try:
            array = np.asarray(value, dtype)
        except (TypeError, ValueError) as error:
            raise InputError(f"{what} is no array of numbers: {error}") from error
        if array.shape != shape:
            raise InputError(
                f"{what} has the shape {array.shape}, and its observation_space says {shape}"
            )
        if array is not value and dtype == np.uint8 and not np.array_equal(array, value):
            raise InputError(
                f"{what} has other values than its observation_space's type, {dtype}, can hold; declare the type that "
                "it has"
            )
        return array


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
    return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32))
