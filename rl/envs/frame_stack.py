"""The last few pictures as one, on the last axis: what the Zoo's ``frame_stack`` asks SB3's VecFrameStack for.

Here it is a wrapper of each environment, so that an episode which is repeated for an exact resume brings them back.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dem_apps.errors import InputError


class FrameStack(gym.ObservationWrapper[np.ndarray, Any, np.ndarray]):
    """Equal to VecFrameStack with channels last: before the first picture of an episode there are zeros.

    Args:
        env: observes one array (…, C).
        count: pictures, the newest one last.

    Raises:
        InputError: observations that are no array.
    """

    def __init__(self, env: gym.Env, count: int) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box):
            raise InputError(f"frame_stack: stacks arrays, and the observations are {type(space).__name__}")
        low, high = (np.concatenate([bound] * count, axis=-1) for bound in (space.low, space.high))
        self.observation_space = spaces.Box(low, high, dtype=space.dtype.type)
        self._stack = np.zeros(low.shape, space.dtype)
        self._width = space.shape[-1]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, with zeros for what has not been."""
        self._stack = np.zeros_like(self._stack)
        return super().reset(seed=seed, options=options)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """The stack with this picture at its end; a new array."""
        self._stack = np.concatenate([self._stack[..., self._width :], observation], axis=-1)
        return self._stack
