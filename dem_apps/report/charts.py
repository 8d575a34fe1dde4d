"""Charts of runs as SVG, drawn by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dem_apps.report.intervals import mean_band
from dem_apps.report.pictures import data_uri
from dem_apps.report.runs import Groups, Run, runs_of
from dem_apps.runtime.metrics_info import Metric

#: Okabe and Ito's colours, distinct under any colour vision; lines differ in their dashes as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":")
#: Texts may come from a run's files: they are no formulas.
_STYLE: Any = {
    "text.parse_math": False,
    "font.size": 8,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
}


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

    Args:
        axes: takes the line.
        runs: of one arm.
        metric: a key of ``metrics.jsonl``.
        position: gives colour and dashes.
        label: of the line in the legend.
        scale: values are multiplied by it.
        few: the marker of the points where there are less than 30.
    """
    curves = [curve for run in runs if (curve := run.curve(metric))]
    if not curves:
        return
    steps = sorted(set.intersection(*map(set, curves)))
    values = scale * np.array([[curve[step] for step in steps] for curve in curves])
    colour, dashes = COLOURS[position % len(COLOURS)], DASHES[position % len(DASHES)]
    marker = few if len(steps) < 30 else ""
    axes.plot(steps, values.mean(0), label=label, marker=marker, color=colour, linestyle=dashes)
    if len(curves) > 1 and steps:
        _, low, high = mean_band(values)
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)


def curve_charts(groups: Groups, label_free: bool) -> list[str]:
    """Draw charts as data URIs: of one run all its metrics, of several groups one chart a metric, mean and 95 % CI.

    Args:
        groups: the arms.
        label_free: whether the metrics are those that are known without labels, or all others.
    """
    runs = runs_of(groups)
    charts: dict[str, list[Metric]] = {}
    for metric in runs[0].info.metrics:
        if metric.label_free == label_free and any(run.curve(metric.name) for run in runs):
            heading = metric.chart or metric.title
            if len(runs) > 1 and metric.chart:
                heading = f"{metric.chart}, {metric.title}"
            charts.setdefault(heading, []).append(metric)
    return [_chart(heading, members, groups) for heading, members in charts.items()]


def _chart(heading: str, metrics: Sequence[Metric], groups: Groups) -> str:
    """Draw the metrics of one heading, each a line per group."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(4.6, 3.1), layout="constrained")
        axes = figure.subplots()
        axes.set(title=heading, xlabel="step", ylabel=metrics[0].unit or metrics[0].note)
        lines = [(metric, group) for metric in metrics for group in groups]
        for position, (metric, group) in enumerate(lines):
            label = group.name if len(groups) > 1 else metric.title
            mean_curve(axes, group.runs, metric.name, position, label, metric.scale, ".")
        if len(lines) > 1:
            axes.legend()
        return data_uri("image/svg+xml", drawn(figure, "svg"))


def drawn(figure: Figure, kind: str) -> bytes:
    """Return the content of a ``svg`` or ``png`` file; the same figure gives the same bytes."""
    content = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    with mpl.rc_context({"svg.hashsalt": "dem-apps", "svg.fonttype": "path"}):
        figure.savefig(content, format=kind, dpi=150, metadata=metadata)
    return content.getvalue()
