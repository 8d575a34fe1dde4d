"""The figure of times to the goal: share of runs that have arrived, against environment steps."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from rl.results.drawing import legend_above, outer_labels, panels_of, styles
from rl.results.goal_table import goal_times
from rl.results.kaplan_meier import arrivals
from rl.results.read_runs import Result, names


def goal_figure(results: Sequence[Result]) -> Figure | None:
    """A panel per environment that has a goal, a stair per arm with its 95 % interval; None where none has."""
    envs, arms = names(results)
    envs = [env for env in envs if any(goal_times(results, env, arm) for arm in arms)]
    if not envs:
        return None
    figure, panels = panels_of(envs)
    lines = {}
    for env, panel in panels.items():
        for arm, (colour, line, marker) in zip(arms, styles(len(arms)), strict=True):
            times = list(goal_times(results, env, arm).values())
            if not times:
                continue
            found = arrivals(times)
            (lines[arm],) = panel.plot(
                found.steps, found.share, color=colour, linestyle=line, marker=marker, markersize=3.5, linewidth=1.6,
                drawstyle="steps-post",
            )  # fmt: skip
            panel.fill_between(found.steps, found.low, found.high, step="post", color=colour, alpha=0.13, linewidth=0)
        panel.set_xlim(left=0)
        panel.set_ylim(-0.03, 1.03)
    steps = "environment steps (stair: Kaplan and Meier; band: 95 % interval, pointwise)"
    outer_labels(figure, steps, "share of runs that have reached the goal")
    legend_above(figure, lines)
    return figure
