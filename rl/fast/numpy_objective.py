"""Value and gradient of an entropy objective on a minibatch of action logits, in numpy.

PPO's minibatches are 64 rows of a few logits, where nearly all of an objective's time goes into calling PyTorch. This
is the same objective with a few calls to numpy instead: the equations of :mod:`dem_apps.entropy`, with the gradient
that :mod:`dem_apps.fused.one_pass` derives. ``tests/rl/test_fast_update.py`` holds it to
:class:`dem_apps.EntropyObjective`.

Shapes: B rows, C actions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dem_apps import EntropyObjective
from dem_apps.entropy import ENTROPY_DELTA_FLOOR, ObjectiveSpec

#: Calibrators whose equations are written out below; any other objective goes by its own.
_WRITTEN_OUT = ("gmc", "mec", "self")


def small_term(objective: EntropyObjective) -> Callable[[np.ndarray, np.ndarray], tuple[float, np.ndarray]]:
    """From logits and probabilities, (B, C) each, to the objective's mean over the rows and its gradient, in numpy.

    Args:
        objective: on the CPU, in ``train()`` mode.
    """
    if objective.terms.calibrator in _WRITTEN_OUT:
        return SmallObjective(objective)
    return lambda logits, _probabilities: _by_equations(objective, logits)


def _by_equations(objective: EntropyObjective, logits: np.ndarray) -> tuple[float, np.ndarray]:
    """The objective itself and autograd's gradient: slower, and right whatever the objective is."""
    with torch.enable_grad():
        leaf = torch.from_numpy(logits).requires_grad_()
        value = objective(leaf, dim=1)
        (gradient,) = torch.autograd.grad(value, leaf)
    return value.item(), gradient.numpy()


class SmallObjective:
    """The mean of ``objective`` over the rows, and its gradient; moves the objective's own table.

    Args:
        objective: on the CPU, of the calibrators that are written out here. Its ``class_marginals`` is updated in
            place, as in ``train()`` mode.

    Raises:
        ValueError: an objective of another calibrator, whose equations are not these.
    """

    def __init__(self, objective: EntropyObjective) -> None:
        if objective.terms.calibrator not in _WRITTEN_OUT:
            raise ValueError(f"no numpy form of the calibrator '{objective.terms.calibrator}'; see small_term()")
        self._terms, self._momentum = objective.terms, np.float32(objective.momentum)
        # shares its memory with the buffer
        self._table = objective.class_marginals.numpy() if objective.has_table else None

    def __call__(self, logits: np.ndarray, probabilities: np.ndarray) -> tuple[float, np.ndarray]:
        """The mean over the rows in nats, and its gradient with respect to the logits.

        Args:
            logits: (B, C) float32.
            probabilities: (B, C) softmax of the logits.

        Returns:
            the value and the (B, C) gradient.
        """
        terms, rows = self._terms, len(logits)
        top = logits.max(1, keepdims=True)
        z, p = logits - top, probabilities
        softened = p if terms.tau == 1.0 else _softmax(z / np.float32(terms.tau))
        mean = np.einsum("bc,bc->b", softened, z)[:, None]
        reward = softened * (z - mean + np.float32(terms.tau)) / np.float32(terms.tau)
        alpha = np.float32(terms.alpha)
        if terms.calibrator == "gmc":
            log_total = np.log(np.exp(z).sum(1, keepdims=True))
            values, gradient = alpha * (log_total + top) - top - mean, alpha * p - reward
        else:
            scale = 1 / _delta(reward, p * (z - mean), terms)
            calibration = alpha * (p if self._table is None else self._updated_rows(logits, p))
            excess = (calibration.sum(1, keepdims=True) - 1) * top
            values = (excess - ((p - calibration) * z).sum(1, keepdims=True)) * scale
            gradient = (calibration - reward) * scale
        return float(values.mean(dtype=np.float64)), gradient / np.float32(rows)

    def _updated_rows(self, logits: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Move the table towards this minibatch, then the row of each element's most probable action."""
        assert self._table is not None
        predicted = logits.argmax(1)
        one_hot = predicted[:, None] == np.arange(p.shape[1])
        counts = one_hot.sum(0)
        present = counts > 0
        means = np.einsum("bk,bc->kc", one_hot, p, dtype=np.float64)[present] / counts[present, None]
        moved = (1 - self._momentum) * self._table[present] + self._momentum * means.astype(np.float32)
        if np.isfinite(moved).all():  # as in EntropyObjective: NaN would stay for good
            self._table[present] = moved
        rows: np.ndarray = self._table[predicted]
        return rows


def entropy_gradient(log_p: np.ndarray, p: np.ndarray, entropy: np.ndarray) -> np.ndarray:
    """Gradient of the mean Shannon entropy with respect to the logits, −p (log p + H)/B, (B, C).

    Args:
        log_p: (B, C) normalised logits.
        p: (B, C) their probabilities.
        entropy: (B,) H in nats.
    """
    gradient: np.ndarray = -p * (log_p + entropy[:, None]) / np.float32(len(p))
    return gradient


def _softmax(z: np.ndarray) -> np.ndarray:
    """Of logits whose maximum is 0 or close to it."""
    exponentials = np.exp(z)
    softened: np.ndarray = exponentials / exponentials.sum(1, keepdims=True)
    return softened


def _delta(reward: np.ndarray, entropy_reward: np.ndarray, terms: ObjectiveSpec) -> np.ndarray:
    """δ, (B, 1)."""
    if terms.norm is None:
        return np.ones((len(reward), 1), np.float32)
    measured = entropy_reward if terms.delta == "entropy" else reward
    if terms.norm == "l1":
        delta = np.abs(measured).sum(1, keepdims=True)
    elif terms.norm == "l2":
        delta = np.sqrt(np.square(measured).sum(1, keepdims=True))
    else:
        delta = np.abs(measured).max(1, keepdims=True)
    floored: np.ndarray = np.maximum(delta, np.float32(ENTROPY_DELTA_FLOOR)) if terms.delta == "entropy" else delta
    return floored
