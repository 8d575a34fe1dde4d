"""Interquartile means, their bootstrap intervals and probabilities of improvement, over seeds.

The three figures and their reasons are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", NeurIPS 2021 (library: rliable). Letters: S seeds, R resamples, T tasks (environments).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95


def iqm(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """The mean without the lowest and the highest quarter of the values along ``axis``.

    As ``scipy.stats.trim_mean(values, 0.25)``: a quarter is rounded down, so of 3 values none is left out, of 6 two.

    >>> float(iqm(np.array([0.0, 1.0, 2.0, 9.0])))  # the mean of 1 and 2
    1.5
    """
    count = values.shape[axis]
    cut = count // 4
    mean: np.ndarray = np.sort(values, axis=axis).take(range(cut, count - cut), axis=axis).mean(axis=axis)
    return mean


def iqm_interval(tasks: Sequence[np.ndarray], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """95 % percentile bootstrap of the IQM over the values of all tasks, seeds drawn within each task (stratified).

    Args:
        tasks: (S, …) per task; S may differ, the rest may not.
        seed: of the resampling: equal input gives equal output.

    Returns:
        lower and upper ends, shaped like the rest.
    """
    return _percentiles(iqm(np.concatenate(_resampled(tasks, seed), axis=1), axis=1))


def improvement(ours: Sequence[np.ndarray], baseline: Sequence[np.ndarray]) -> float:
    """The probability that a run of ours is better than one of the baseline, ties counted half; mean over tasks.

    Args:
        ours: (S,) per task.
        baseline: the same tasks; S may differ.

    >>> improvement([np.array([1.0, 3.0])], [np.array([1.0, 2.0])])  # of four pairs two are better, one is a tie
    0.625
    """
    pairs = zip(ours, baseline, strict=True)
    return float(np.mean([_better(x[None], y[None])[0] for x, y in pairs]))


def improvement_interval(
    ours: Sequence[np.ndarray], baseline: Sequence[np.ndarray], seed: int = 0
) -> tuple[float, float]:
    """95 % percentile bootstrap of :func:`improvement`, seeds of both drawn within each task."""
    pairs = zip(_resampled(ours, seed), _resampled(baseline, seed + 1), strict=True)
    low, high = _percentiles(np.mean([_better(x, y) for x, y in pairs], axis=0))
    return float(low), float(high)


def _better(ours_RS: np.ndarray, baseline_RS: np.ndarray) -> np.ndarray:
    difference = ours_RS[:, :, None] - baseline_RS[:, None, :]
    share: np.ndarray = ((difference > 0) + 0.5 * (difference == 0)).mean(axis=(1, 2))
    return share


def _resampled(tasks: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    """(R, S, …) per task."""
    random = np.random.default_rng(seed)
    return [values[random.integers(len(values), size=(RESAMPLES, len(values)))] for values in tasks]


def _percentiles(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.percentile(samples, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], axis=0)
    return low, high
