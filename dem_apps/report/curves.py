"""Which curves a report shows, of one run or of several settings over each other, and the charts of ``eval.json``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dem_apps.report.charts import Chart, Line, Series, line_chart
from dem_apps.report.groups import Group
from dem_apps.report.intervals import mean_band
from dem_apps.runtime.metrics_info import Histogram, Metric, Reliability
from dem_apps.runtime.run_reader import Run, at, number

_OVER_SEEDS = "line: mean over seeds; band: 95 % confidence interval; thin: single runs"


def run_charts(run: Run, metrics: Sequence[Metric]) -> tuple[list[Chart], list[Chart]]:
    """The charts of one run: those that its metrics are put in, and one for every further metric."""
    marks = [step for step, _ in run.alarms()]
    bands = {metric.std for metric in metrics if metric.std}
    shared: dict[str, list[Metric]] = {}
    for metric in metrics:
        if metric.chart and run.curve(metric.name)[0]:
            shared.setdefault(metric.chart, []).append(metric)
    main = [_run_chart(run, heading, members, marks) for heading, members in shared.items()]
    further = [metric for metric in _further(metrics, [run]) if metric.name not in bands]
    return main, [_run_chart(run, metric.title, [metric], marks) for metric in further]


def group_charts(groups: Sequence[Group], metrics: Sequence[Metric]) -> tuple[list[Chart], list[Chart]]:
    """The same over settings: each chart has one metric and one series per setting."""
    headings = [metric.chart for metric in metrics]
    main = []
    for metric in metrics:
        if metric.chart:
            alone = headings.count(metric.chart) == 1
            main.append(_group_chart(groups, metric, metric.chart if alone else f"{metric.chart}, {metric.title}"))
    further = _further(metrics, [run for group in groups for run in group.runs])
    other = [_group_chart(groups, metric, metric.title) for metric in further]
    return [chart for chart in main if chart is not None], [chart for chart in other if chart is not None]


def reliability_chart(about: Reliability, groups: Sequence[Group]) -> Chart | None:
    """A line through bins, the items of a setting's seeds put together; None where no file has it."""
    series = [Series("as it should be", (0.0, 1.0), (0.0, 1.0), colour=None)]
    for colour, group in enumerate(groups):
        points = _pooled_bins(about, group)
        if points:
            series.append(Series(group.name, [x for x, _ in points], [y for _, y in points], colour=colour))
    return line_chart(about.title, series, about.note, about.x_title, (0, 1)) if len(series) > 1 else None


def histogram_chart(about: Histogram, groups: Sequence[Group]) -> Chart | None:
    """A line per part, as shares of all items; of several settings one per setting over all parts."""
    series: list[Series] = []
    for colour, group in enumerate(groups):
        edges, parts = _pooled_counts(about, group)
        total = sum(map(sum, parts))
        if not total:
            continue
        middle = [(low + high) / 2 for low, high in pairwise(edges)]
        if len(groups) > 1:
            shares = [sum(column) / total for column in zip(*parts, strict=True)]
            series.append(Series(group.name, middle, shares, colour=colour))
            continue
        for number_of, (part, counts) in enumerate(zip(about.parts, parts, strict=True)):
            series.append(Series(part.title, middle, [count / total for count in counts], colour=number_of))
    return line_chart(about.title, series, about.note, about.x_title, (0, None)) if series else None


def _further(metrics: Sequence[Metric], runs: Sequence[Run]) -> list[Metric]:
    """Metrics without a shared chart that some run has, those that nobody describes behind the others."""
    described = {metric.name: metric for metric in metrics}
    logged = dict.fromkeys(name for run in runs for name in run.metric_names())
    known = [metric for metric in metrics if not metric.chart and metric.name in logged]
    return known + [Metric(name, name) for name in logged if name not in described]


def _run_chart(run: Run, heading: str, metrics: Sequence[Metric], marks: Sequence[int]) -> Chart:
    series = []
    for colour, metric in enumerate(metrics):
        steps, values = _scaled(run, metric.name, metric.scale)
        stds = dict(zip(*_scaled(run, metric.std, metric.scale), strict=True)) if metric.std else {}
        band = None
        if stds and all(step in stds for step in steps):
            low = [value - stds[step] for step, value in zip(steps, values, strict=True)]
            band = low, [value + stds[step] for step, value in zip(steps, values, strict=True)]
        series.append(Series(metric.title, steps, values, band, colour=colour))
    banded = ", ".join(line.name for line in series if line.band is not None)
    note = _note(metrics[0], f"band: ± one standard deviation, {banded}" if banded else "")
    return line_chart(heading, series, note, bounds=(metrics[0].low, metrics[0].high), marks=marks)


def _group_chart(groups: Sequence[Group], metric: Metric, heading: str) -> Chart | None:
    made = [_group_series(group, metric, colour) for colour, group in enumerate(groups)]
    series = [one for one in made if one is not None]
    if not series:
        return None
    note = _note(metric, _OVER_SEEDS if any(line.faint for line in series) else "")
    return line_chart(heading, series, note, bounds=(metric.low, metric.high))


def _note(metric: Metric, band: str) -> str:
    """Unit, meaning and direction of a metric, its key where the heading is another, and what a band is."""
    key = metric.name if metric.title != metric.name and not metric.chart else ""
    better = f"{metric.better} is better" if metric.better else ""
    return "; ".join(filter(None, (", ".join(filter(None, (key, metric.unit, metric.note, better))), band)))


def _scaled(run: Run, key: str, scale: float) -> tuple[list[int], list[float]]:
    steps, values = run.curve(key)
    return steps, [scale * value for value in values]


def _group_series(group: Group, metric: Metric, colour: int) -> Series | None:
    """Mean and its interval at the steps that all runs of the group have."""
    lines: list[Line] = [curve for run in group.runs if (curve := _scaled(run, metric.name, metric.scale))[0]]
    if not lines:
        return None
    common = sorted(set.intersection(*(set(steps) for steps, _ in lines)))
    if len(lines) == 1 or not common:
        return Series(group.name, *lines[0], faint=tuple(lines[1:]), colour=colour)
    tables = [dict(zip(*line, strict=True)) for line in lines]
    mean, low, high = mean_band(np.array([[table[step] for step in common] for table in tables]))
    return Series(group.name, common, mean.tolist(), (low.tolist(), high.tolist()), tuple(lines), colour)


def _pooled_bins(about: Reliability, group: Group) -> list[tuple[float, float]]:
    """Mean x and y of each bin that holds an item."""
    sums: dict[int, list[float]] = {}
    for run in group.runs:
        columns = [at(run.evaluation, *key.split(".")) for key in (about.count, about.x, about.y)]
        if not all(isinstance(column, list) for column in columns):
            continue
        for position, row in enumerate(zip(*columns, strict=False)):
            count, x, y = (number(value) for value in row)
            if count and x is not None and y is not None:
                total = sums.setdefault(position, [0.0, 0.0, 0.0])
                for i, value in enumerate((count, count * x, count * y)):
                    total[i] += value
    return [(sums[i][1] / sums[i][0], sums[i][2] / sums[i][0]) for i in sorted(sums) if sums[i][0]]


def _pooled_counts(about: Histogram, group: Group) -> tuple[list[float], list[list[float]]]:
    """Edges, and counts by part, summed over the runs that have the first one's edges."""
    edges: list[float] = []
    counts: list[list[float]] = []
    for run in group.runs:
        own = _numbers(at(run.evaluation, *about.edges.split(".")))
        parts = [_numbers(at(run.evaluation, *part.key.split("."))) for part in about.parts]
        if len(own) < 2 or any(len(part) != len(own) - 1 for part in parts):
            continue
        if not edges:
            edges, counts = own, parts
        elif own == edges:
            counts = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(counts, parts, strict=True)]
    return edges, counts


def _numbers(values: object) -> list[float]:
    numbers = [number(value) for value in values] if isinstance(values, list) else []
    found = [value for value in numbers if value is not None]
    return found if len(found) == len(numbers) else []
