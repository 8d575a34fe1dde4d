"""Value and gradient of a decoupled objective on a minibatch of action logits, in numpy.

On PPO's minibatches of 64 rows the calls of tensors and autograd cost more than the arithmetic, so the one pass
in C++ is called on numpy arrays.

Shapes: B rows, C actions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import torch

from dem_apps.entropy import FORBIDDEN_BELOW, ObjectiveSpec
from dem_apps.fused.build_kernel import address, load_kernel
from dem_apps.fused.kernel import KERNEL_MAX_CLASSES, pass_settings
from dem_apps.fused.one_pass import HUGE

#: A function of the logits, (B, C) float32, that returns the objective's mean over the rows, and its gradient (B, C).
NumpyForm = Callable[[np.ndarray], tuple[float, np.ndarray]]


class KernelObjective:
    """The mean of an objective over the rows, and its gradient; moves the class marginals as in ``train()`` mode.

    Only where :func:`has_kernel_for`.

    Args:
        spec: the member of the family.
        momentum: π of the class marginals.
        class_marginals: (C, C) float32, updated in place; None without the calibrator ``mec``.
        otherwise: serves rows with NaN, infinite logits or forbidden classes.
    """

    def __init__(
        self,
        spec: ObjectiveSpec,
        momentum: float,
        class_marginals: np.ndarray | None,
        otherwise: NumpyForm,
    ) -> None:
        kernel = load_kernel()
        assert kernel is not None  # the caller has asked for one
        self._pass = kernel.pass_float32
        self._finish = kernel.finish_float32
        self._spec = spec
        self._momentum = momentum
        self._marginals = class_marginals
        self._otherwise = otherwise
        self._work: dict[tuple[int, int], _Work] = {}

    def __call__(self, logits: np.ndarray) -> tuple[float, np.ndarray]:
        """The mean over the rows in nats, and its gradient with respect to the logits, (B, C) each."""
        rows, classes = logits.shape
        logits = np.ascontiguousarray(logits)
        work = self._work.get(logits.shape)
        if work is None:
            grouped = self._marginals is not None
            work = self._work[logits.shape] = _Work(rows, classes, self._spec, grouped)
        gradient = np.empty_like(logits)
        at_gradient = _pointer(gradient)
        self._pass(
            work.settings, _pointer(logits), None, at_gradient, *work.at_elements, work.at_sums
        )
        if self._marginals is None:
            value = float(work.sums[classes]) / rows
            if not abs(value) < HUGE:
                return self._otherwise(logits)
            gradient *= np.float32(1 / rows)
            return value, gradient
        counts = work.sums[:classes, None]
        means = work.tables[0] / np.maximum(counts, 1.0)
        moved = (1 - self._momentum) * self._marginals + self._momentum * means
        moved = np.where(counts > 0, moved, self._marginals).astype(np.float32)
        calibration = self._spec.alpha * moved
        values = work.sums[classes : 2 * classes].sum() + np.vdot(calibration, work.tables[1])
        if np.minimum.reduce(logits, None) <= FORBIDDEN_BELOW or not abs(values) < HUGE:
            return self._otherwise(logits)
        self._marginals[:] = moved
        work.weighted_rows[:] = calibration / rows
        self._finish(work.settings, at_gradient, *work.at_elements, *work.at_weights)
        return float(values / rows), gradient


def has_kernel_for(num_classes: int) -> bool:
    """Check that :class:`KernelObjective` serves so many actions on this machine.

    The first call builds the kernel.
    """
    return num_classes <= KERNEL_MAX_CLASSES and load_kernel() is not None


class _Work:
    """The arrays of calls on logits of one shape, made once: finding an address takes as long as the arithmetic."""

    def __init__(self, rows: int, classes: int, spec: ObjectiveSpec, grouped: bool) -> None:
        # the classes in the middle: one outer, C classes, B inner
        strides = rows * classes, 1, classes
        self.settings = pass_settings((1, classes, rows), strides, spec, grouped, threads=1)
        self.sums = np.empty(2 * classes + (2 * classes**2 if grouped else 0))
        self.tables = self.sums[2 * classes :].reshape(-1, classes, classes)
        self.weighted_rows = np.empty((classes, classes), np.float32)
        weights = np.full(classes, 1 / rows, np.float32)
        predicted, inverse_delta = np.empty(rows, np.int32), np.empty(rows, np.float32)
        self._arrays = predicted, inverse_delta, weights
        self.at_sums = _pointer(self.sums)
        self.at_elements = _pointer(predicted), _pointer(inverse_delta)
        self.at_weights = _pointer(weights), _pointer(self.weighted_rows)


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(address(array))


def by_equations(objective: Callable[..., torch.Tensor]) -> NumpyForm:
    """The objective's mean over the rows and autograd's gradient: slower, and right for every objective and logit."""

    def term(logits: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            leaf = torch.from_numpy(logits).requires_grad_()
            value = objective(leaf, dim=1)
            (gradient,) = torch.autograd.grad(value, leaf)
        return value.item(), gradient.numpy()

    return term


def entropy_gradient(log_p: np.ndarray, p: np.ndarray, entropy: np.ndarray) -> np.ndarray:
    """Return the gradient of the mean Shannon entropy by the logits, −p (log p + H)/B.

    Args:
        log_p: the log-probabilities (B, C).
        p: the probabilities (B, C).
        entropy: H (B,).
    """
    gradient: np.ndarray = -p * (log_p + entropy[:, None]) / np.float32(len(p))
    return gradient


def log_softmax(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities and probabilities of logits (B, C)."""
    shifted = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    total = np.add.reduce(exponentials, axis=1, keepdims=True)
    return shifted - np.log(total), exponentials / total
