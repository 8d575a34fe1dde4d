"""What an environment does wrong becomes one sentence that says where, instead of a number or a stack trace."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dem_apps.errors import InputError


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Around an environment and its wrappers: what goes in and comes out is what a policy can be trained on.

    NumPy would spread an observation of shape (1,) over a row of four, and 5 would be no action of ``Discrete(3)``.

    Args:
        env: with its observation wrappers.
        env_id: its name, for errors.

    Raises:
        InputError: spaces that no algorithm of SB3 can have; later, whatever ``reset`` and ``step`` raise or give back
            that is no observation or reward.
    """

    def __init__(self, env: gym.Env, env_id: str) -> None:
        super().__init__(env)
        self._where = f"--env {env_id}"
        check_spaces(env, self._where)
        self._shape = env.observation_space.shape
        self._resets, self._steps = CodeOf(self._where, "reset"), CodeOf(self._where, "step")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and look at the observation."""
        with self._resets:
            observation, info = self.env.reset(seed=seed, options=options)
        self._check_observation(observation, "reset")
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and look at observation and reward."""
        with self._steps:
            observation, reward, terminated, truncated, info = self.env.step(action)
        self._check_observation(observation, "step")
        try:
            # one value in an array is a reward too, and NumPy no longer makes a float of it
            reward = float(reward.item() if isinstance(reward, np.ndarray) else reward)
        except (TypeError, ValueError) as error:
            raise InputError(f"{self._where}: its step() gave the reward {reward!r:.50}, which is no number") from error
        return observation, reward, terminated, truncated, info

    def _check_observation(self, observation: Any, call: str) -> None:
        if self._shape is None:  # of several arrays, which the policy's extractor looks at
            return
        shape = observation.shape if isinstance(observation, np.ndarray) else np.shape(observation)
        if shape != self._shape:
            raise InputError(
                f"{self._where}: its {call}() gave an observation of shape {shape}, and its observation_space says "
                f"{self._shape}"
            )


class CodeOf:
    """Around code that is not ours: whatever it raises, ``SystemExit`` too, is one sentence with the line of it.

    A class, since every step of an environment enters one, and ``contextlib``'s would take a tenth of the step's time.
    """

    def __init__(self, where: str, what: str) -> None:
        self._where, self._what = where, what

    def __enter__(self) -> None:
        """There is nothing to set up."""

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """Put the sentence in the place of what was raised, if anything was."""
        if isinstance(error, InputError | MemoryError) or not isinstance(error, Exception | SystemExit):
            return
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        text = " ".join(str(error).split())
        reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise InputError(f"{self._where}: its {self._what}() failed with {reason:.300}{place}") from error


def check_spaces(env: gym.Env, where: str) -> None:
    """That a policy can be made for the spaces.

    Raises:
        InputError: an observation without a value, or actions that are not counted from 0.
    """
    observations, actions = env.observation_space, env.action_space
    if isinstance(observations, spaces.Box) and 0 in observations.shape:
        raise InputError(f"{where}: its observations have the shape {observations.shape}, which holds no value")
    if np.any(getattr(actions, "start", 0)):
        raise InputError(
            f"{where}: its actions are {actions}, and Stable-Baselines3 counts actions from 0; wrap it so that they "
            "begin there, as with gymnasium.wrappers.TransformAction"
        )
