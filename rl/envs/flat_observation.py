"""MiniGrid's FlatObsWrapper with float32 observations: the same numbers, without spelling the mission at every step."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from minigrid.wrappers import FlatObsWrapper

from rl.fast.grid_view import use_fast_view


class FlatObservation(gym.ObservationWrapper[np.ndarray, Any, dict[str, Any]]):
    """Equal to ``DtypeObservation(FlatObsWrapper(env), numpy.float32)``, and faster.

    Observations are the view, V·V·3 numbers from 0 to 255, and the mission, one-hot over 28 characters for each of its
    96 places: float32, one axis. MiniGrid environments get the view of :mod:`rl.fast.grid_view`.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._stock: Any = FlatObsWrapper(env)
        self.observation_space = spaces.Box(0, 255, self._stock.observation_space.shape, np.float32)
        self._image_size = int(np.prod(env.observation_space["image"].shape))  # type: ignore[index]
        self._missions: dict[str, np.ndarray] = {}
        use_fast_view(env)

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        """Step with the action as Python's int, which MiniGrid compares with its names of actions several times."""
        return super().step(int(action))

    def observation(self, observation: dict[str, Any]) -> np.ndarray:
        """The flat observation."""
        mission = observation["mission"]
        if mission not in self._missions:
            self._missions[mission] = self._stock.observation(observation).astype(np.float32)
        flat = self._missions[mission].copy()
        flat[: self._image_size] = observation["image"].ravel()
        return flat
