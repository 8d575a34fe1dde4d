"""Time to the goal: environment steps until the evaluation return first passes the task's threshold.

A run that never does is not left out and not given a number: it is a right-censored observation, of which only is known
that its time is longer than the run. So the share of runs that have arrived is Kaplan and Meier's estimate (Journal of
the American Statistical Association, 1958; :mod:`rl.results.kaplan_meier`). Its summary is the restricted mean, the
mean of min(T, τ): how many of the first τ steps a run spends without the goal. With τ no later than the end of every
censored run each min(T, τ) is known, so the area above the curve of runs that have arrived is an ordinary mean, with
Student's t over the seeds and paired differences as everywhere (:mod:`dem_apps.report.intervals`).

A time is that of the evaluation which passed: the policy may have been there up to one interval of evaluations before,
and a mean of few episodes may pass by luck. Both are alike for all arms that are evaluated alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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


def common_horizon(times: Sequence[GoalTime]) -> int:
    """The latest step up to which every one of the runs says whether it had arrived."""
    return min((time.steps for time in times if not time.reached), default=max(time.steps for time in times))
