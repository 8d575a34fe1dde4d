"""Value and gradient of a decoupled objective on a minibatch of action logits: the one pass in C++, called on numpy.

The fast one of the two forms of :data:`dem_apps.fused.numpy_objective.NumpyForm`. PPO's minibatches are 64 rows of a
few logits, where tensors, autograd and even numpy's calls cost more than the arithmetic.

Shapes: B rows, C actions.
"""

from __future__ import annotations

import ctypes

import numpy as np

from dem_apps.entropy import ObjectiveSpec
from dem_apps.fused.build_kernel import address, load_kernel
from dem_apps.fused.kernel import KERNEL_MAX_CLASSES, pass_settings


class KernelObjective:
    """As :class:`dem_apps.fused.numpy_objective.NumpyObjective`, where :func:`has_kernel_for`.

    Args:
        spec: the member of the family.
        momentum: π of the class marginals.
        class_marginals: (C, C) float32, updated in place; None without the calibrator ``mec``.
    """

    def __init__(self, spec: ObjectiveSpec, momentum: float, class_marginals: np.ndarray | None) -> None:
        kernel = load_kernel()
        assert kernel is not None  # the caller has asked for one
        self._pass, self._finish = kernel.pass_float32, kernel.finish_float32
        self._spec, self._momentum, self._marginals = spec, momentum, class_marginals
        self._settings: dict[tuple[int, int], ctypes.Structure] = {}

    def __call__(self, logits: np.ndarray, _probabilities: np.ndarray) -> tuple[float, np.ndarray]:
        """The mean over the rows in nats, and its gradient with respect to the logits, (B, C) each."""
        logits = np.ascontiguousarray(logits)
        rows, classes = logits.shape
        grouped = self._marginals is not None
        settings = self._settings.get(logits.shape)
        if settings is None:  # the classes in the middle: one outer, C classes with stride 1, B inner with stride C
            strides = rows * classes, 1, classes
            settings = pass_settings((1, classes, rows), strides, self._spec, grouped, threads=1)
            self._settings[logits.shape] = settings
        gradient = np.empty_like(logits)
        sums = np.empty(2 * classes + (2 * classes**2 if grouped else 0))
        at = ctypes.byref(settings), _pointer(logits), None, _pointer(gradient)
        if self._marginals is None:
            self._pass(*at, None, None, _pointer(sums))
            gradient *= np.float32(1 / rows)
            return float(sums[classes]) / rows, gradient
        predicted, inverse_delta = np.empty(rows, np.int32), np.empty(rows, np.float32)
        self._pass(*at, _pointer(predicted), _pointer(inverse_delta), _pointer(sums))
        tables = sums[2 * classes :].reshape(2, classes, classes)
        self._observe(sums[:classes], tables[0])
        calibration = self._spec.alpha * self._marginals
        value = (sums[classes : 2 * classes].sum() + np.vdot(calibration, tables[1])) / rows
        weights, weighted_rows = np.full(classes, 1 / rows, np.float32), (calibration / rows).astype(np.float32)
        self._finish(
            ctypes.byref(settings), _pointer(gradient), _pointer(predicted), _pointer(inverse_delta), _pointer(weights),
            _pointer(weighted_rows),
        )  # fmt: skip
        return float(value), gradient

    def _observe(self, counts: np.ndarray, sums: np.ndarray) -> None:
        """Move the class marginals towards this minibatch: rows that were predicted, by their mean probabilities."""
        assert self._marginals is not None
        present = counts > 0
        means = sums / np.maximum(counts, 1.0)[:, None]
        moved = (1 - self._momentum) * self._marginals + self._momentum * means
        if np.isfinite(moved).all():  # as in EntropyObjective: NaN would stay for good
            self._marginals[present] = moved[present]


def has_kernel_for(num_classes: int) -> bool:
    """Whether :class:`KernelObjective` serves so many actions on this machine; the first call builds the kernel."""
    return num_classes <= KERNEL_MAX_CLASSES and load_kernel() is not None


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(address(array))
