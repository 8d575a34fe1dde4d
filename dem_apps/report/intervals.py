"""One way to say how sure a number is: Student's t over seeds, paired by seed where two settings share seeds.

Why this one. A seed is what is repeated, so seeds are the sample: episodes and images of one seed share its weights.
There are three to ten of them, where a bootstrap's percentiles are too narrow (of three values there are only ten
different resamples). Pairing takes out what a seed does to both settings alike: its weights, its order of images, its
rooms. Where a score is bounded and some seeds fail altogether, the interval of three seeds reaches beyond what a score
can be: that is what three such seeds are worth. Every table and figure of this project takes its intervals from here,
so equal runs have equal numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.95
Seed = TypeVar("Seed", bound=Hashable)


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, or a difference of two, with its 95 % confidence interval."""

    estimate: float  #: the mean, or this setting's mean minus the other's
    low: float | None  #: lower end; None where there are too few seeds
    high: float | None
    count: int  #: seeds; for an unpaired difference those of the smaller side
    paired: bool = False  #: a difference over seeds that both have

    def text(self, spec: str, difference: bool = False) -> str:
        """Estimate and ends in Markdown, numbers by a format ``spec`` such as ``.3f``; of a difference with signs, and
        bold where the seeds tell it from 0, which is no news of a mean.
        """
        sign = "+" * difference
        text = f"{self.estimate:{sign}{spec}}"
        if self.low is not None and self.high is not None:
            text += f" [{self.low:{sign}{spec}}, {self.high:{sign}{spec}}]"
        return f"**{text}**" if difference and self.excludes_zero else text

    @property
    def excludes_zero(self) -> bool:
        """Whether the seeds tell the number from 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean with Student's t interval; without one for a single value.

    >>> interval = mean_interval([1.0, 2.0, 3.0])
    >>> round(interval.low, 2), interval.estimate, round(interval.high, 2)
    (-0.48, 2.0, 4.48)
    """
    if len(values) < 2:
        return Interval(float(np.mean(values)), None, None, len(values))
    mean, low, high = mean_band(np.asarray(values, float)[:, None])
    return Interval(float(mean[0]), float(low[0]), float(high[0]), len(values))


def mean_band(values_SX: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """:func:`mean_interval` along a curve: mean, lower and upper end, (X,) each, of S ≥ 2 seeds at X steps."""
    mean = values_SX.mean(axis=0)
    half = stats.t.ppf(0.5 + LEVEL / 2, len(values_SX) - 1) * stats.sem(values_SX, axis=0)
    return mean, mean - half, mean + half


def difference_interval(ours: Mapping[Seed, float], control: Mapping[Seed, float]) -> Interval:
    """The difference of two settings' means with its interval.

    Where at least two seeds are in both, the mean of the differences by seed and Student's t over them. A side's only
    seed is compared with the same seed of the other, without an interval. Otherwise the difference of the means and
    Welch's t, without an interval where a side has a single value.

    Args:
        ours: score by seed, at least one.
        control: the same for what it is compared with.

    >>> difference_interval({0: 1.5, 1: 2.5, 2: 4.0}, {0: 1.0, 1: 2.0, 2: 3.5})
    Interval(estimate=0.5, low=0.5, high=0.5, count=3, paired=True)
    """
    common = [seed for seed in ours if seed in control]
    if len(common) > 1 or (common and min(len(ours), len(control)) == 1):
        paired = mean_interval([ours[seed] - control[seed] for seed in common])
        return Interval(paired.estimate, paired.low, paired.high, paired.count, paired=True)
    mine, theirs = list(ours.values()), list(control.values())
    estimate, count = float(np.mean(mine) - np.mean(theirs)), min(len(mine), len(theirs))
    if count < 2:
        return Interval(estimate, None, None, count)
    if np.ptp(mine) == np.ptp(theirs) == 0.0:  # of which scipy makes NaN
        return Interval(estimate, estimate, estimate, count)
    ends = stats.ttest_ind(mine, theirs, equal_var=False).confidence_interval(LEVEL)
    return Interval(estimate, float(ends.low), float(ends.high), count)


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (divisor n − 1); no deviation of a single value."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None
