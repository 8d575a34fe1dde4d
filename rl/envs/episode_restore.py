"""An environment's state as a small value: the random generator at the start of the episode and the actions since.

Environments cannot be saved in general, and a pickle can run code. But nearly every gymnasium environment draws all of
its randomness from ``np_random``, so its state can be reached again: put the generator back, reset, repeat the actions.
Every wrapper inside (time limits, monitors) is repeated with it.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class RestorableEpisode(gym.Wrapper[Any, Any, Any, Any]):
    """Outermost wrapper that records (:meth:`episode_record`) and repeats (:meth:`restore`) the episode so far."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._start: dict[str, Any] = {}
        self._actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, after noting where the randomness of this episode starts."""
        # With a seed the environment makes a new generator from it; the present one does not matter.
        generator = self.unwrapped.np_random.bit_generator.state if seed is None else None
        self._start = {"seed": seed, "options": options, "generator": generator}
        self._actions = []
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, after noting the action."""
        self._actions.append(np.asarray(action).tolist())
        return self.env.step(action)

    def episode_record(self) -> dict[str, Any]:
        """What :meth:`restore` needs, as JSON values."""
        return {**self._start, "actions": list(self._actions)}

    def restore(self, record: dict[str, Any]) -> Any:
        """Bring the environment to the state in which :meth:`episode_record` was called; returns its observation."""
        if record["generator"] is not None:
            self.unwrapped.np_random.bit_generator.state = record["generator"]
        observation, _ = self.reset(seed=record["seed"], options=record["options"])
        for action in record["actions"]:
            # [()] turns an array without dimensions into the scalar that a Discrete space expects
            observation = self.step(np.asarray(action, dtype=self.action_space.dtype)[()])[0]
        return observation
