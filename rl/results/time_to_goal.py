"""Time to the goal: environment steps until the evaluation return first passes the task's threshold.

A run that never does is not left out and not given a number: it is a right-censored observation, of which only is known
that its time is longer than the run. So the share of runs that have arrived is Kaplan and Meier's estimate (Journal of
the American Statistical Association, 1958), by :func:`scipy.stats.ecdf`. Its summary is the restricted mean, the mean of
min(T, τ): how many of the first τ steps a run spends without the goal. With τ no later than the end of every run each
min(T, τ) is known, so the area under Kaplan and Meier's curve is an ordinary mean, with Student's t over the seeds and
paired differences as everywhere (:mod:`dem_apps.report.intervals`).

A time is that of the evaluation which passed: the policy may have been there up to one interval of evaluations before,
and a mean of few episodes may pass by luck. Both are alike for all arms that are evaluated alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dem_apps.report.intervals import LEVEL


@dataclass(frozen=True)
class GoalTime:
    """When a run arrived.

    Args:
        steps: at its first evaluation at or above the goal; of a run that had none, at its last evaluation.
        reached: whether it arrived; else its time is censored at ``steps``.
    """

    steps: int
    reached: bool

    def until(self, horizon: int) -> int:
        """Steps without the goal among the first ``horizon``, which must not be after a censored run's last ones."""
        if not self.reached and self.steps < horizon:
            raise ValueError(f"until: a run that was looked at for {self.steps} steps says nothing of {horizon}")
        return min(self.steps, horizon)


def goal_time(returns: Mapping[int, float], goal: float) -> GoalTime:
    """The time of one run.

    >>> goal_time({1000: 0.0, 2000: 0.9, 3000: 0.7}, goal=0.86)
    GoalTime(steps=2000, reached=True)
    >>> goal_time({1000: 0.0, 2000: 0.0}, goal=0.86)
    GoalTime(steps=2000, reached=False)

    Args:
        returns: step → mean return of the evaluation, at least one.
        goal: the return that has to be reached.
    """
    first = min((step for step, value in returns.items() if value >= goal), default=None)
    return GoalTime(max(returns), False) if first is None else GoalTime(first, True)


@dataclass(frozen=True)
class Arrivals:
    """Share of runs at the goal, as steps of a stair: from ``steps[i]`` on it is ``share[i]``.

    ``low`` and ``high`` are the ends of the pointwise 95 % interval (Greenwood's variance on the log-log scale); NaN
    where none or all have arrived, of which that interval says nothing.
    """

    steps: NDArray[np.float64]
    share: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def arrivals(times: Sequence[GoalTime]) -> Arrivals:
    """One minus Kaplan and Meier's estimate, beginning with 0 at step 0."""
    steps, reached = np.array([time.steps for time in times], float), np.array([time.reached for time in times])
    waiting = stats.ecdf(stats.CensoredData.right_censored(steps, ~reached)).sf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of shares of 0 and 1, which become NaN
        interval = waiting.confidence_interval(LEVEL, method="log-log")
    return Arrivals(
        np.r_[0.0, waiting.quantiles],
        np.r_[0.0, 1 - waiting.probabilities],
        np.r_[np.nan, 1 - interval.high.probabilities],
        np.r_[np.nan, 1 - interval.low.probabilities],
    )


def common_horizon(times: Sequence[GoalTime]) -> int:
    """The latest step up to which every one of the runs says whether it had arrived."""
    return min((time.steps for time in times if not time.reached), default=max(time.steps for time in times))
