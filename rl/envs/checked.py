"""An environment's observations, rewards and info as its spaces say, or a sentence."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dem_apps.errors import InputError

#: Spaces of choices, which SB3 counts from 0 along one axis.
COUNTED = (spaces.Discrete, spaces.MultiDiscrete)
#: Keys of an info by which SB3's wrappers tell the algorithm of an episode; an environment's own are its own affair.
_OF_SB3 = ("episode", "terminal_observation")


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """An InputError for a reward that is no number, or an observation outside its space.

    Of observations the shape is checked, which NumPy might broadcast, and that numbered choices exist.
    """

    def __init__(self, env: gym.Env, env_id: str) -> None:
        super().__init__(env)
        self._where = f"--env {env_id}"
        self._shape = env.observation_space.shape
        parts = dict(getattr(env.observation_space, "spaces", {"": env.observation_space}))
        self._dtypes = {
            key: part.dtype for key, part in parts.items() if isinstance(part, spaces.Box)
        }
        self._counted = {key: part for key, part in parts.items() if isinstance(part, COUNTED)}
        #: What the episode has said of success, the latest word; None if nothing.
        self._success: float | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset, and check the observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._success = None
        return self._checked(observation, "reset"), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and check observation and reward. What is kept over a reset is a copy of the environment's own."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation = self._checked(observation, "step")
        try:
            # an array of one value is a reward too, and NumPy no longer makes a float of it
            reward = float(reward.item() if isinstance(reward, np.ndarray) else reward)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{self._where}: its step() gave the reward {reward!r:.50}, which is no number"
            ) from error
        if terminated or truncated:
            observation = copy.deepcopy(observation)
        info = {key: value for key, value in info.items() if key not in _OF_SB3}
        said = np.asarray(info.pop("is_success", None))
        if said.size and said.dtype.kind in "biuf":  # no text, no None
            self._success = float(said.mean())
        if self._success is not None:  # also where it was said before the last step
            info["is_success"] = self._success
        return observation, reward, terminated, truncated, info

    def _checked(self, observation: Any, call: str) -> Any:
        """The observation; of a Box, an array of the declared type, as SB3's buffers have it."""
        shape = observation.shape if isinstance(observation, np.ndarray) else np.shape(observation)
        # None: several arrays, which the policy checks
        if self._shape is not None and shape != self._shape:
            raise InputError(
                f"{self._where}: its {call}() gave an observation of shape {shape}, and its observation_space says "
                f"{self._shape}"
            )
        for key, dtype in self._dtypes.items():
            seen = observation[key] if key else observation
            if not isinstance(seen, np.ndarray) or seen.dtype != dtype:
                seen = self._cast(
                    np.asarray(seen), dtype, f"{call}() gave the observation {key}".rstrip()
                )
                observation = {**observation, key: seen} if key else seen
        for key, part in self._counted.items():
            seen = observation[key] if key else observation
            number = np.asarray(seen, float) - part.start
            if not (
                (number >= 0)
                & (number < (part.n if isinstance(part, spaces.Discrete) else part.nvec))
            ).all():
                said = " ".join(f"{key} {seen} outside of its space {part}".split())
                raise InputError(f"{self._where}: its {call}() gave the observation {said}")
        return observation

    def _cast(self, seen: np.ndarray, dtype: Any, gave: str) -> np.ndarray:
        try:
            with np.errstate(all="ignore"):
                cast = seen.astype(dtype)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{self._where}: its {gave} in {seen.dtype}, which is no number"
            ) from error
        if np.issubdtype(dtype, np.integer) and (changed := cast != seen).any():
            raise InputError(
                f"{self._where}: its {gave} with the value {seen[changed][0]:g} in {seen.dtype}, of which {dtype}, as "
                f"its observation_space is declared, would make {cast[changed][0]}; declare the space {seen.dtype}"
            )
        return cast
