"""The table of times to the goal (Markdown): runs that arrived, and the restricted mean with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from dem_apps.report.intervals import difference_interval, mean_interval
from dem_apps.report.text_tables import markdown
from rl.results.read_runs import Result, names, select
from rl.results.returns_table import short
from rl.results.time_to_goal import GoalTime, common_horizon

GOAL_NOTE = (
    "Time to the goal: environment steps until the mean return of an evaluation under sampled actions first is at "
    "least the goal. A run that never was is counted as censored; the restricted mean is the mean of min(T, τ) over "
    "seeds, the area above Kaplan and Meier's curve of runs at the goal up to τ, which no censored run of the "
    "environment ends before. Intervals and differences as above; fewer steps are better. Bold: 0 lies outside.\n"
)


def goal_times(results: Sequence[Result], env: str, arm: str) -> dict[int, GoalTime]:
    """Times by seed, of the runs that have one."""
    return {run.seed: run.goal for run in select(results, env, arm) if run.goal is not None}


def goal_table(results: Sequence[Result], baseline: str | None) -> str:
    """A row per environment and arm that have times; empty where none has.

    Args:
        results: finished runs.
        baseline: the arm that the others are compared with; None leaves the comparison out.
    """
    envs, arms = names(results)
    columns = ["environment", "arm", "at the goal", "τ", "steps to the goal: restricted mean [95 %]"]
    columns += [f"− {baseline} [95 %]"] if baseline else []
    rows = []
    for env in envs:
        times = {arm: found for arm in arms if (found := goal_times(results, env, arm))}
        if times:
            horizon = common_horizon([time for of_arm in times.values() for time in of_arm.values()])
            rows += [[short(env), *_row(arm, times, horizon, baseline)] for arm in times]
    return markdown(columns, rows).removesuffix("\n") if rows else ""


def _row(arm: str, times: dict[str, dict[int, GoalTime]], horizon: int, baseline: str | None) -> list[str]:
    ours = {seed: float(time.until(horizon)) for seed, time in times[arm].items()}
    reached = sum(time.reached for time in times[arm].values())
    cells = [arm, f"{reached} of {len(ours)}", f"{horizon:,}", mean_interval(list(ours.values())).text(",.0f")]
    if baseline is None:
        return cells
    if arm == baseline:
        return [*cells, ""]
    theirs = {seed: float(time.until(horizon)) for seed, time in times.get(baseline, {}).items()}
    return [*cells, difference_interval(ours, theirs).text(",.0f", difference=True) if theirs else "no baseline"]
