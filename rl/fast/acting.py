"""Actions of a policy that does not learn meanwhile: SB3's ``policy.predict`` at a fraction of its time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from dem_apps.fused.numpy_objective import log_softmax
from rl.fast.compact_normalize import CompactNormalize
from rl.fast.network import Network, drawn, why_no_network


class Acting:
    """A model's actions in raw observations, with its weights as they are when this is made.

    Actions drawn are those that SB3 draws, from torch's global generator, but for one in very many by rounding. Other
    models go through SB3's ``predict``. The model's normalisation is used and not moved.
    """

    def __init__(self, model: OnPolicyAlgorithm) -> None:
        self._policy, self._envs = model.policy, model.get_vec_normalize_env()
        self._network: Network | None = None
        model.policy.set_training_mode(False)
        if isinstance(self._envs, CompactNormalize) and why_no_network(model) is None:
            self._network = Network(model.policy, self._envs.columns)
            self._others = np.delete(np.arange(self._envs.observation_space.shape[0]), self._envs.columns)  # type: ignore

    def __call__(self, observations: Any, greedy: bool) -> np.ndarray:
        """Actions (N, …) for raw observations, (N, …) or a dictionary of such: the most probable ones, or drawn."""
        # a column that training has never seen set is normalised by SB3 like any other
        if self._network is None or observations[:, self._others].any():
            if self._envs is not None:
                observations = self._envs.normalize_obs(observations)
            return self._policy.predict(observations, deterministic=greedy)[0]
        envs: Any = self._envs
        with torch.no_grad():
            logits = self._network.actor(envs.scaled(observations.take(envs.columns, axis=1)))
        return np.asarray(logits.argmax(axis=1)) if greedy else drawn(log_softmax(logits)[1])
