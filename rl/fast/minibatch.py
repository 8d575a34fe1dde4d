"""What PPO's update is made of: a rollout and its minibatches, the settings, and the losses of one minibatch.

Shapes: N samples of a rollout, B of a minibatch, A actions, D columns of the observations in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RolloutBatch:
    """A rollout or a part of it; float32 but for the actions."""

    observations: np.ndarray  # (N, D)
    actions: np.ndarray  # (N,) whole numbers
    values: np.ndarray  # (N,) when the action was taken, as all of the rest
    log_probs: np.ndarray
    advantages: np.ndarray
    returns: np.ndarray

    def minibatches(self, size: int) -> Iterator[RolloutBatch]:
        """All samples in a new order, ``size`` at a time; numpy's global generator chooses it, as in SB3."""
        order = np.random.permutation(len(self.actions))
        parts = [array[order] for array in vars(self).values()]
        for start in range(0, len(order), size):
            yield RolloutBatch(*(part[start : start + size] for part in parts))


@dataclass(frozen=True)
class Settings:
    """What PPO's update is told, under SB3's names; schedules are numbers here."""

    batch_size: int
    n_epochs: int
    clip_range: float
    clip_range_vf: float | None
    ent_coef: float
    vf_coef: float
    max_grad_norm: float
    normalize_advantage: bool
    target_kl: float | None


@dataclass(frozen=True)
class Losses:
    """Of one minibatch, without the entropy term, and with what that is made of."""

    policy: float
    value: float
    divergence: float  # SB3's approx_kl
    clip_fraction: float
    mean_entropy: float
    log_p: np.ndarray  # (B, A) log-probabilities
    p: np.ndarray  # (B, A)
    entropy: np.ndarray  # (B,) nats
    by_logits: np.ndarray  # (B, A) gradient of the policy's loss
    by_values: np.ndarray  # (B,) gradient of the values' loss, with its weight
