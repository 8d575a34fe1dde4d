"""An environment of noise over any action space, and small models that learn in it."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3 import A2C

#: Of the class marginals in a policy's state.
TABLE = "entropy_objective.0.class_marginals"


class ToyEnv(gym.Env):
    """Random observations, rewards, ends and allowed actions, of which there is one at least; actions do nothing."""

    def __init__(self, action_space: spaces.Space | None = None) -> None:
        self.observation_space = spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = spaces.Discrete(5) if action_space is None else action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        return (
            self._observe(),
            float(self.np_random.normal()),
            bool(self.np_random.random() < 0.1),
            False,
            {},
        )

    def action_masks(self) -> np.ndarray:
        sizes = (
            [self.action_space.n]
            if isinstance(self.action_space, spaces.Discrete)
            else self.action_space.nvec
        )
        masks = [self.np_random.random(size) < 0.6 for size in sizes]
        for mask in masks:
            mask[self.np_random.integers(len(mask))] = True
        return np.concatenate(masks)

    def _observe(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)


def make(
    algorithm: Any, space: spaces.Space | None = None, policy: Any = None, **arguments: Any
) -> Any:
    """A small model of any algorithm, hooked or not."""
    small: dict[str, Any] = {"n_steps": 32, "ent_coef": 0.1, "seed": 0, "device": "cpu"}
    if not issubclass(algorithm, A2C):
        small |= {"batch_size": 16, "n_epochs": 2}
    if issubclass(algorithm, RecurrentPPO):
        small["policy_kwargs"] = {"lstm_hidden_size": 8}
        policy = policy or "MlpLstmPolicy"
    return algorithm(policy or "MlpPolicy", ToyEnv(space), **(small | arguments))


def same_weights(one: Any, two: Any) -> bool:
    """Of two models' policies, the objectives' state aside."""
    first, second = (dict(model.policy.named_parameters()) for model in (one, two))
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)
