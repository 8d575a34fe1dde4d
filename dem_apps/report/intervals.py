"""One way to say how sure a number is: Student's t over seeds, paired by seed where two settings share seeds.

A seed is the unit: its episodes and images share weights. For three to ten seeds a bootstrap's percentiles are too
narrow. The interval of a bounded score may reach beyond its bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, or a difference of two, with its 95 % confidence interval."""

    estimate: float  #: the mean, or this setting's mean minus the other's
    low: float | None  #: lower end; None where there are too few seeds
    high: float | None

    @property
    def excludes_zero(self) -> bool:
        """True if the interval does not include 0; False without an interval."""
        if self.low is None or self.high is None:
            return False
        return self.low > 0 or self.high < 0


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean with Student's t interval; without one for a single value.

    >>> interval = mean_interval([1.0, 2.0, 3.0])
    >>> round(interval.low, 2), interval.estimate, round(interval.high, 2)
    (-0.48, 2.0, 4.48)
    """
    if len(values) < 2:
        return Interval(float(values[0]), None, None)
    band = mean_band(np.asarray(values, float)[:, None])
    return Interval(*(end.item() for end in band))


def mean_band(values_SX: np.ndarray) -> tuple[np.ndarray, ...]:
    """Compute :func:`mean_interval` along a curve.

    Args:
        values_SX: values of S ≥ 2 seeds at X steps.

    Returns:
        The mean, the lower and the upper end, (X,) each.
    """
    mean = values_SX.mean(axis=0)
    half = stats.t.ppf(0.5 + LEVEL / 2, len(values_SX) - 1) * stats.sem(values_SX, axis=0)
    return mean, mean - half, mean + half


def difference_interval(scores: Mapping[Any, float], control: Mapping[Any, float]) -> Interval:
    """The difference of two settings' means with its interval; each has at least one score, by seed.

    With two common seeds or more it is the mean of their differences, with Student's t. A side's only seed is compared
    with the same seed of the other, without an interval. Else it is the difference of the means with Welch's t, without
    an interval where a side has a single value.

    >>> difference_interval({0: 1.5, 1: 2.5, 2: 4.0}, {0: 1.0, 1: 2.0, 2: 3.5})
    Interval(estimate=0.5, low=0.5, high=0.5)
    """
    common = [seed for seed in scores if seed in control]
    if len(common) > 1 or (common and min(len(scores), len(control)) == 1):
        return mean_interval([scores[seed] - control[seed] for seed in common])
    values, baseline = list(scores.values()), list(control.values())
    estimate = float(np.mean(values) - np.mean(baseline))
    if min(len(values), len(baseline)) < 2:
        return Interval(estimate, None, None)
    if np.ptp(values) == np.ptp(baseline) == 0.0:  # of which scipy makes NaN
        return Interval(estimate, estimate, estimate)
    ends = stats.ttest_ind(values, baseline, equal_var=False).confidence_interval(LEVEL)
    return Interval(estimate, float(ends.low), float(ends.high))
