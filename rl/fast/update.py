"""PPO's update with its gradient written out: the numbers of SB3's ``PPO.train`` without autograd.

PPO: Schulman et al., Proximal Policy Optimization Algorithms, 2017 (arXiv 1707.06347), Eq. 7 and Eq. 9.
Shapes: N samples of a rollout, B of a minibatch, A actions, D columns of the observations in use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from rl.fast.minibatch import Losses, RolloutBatch, Settings
from rl.fast.mlp_kernel import kernel_losses
from rl.fast.numpy_mlp import Network, log_softmax

#: (logits, log-probabilities, probabilities, entropy per row) to the mean of the entropy term and its gradient by the
#: logits, (B, A).
Term = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], tuple[float, np.ndarray]]


@dataclass
class UpdateStats:
    """What the update logs, one value per minibatch."""

    policy_losses: list[float]
    value_losses: list[float]
    clip_fractions: list[float]
    divergences: list[list[float]]  # per epoch
    terms: list[float]
    entropies: list[float]
    epochs: int = 0
    loss: float = 0.0


def ppo_update(network: Network, samples: RolloutBatch, settings: Settings, term: Term) -> UpdateStats:
    """Train the network on a rollout, ``settings.n_epochs`` times over."""
    stats = UpdateStats([], [], [], [], [], [])
    with torch.no_grad():
        for _ in range(settings.n_epochs):
            stats.divergences.append([])
            stats.epochs += 1
            for batch in samples.minibatches(settings.batch_size):
                if not _gradient(network, batch, settings, term, stats):
                    return stats
                network.step(settings.max_grad_norm)
    return stats


def _gradient(network: Network, batch: RolloutBatch, settings: Settings, term: Term, stats: UpdateStats) -> bool:
    """Fill the network's gradient from one minibatch; False, and no gradient, where the policy has moved too far."""
    logits, values = network.actor(batch.observations), network.critic(batch.observations)[:, 0]
    if network.kernel is None:
        losses = ppo_losses(logits, values, batch, settings)
    else:
        losses = kernel_losses(network.kernel, logits, values, batch, settings)
    value, by_logits = term(logits, losses.log_p, losses.p, losses.entropy)

    stats.policy_losses.append(losses.policy)
    stats.value_losses.append(losses.value)
    stats.clip_fractions.append(losses.clip_fraction)
    stats.divergences[-1].append(losses.divergence)
    stats.terms.append(value)
    stats.entropies.append(losses.mean_entropy)
    stats.loss = losses.policy - settings.ent_coef * value + settings.vf_coef * losses.value
    if settings.target_kl is not None and losses.divergence > 1.5 * settings.target_kl:
        return False
    network.actor.backward(losses.by_logits - np.float32(settings.ent_coef) * by_logits)
    network.critic.backward(losses.by_values[:, None])
    return True


def ppo_losses(logits: np.ndarray, values: np.ndarray, batch: RolloutBatch, settings: Settings) -> Losses:
    """The losses in numpy, from logits (B, A) and values (B,)."""
    log_p, p = log_softmax(logits)
    number = np.float32(len(values))
    rows = np.arange(len(values))
    advantages = _normalised(batch.advantages) if settings.normalize_advantage else batch.advantages
    log_ratio = log_p[rows, batch.actions] - batch.log_probs
    ratio = np.exp(log_ratio)
    low, high = np.float32(1 - settings.clip_range), np.float32(1 + settings.clip_range)
    free, clipped = advantages * ratio, advantages * np.clip(ratio, low, high)
    entropy = -np.add.reduce(p * log_p, axis=1)
    value_loss, by_values = _value_loss(values, batch, settings)
    # The clipped surrogate has a gradient inside the range, and outside where the free one is the smaller.
    passes = ((ratio >= low) & (ratio <= high)) | (free < clipped)
    by_log_prob = np.where(passes, -free, 0) / number
    by_logits = p * -by_log_prob[:, None]
    by_logits[rows, batch.actions] += by_log_prob
    return Losses(
        policy=-_mean(np.minimum(free, clipped)),
        value=value_loss,
        divergence=_mean((ratio - 1) - log_ratio),
        clip_fraction=_mean(np.abs(ratio - 1) > settings.clip_range),
        mean_entropy=_mean(entropy),
        log_p=log_p,
        p=p,
        entropy=entropy,
        by_logits=by_logits,
        by_values=np.float32(settings.vf_coef) * by_values,
    )


def _normalised(advantages: np.ndarray) -> np.ndarray:
    if len(advantages) < 2:
        return advantages
    centred = advantages - advantages.mean()
    deviation = np.sqrt(np.square(centred).sum() / np.float32(len(centred) - 1))
    normalised: np.ndarray = centred / (deviation + np.float32(1e-8))
    return normalised


def _value_loss(values: np.ndarray, batch: RolloutBatch, settings: Settings) -> tuple[float, np.ndarray]:
    """Mean squared error of the values, and its gradient by them, (B,)."""
    limit = settings.clip_range_vf
    if limit is None:
        error = values - batch.returns
        return _mean(error * error), error * np.float32(2 / len(error))
    moved = values - batch.values
    error = batch.values + np.clip(moved, np.float32(-limit), np.float32(limit)) - batch.returns
    return _mean(error * error), np.where(np.abs(moved) <= np.float32(limit), error, 0) * np.float32(2 / len(error))


def _mean(values: np.ndarray) -> float:
    """As ``values.mean()``, at half the cost for so few values."""
    return float(np.add.reduce(values)) / len(values)
