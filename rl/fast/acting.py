"""Actions of a policy that does not learn meanwhile: SB3's ``policy.predict`` at a fraction of its time."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from rl.fast.compact_normalize import CompactNormalize
from rl.fast.numpy_mlp import Network, drawn, why_no_network
from rl.hook.complexity import log_softmax


class Acting:
    """What a model does in raw observations, with its weights and statistics as they are when this is made.

    Actions drawn are those that SB3 draws, from torch's global generator, but for one in very many by rounding. Other
    models go through SB3's ``predict``. The model's normalisation is used and not moved.
    """

    def __init__(self, model: OnPolicyAlgorithm) -> None:
        self._model, self._envs = model, model.get_vec_normalize_env()
        model.policy.set_training_mode(False)
        self._network: Network | None = None
        envs = self._envs
        if isinstance(envs, CompactNormalize) and why_no_network(model) is None:
            self._columns = envs.columns
            self._others = np.ones(envs.observation_space.shape or (), bool)
            self._others[self._columns] = False
            running = envs.obs_rms
            self._mean = running.mean[self._columns]
            self._deviation = np.sqrt(running.var[self._columns] + envs.epsilon)
            self._network = Network(model.policy, self._columns)

    def __call__(self, observations: Any, greedy: bool) -> np.ndarray:
        """Actions (N, …) for raw observations, (N, …) or a dictionary of such: the most probable ones, or drawn."""
        # a column that training has never seen set is normalised by SB3 like any other
        if self._network is None or observations[:, self._others].any():
            if self._envs is not None:
                observations = self._envs.normalize_obs(observations)
            return self._model.policy.predict(observations, deterministic=greedy)[0]
        envs = cast(CompactNormalize, self._envs)
        compact = observations.take(self._columns, axis=1)
        if envs.norm_obs:
            compact = np.clip((compact - self._mean) / self._deviation, -envs.clip_obs, envs.clip_obs)
        with torch.no_grad():
            logits = self._network.actor(compact.astype(np.float32))
        if greedy:
            return np.asarray(logits.argmax(axis=1))
        _, p = log_softmax(logits)
        return drawn(p)
