"""MiniGrid's FlatObsWrapper with float32 observations: the same numbers, without spelling the mission at every step."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from minigrid.wrappers import FlatObsWrapper

from rl.fast.grid_view import use_fast_view

#: FlatObsWrapper's own default for the longest mission.
MISSION_LENGTH = 96
_LETTERS = "abcdefghijklmnopqrstuvwxyz ,"


class FlatObservation(gym.ObservationWrapper[np.ndarray, Any, dict[str, Any]]):
    """Equal to ``DtypeObservation(FlatObsWrapper(env), numpy.float32)``, and faster.

    Observations are the view, V·V·3 numbers from 0 to 255, and the mission, one-hot over 28 characters for each of its
    96 places: float32, one axis. MiniGrid environments get the view of :mod:`rl.fast.grid_view`.

    Raises:
        ValueError: at a reset, a mission that FlatObsWrapper refuses too: too long, or with other characters.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        flat = FlatObsWrapper(env).observation_space
        self.observation_space = spaces.Box(0, 255, flat.shape, np.float32)
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
            self._missions[mission] = np.concatenate([np.zeros(self._image_size, np.float32), mission_one_hot(mission)])
        flat = self._missions[mission].copy()
        flat[: self._image_size] = observation["image"].ravel()
        return flat


def mission_one_hot(mission: str) -> np.ndarray:
    """A mission as FlatObsWrapper writes it, as (96 · 28,) float32.

    Raises:
        ValueError: the mission is too long, or has a character that is no letter, space or comma.
    """
    if len(mission) > MISSION_LENGTH:
        raise ValueError(f"mission: '{mission}' has {len(mission)} characters; at most {MISSION_LENGTH} are possible")
    one_hot = np.zeros((MISSION_LENGTH, len(_LETTERS)), np.float32)
    for place, letter in enumerate(mission.lower()):
        if letter not in _LETTERS:
            raise ValueError(f"mission: '{mission}' has the character '{letter}'; expected letters, spaces and commas")
        one_hot[place, _LETTERS.index(letter)] = 1.0
    return one_hot.ravel()
