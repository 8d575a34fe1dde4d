"""Checks of an environment's spaces, observations and rewards, each with one sentence that names the environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dem_apps.errors import InputError


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Checks what an environment and its wrappers return; ``env_id`` names it in errors.

    NumPy would broadcast an observation of shape (1,) over a row of four, and 5 is no action of ``Discrete(3)``.

    Raises:
        InputError: spaces that no algorithm of SB3 takes; later, an observation of another shape, or a reward that is
            no number.
    """

    def __init__(self, env: gym.Env, env_id: str) -> None:
        super().__init__(env)
        self._where = f"--env {env_id}"
        observations, actions = env.observation_space, env.action_space
        if isinstance(observations, spaces.Box) and 0 in observations.shape:
            raise InputError(f"{self._where}: its observations have the shape {observations.shape}, which is empty")
        if np.any(getattr(actions, "start", 0)):
            raise InputError(
                f"{self._where}: its actions are {actions}, and Stable-Baselines3 counts actions from 0; wrap it so "
                "that they begin there, as with gymnasium.wrappers.TransformAction"
            )
        self._shape = observations.shape

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and check the observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._check_observation(observation, "reset")
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and check observation and reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._check_observation(observation, "step")
        try:
            # an array of one value is a reward too, and NumPy no longer makes a float of it
            reward = float(reward.item() if isinstance(reward, np.ndarray) else reward)
        except (TypeError, ValueError) as error:
            raise InputError(f"{self._where}: its step() gave the reward {reward!r:.50}, which is no number") from error
        return observation, reward, terminated, truncated, info

    def _check_observation(self, observation: Any, call: str) -> None:
        shape = observation.shape if isinstance(observation, np.ndarray) else np.shape(observation)
        if self._shape is not None and shape != self._shape:  # None: several arrays, which the policy checks
            raise InputError(
                f"{self._where}: its {call}() gave an observation of shape {shape}, and its observation_space says "
                f"{self._shape}"
            )
