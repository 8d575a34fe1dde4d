"""PPO's update with its gradient written out: the numbers of SB3's ``PPO.train`` without autograd.

PPO: Schulman et al., Proximal Policy Optimization Algorithms, 2017 (arXiv 1707.06347), Eq. 7 and Eq. 9.
Shapes: N samples of a rollout, B of a minibatch, A actions, D columns of the observations in use.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from dem_apps.fused.build_kernel import address
from rl.fast.network import Network

#: (logits, log-probabilities, probabilities, entropy per row) to the mean of the entropy term and its gradient by the
#: logits, (B, A).
Term = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], tuple[float, np.ndarray]]


@dataclass(frozen=True)
class RolloutBatch:
    """A rollout or a part of it, contiguous; float32 but for the actions."""

    observations: np.ndarray  # (N, D)
    actions: np.ndarray  # (N,) int64
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
    """Settings of PPO's update under SB3's names; schedules are numbers here."""

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


#: What a minibatch logs, under SB3's names, and its entropy.
Figures = dict[str, float]


def ppo_update(network: Network, samples: RolloutBatch, settings: Settings, term: Term) -> list[list[Figures]]:
    """Train the network on a rollout, ``settings.n_epochs`` times over; the figures of each epoch's minibatches."""
    epochs: list[list[Figures]] = []
    with torch.no_grad():
        for _ in range(settings.n_epochs):
            epochs.append([])
            for batch in samples.minibatches(settings.batch_size):
                logits, values = network.actor(batch.observations), network.critic(batch.observations)[:, 0]
                losses = ppo_losses(network.kernel, logits, values, batch, settings)
                value, by_logits = term(logits, losses.log_p, losses.p, losses.entropy)
                epochs[-1].append({
                    "policy_gradient_loss": losses.policy, "value_loss": losses.value, "entropy_loss": -value,
                    "clip_fraction": losses.clip_fraction, "approx_kl": losses.divergence,
                    "loss": losses.policy - settings.ent_coef * value + settings.vf_coef * losses.value,
                    "entropy": losses.mean_entropy,
                })  # fmt: skip
                if settings.target_kl is not None and losses.divergence > 1.5 * settings.target_kl:
                    return epochs  # the policy has moved too far
                network.actor.backward(losses.by_logits - np.float32(settings.ent_coef) * by_logits)
                network.critic.backward(losses.by_values[:, None])
                network.step(settings.max_grad_norm)
    return epochs


def ppo_losses(
    kernel: ctypes.CDLL, logits: np.ndarray, values: np.ndarray, batch: RolloutBatch, settings: Settings
) -> Losses:
    """The losses in C++, from logits (B, A) and values (B,)."""
    rows, number = logits.shape
    # one piece of memory with one address: log p, p and the gradient, entropy and the other gradient
    wide, losses = rows * number, np.empty(5)
    made = np.empty(3 * wide + 2 * rows, np.float32)
    begin = address(made)
    places = [begin + 4 * offset for offset in (0, wide, 3 * wide, 2 * wide, 3 * wide + rows)]
    floats = (logits, values, batch.values, batch.log_probs, batch.advantages, batch.returns)
    given = [np.ascontiguousarray(array, np.float32) for array in floats]
    given.insert(2, np.ascontiguousarray(batch.actions, np.int64))
    clip_values = -1.0 if settings.clip_range_vf is None else settings.clip_range_vf
    kernel.ppo_loss(
        rows, number, *map(address, given), settings.normalize_advantage, settings.clip_range, clip_values,
        settings.vf_coef, *places, address(losses),
    )  # fmt: skip
    tables = made[: 3 * wide].reshape(3, rows, number)
    columns = made[3 * wide :].reshape(2, rows)
    policy, value, divergence, clip_fraction, mean_entropy = losses.tolist()
    return Losses(
        policy, value, divergence, clip_fraction, mean_entropy, log_p=tables[0], p=tables[1], entropy=columns[0],
        by_logits=tables[2], by_values=columns[1],
    )  # fmt: skip
