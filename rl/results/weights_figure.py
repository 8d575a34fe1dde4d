"""Score and time to the goal against the weight of the entropy term, on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from dem_apps.report.intervals import mean_interval
from rl.results.described_metrics import ACTIONS
from rl.results.drawing import Style, legend_above, outer_labels, steps_text, styles, title_above
from rl.results.read_runs import Result, names
from rl.results.weights import NONE, by_weight, returns_of, steps_of


def weights_figure(results: Sequence[Result]) -> Figure | None:
    """A column per environment: returns above, the time to the goal below; None where no term has three weights.

    Points are means over seeds with their 95 % interval (Student's t); 'none' is a line across, since it has no weight.
    """
    found = {env: terms for env in names(results)[0] if (terms := by_weight(results, env))}
    if not found:
        return None
    all_terms = list(dict.fromkeys(term for of_env in found.values() for term in of_env))
    style = dict(zip(all_terms, styles(len(all_terms)), strict=True))
    figure = Figure(figsize=(2.2 + 3.2 * len(found), 8.4), layout="constrained")
    panels = figure.subplots(3, len(found), squeeze=False)
    lines: dict[str, Line2D] = {}
    for column, (env, of_env) in enumerate(found.items()):
        *scores, time = panels[:, column]
        title_above(scores[0], env)
        scores[0].sharey(scores[1])  # the two kinds of actions are of the same policies
        for term, runs in of_env.items():
            for score, actions in zip(scores, ACTIONS, strict=True):
                returns = {weight: returns_of(group, actions) for weight, group in runs.items()}
                lines[term] = _draw(score, returns, style[term], term)
            _draw(time, {weight: steps_of(group, results, env) for weight, group in runs.items()}, style[term], term)
        for panel in (*scores, time):
            panel.set_xscale("log")
            panel.grid(alpha=0.3)
        time.set_ylim(bottom=0.0)  # an interval may reach below, a time cannot
        time.yaxis.set_major_formatter(FuncFormatter(steps_text))
    for panel, actions in zip(panels[:, 0], ACTIONS, strict=False):
        panel.set_ylabel(f"return, {actions} actions")
    panels[-1][0].set_ylabel("steps to the goal\n(restricted mean)")
    outer_labels(figure, "weight of the entropy term (mean over seeds; bars: 95 % interval, Student's t)")
    legend_above(figure, lines)
    return figure


def _draw(panel: Axes, values: dict[float, list[float]], style: Style, term: str) -> Line2D:
    colour, line, marker = style
    means = {weight: mean_interval(seeds) for weight, seeds in values.items() if seeds}
    if term == NONE:
        level = means[0.0].estimate if 0.0 in means else np.nan
        return panel.axhline(level, color=colour, linestyle=line, linewidth=1.6)
    (drawn,) = panel.plot(
        list(means), [interval.estimate for interval in means.values()], color=colour, linestyle=line, marker=marker,
        markersize=4, linewidth=1.6,
    )  # fmt: skip
    for weight, interval in means.items():
        if interval.low is not None and interval.high is not None:
            panel.plot([weight, weight], [interval.low, interval.high], color=colour, linewidth=0.8, alpha=0.5)
    return drawn
