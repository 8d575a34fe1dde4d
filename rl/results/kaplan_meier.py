"""Share of runs that have reached the goal, those that never did being censored: Kaplan and Meier, by scipy.

A module of its own, since scipy takes a second to import and a training needs none of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dem_apps.report.intervals import LEVEL
from rl.results.time_to_goal import GoalTime


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
