"""Charts of runs as SVG, drawn by matplotlib."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dem_apps.errors import printable
from dem_apps.report.intervals import mean_band
from dem_apps.report.runs import Group, Run
from dem_apps.runtime.metrics_info import Metric

#: Okabe and Ito's colours, distinct under any colour vision; lines differ in their dashes as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":")
#: Characters of a text in a chart.
_LONGEST = 100


def mean_curve(
    axes: Axes,
    runs: Iterable[Run],
    metric: str,
    position: int,
    label: str,
    scale: float = 1.0,
    few: str = "",
) -> None:
    """Draw a metric's mean over runs against the steps that all have, with its 95 % CI; nothing where none has it.

    ``position`` gives colour and dashes, and ``few`` is the marker of the points where there are less than 30.
    """
    curves = [curve for run in runs if (curve := run.curve(metric))]
    if not curves:
        return
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = scale * np.array([[curve[step] for step in steps] for curve in curves])
    colour, dashes = COLOURS[position % len(COLOURS)], DASHES[position % len(DASHES)]
    marker = few if len(steps) < 30 else ""
    # else it has no place in matplotlib's legends
    label = f" {label}" if label.startswith("_") else label
    axes.plot(steps, values.mean(0), label=label, marker=marker, color=colour, linestyle=dashes)
    if len(curves) > 1 and steps:
        _, low, high = mean_band(values)
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)


def curve_charts(groups: Sequence[Group], metrics: Sequence[Metric]) -> list[str]:
    """A chart for each heading: of one run all its metrics, of several groups one chart a metric, mean and 95 % CI."""
    logged = {
        name for group in groups for run in group.runs for line in run.metrics for name in line
    }
    several = len(groups) > 1 or len(groups[0].runs) > 1
    charts: dict[str, list[Metric]] = {}
    for metric in metrics:
        if metric.name in logged:
            heading = (
                ", ".join(filter(None, (metric.chart, metric.title)))
                if several
                else metric.chart or metric.title
            )
            charts.setdefault(heading, []).append(metric)
    drawn = []
    for heading, members in charts.items():
        figure = Figure(figsize=(4.6, 3.1), layout="constrained")
        axes = figure.subplots()
        axes.set_title(heading, fontsize=10)
        axes.set_xlabel("step", fontsize=8)
        axes.set_ylabel(members[0].unit or members[0].note, fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        for position, (group, metric) in enumerate(
            (group, metric) for metric in members for group in groups
        ):
            label = group.name if len(groups) > 1 else metric.title
            mean_curve(axes, group.runs, metric.name, position, label, scale=metric.scale, few=".")
        drawn.append(_svg(figure, axes))
    return drawn


def _svg(figure: Figure, axes: Axes) -> str:
    """A data URI; texts, which may come from a run's files, are of few characters and no formulas."""
    legend = (
        axes.legend(fontsize=7, frameon=False)
        if len(axes.get_legend_handles_labels()[0]) > 1
        else None
    )
    for text in (axes.title, axes.yaxis.label, *(legend.get_texts() if legend else ())):
        text.set_text(printable(text.get_text())[:_LONGEST])
        text.set_parse_math(False)
    return f"data:image/svg+xml;base64,{base64.b64encode(drawn(figure, 'svg')).decode()}"


def drawn(figure: Figure, kind: str) -> bytes:
    """The content of a file of the ``kind`` ``svg`` or ``png``; the same figure gives the same bytes."""
    content = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "dem-apps", "svg.fonttype": "path"}):
        figure.savefig(
            content, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {}
        )
    return content.getvalue()
