"""An environment of noise over any action space, and what the hook's tests compare of policies that learned in it."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces


class ToyEnv(gym.Env):
    """Random observations, rewards and ends.

    Args:
        action_space: any; actions have no effect.
        ends: the probability that an episode ends at a step.
    """

    def __init__(self, action_space: spaces.Space, ends: float = 0.1) -> None:
        self.observation_space = spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = action_space
        self._ends = ends

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        return self._observe(), float(self.np_random.normal()), bool(self.np_random.random() < self._ends), False, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)


TABLE = "entropy_objective.0.class_marginals"


def same_weights(one: Any, two: Any) -> bool:
    """Of two models' policies, the objectives' state aside."""
    first, second = (dict(model.policy.named_parameters()) for model in (one, two))
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)
