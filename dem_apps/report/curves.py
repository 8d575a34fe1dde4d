"""Which curves a report shows, of one run or of several settings over each other, and the charts of ``eval.json``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dem_apps.report.charts import Chart, Line, Series, line_chart
from dem_apps.report.groups import Group
from dem_apps.report.run import Run, at, number

_OVER_SEEDS = "line: mean over seeds; band: ± one standard deviation; thin: single runs"


@dataclass(frozen=True)
class Curve:
    """A chart of a run.

    Args:
        title: its heading.
        keys: the metrics in it, with what the legend calls them.
        note: unit and meaning.
        bounds: what the vertical axis shows at least.
        spread: by metric, the metric that is its standard deviation.
    """

    title: str
    keys: tuple[tuple[str, str], ...]
    note: str = ""
    bounds: tuple[float | None, float | None] = (None, None)
    spread: tuple[tuple[str, str], ...] = ()


CURVES = {
    "seg": (
        Curve("Target mean IoU", (("val/miou", "mean IoU"),), "0 to 1, validation set", (0, None)),
        Curve("Target pixel accuracy", (("val/pixel_accuracy", "pixel accuracy"),), "0 to 1, validation set"),
        Curve("Mean entropy on the target", (("val/mean_entropy", "validation"), ("target/entropy", "training")),
              "nats", (0, None)),
        Curve("Calibration error", (("val/calibration_error", "calibration error"),), "lower is better", (0, None)),
        Curve("Label-free: information maximisation", (("label_free/im", "IM"),), "higher is better"),
        Curve("Label-free: entropy", (("label_free/entropy", "entropy"),), "minus entropy / log C, higher is better"),
        Curve("Label-free: soft neighbourhood density", (("label_free/snd", "SND"),), "nats, higher is better"),
        Curve("Largest class", (("label_free/largest_class_share", "largest class"),),
              "share of pixels in the class predicted most; near 1 is a collapse", (0, 1)),
        Curve("Source cross-entropy",
              (("source/cross_entropy_main", "main"), ("source/cross_entropy_aux", "auxiliary")), "nats", (0, None)),
        Curve("Objective on the target", (("target/objective_main", "main"), ("target/objective_aux", "auxiliary")),
              "as trained; values of different objectives cannot be compared"),
    ),
    "rl": (
        Curve("Return", (("eval/mean_return_sampled", "sampled"), ("eval/mean_return_greedy", "greedy")),
              "evaluation; band: ± one standard deviation over episodes, sampled actions",
              spread=(("eval/mean_return_sampled", "eval/std_return_sampled"),)),
        Curve("Success rate", (("eval/success_rate_sampled", "sampled"), ("eval/success_rate_greedy", "greedy")),
              "share of evaluation episodes", (0, 1)),
        Curve("Policy entropy", (("train/policy_entropy", "policy entropy"),), "nats", (0, None)),
        Curve("Return in training", (("rollout/ep_rew_mean", "mean of the last 100 episodes"),), "sampled actions"),
        Curve("Entropy objective", (("train/entropy_objective", "entropy objective"),),
              "as trained; values of different objectives cannot be compared"),
    ),
    "unknown": (),
}  # fmt: skip


def run_charts(run: Run) -> tuple[list[Chart], list[Chart]]:
    """The charts of one run: those that :data:`CURVES` names, and one for every other metric."""
    marks = [step for step, _ in run.alarms()]
    main = [chart for curve in CURVES[run.kind] if (chart := _run_chart(run, curve, marks)) is not None]
    named = {key for curve in CURVES[run.kind] for key, _ in curve.keys}
    named |= {spread for curve in CURVES[run.kind] for _, spread in curve.spread}
    other = [Curve(name, ((name, name),)) for name in run.metric_names() if name not in named]
    return main, [chart for curve in other if (chart := _run_chart(run, curve, marks)) is not None]


def group_charts(kind: str, groups: Sequence[Group]) -> tuple[list[Chart], list[Chart]]:
    """The same over settings: each chart has one metric and one series per setting."""
    main = []
    for curve in CURVES[kind]:
        for key, name in curve.keys:
            title = curve.title if len(curve.keys) == 1 else f"{curve.title}, {name}"
            # the band is over seeds here, and not over episodes
            note = curve.note if not curve.spread else "evaluation"
            main.append(_group_chart(groups, key, title, note, curve.bounds))
    named = {key for curve in CURVES[kind] for key, _ in curve.keys}
    names = dict.fromkeys(name for group in groups for run in group.runs for name in run.metric_names())
    other = [_group_chart(groups, name, name, "", (None, None)) for name in names if name not in named]
    return [chart for chart in main if chart is not None], [chart for chart in other if chart is not None]


def reliability_chart(groups: Sequence[Group]) -> Chart | None:
    """Accuracy over confidence, the pixels of a setting's seeds put together; None where no file has it."""
    series = [Series("as it should be", (0.0, 1.0), (0.0, 1.0), colour=None)]
    for colour, group in enumerate(groups):
        points = _reliability(group)
        if points:
            series.append(Series(group.name, [x for x, _ in points], [y for _, y in points], colour=colour))
    if len(series) == 1:
        return None
    return line_chart("Reliability", series, "accuracy of the pixels of each bin; below the diagonal is overconfident",
                      "confidence", (0, 1))  # fmt: skip


def entropy_chart(groups: Sequence[Group]) -> Chart | None:
    """Histograms of entropy over wrong and right pixels; of several settings over all pixels."""
    series: list[Series] = []
    several = len(groups) > 1
    for colour, group in enumerate(groups):
        edges, wrong, right = _histogram(group)
        total = sum(wrong) + sum(right)
        if not total:
            continue
        middle = [(low + high) / 2 for low, high in pairwise(edges)]
        if several:
            shares = [(w + r) / total for w, r in zip(wrong, right, strict=True)]
            series.append(Series(group.name, middle, shares, colour=colour))
        else:
            for number_of, name, counts in ((0, "right pixels", right), (1, "wrong pixels", wrong)):
                series.append(Series(name, middle, [count / total for count in counts], colour=number_of))
    if not series:
        return None
    return line_chart(
        "Entropy of the pixels", series, "share of the labelled pixels per bin", "entropy / log C", (0, None)
    )


def _run_chart(run: Run, curve: Curve, marks: Sequence[int]) -> Chart | None:
    series = []
    spreads = dict(curve.spread)
    for colour, (key, name) in enumerate(curve.keys):
        steps, values = run.curve(key)
        if not steps:
            continue
        stds = dict(zip(*run.curve(spreads[key]), strict=True)) if key in spreads else {}
        band = None
        if all(step in stds for step in steps):
            low = [value - stds[step] for step, value in zip(steps, values, strict=True)]
            band = low, [value + stds[step] for step, value in zip(steps, values, strict=True)]
        series.append(Series(name, steps, values, band if stds else None, colour=colour))
    return line_chart(curve.title, series, curve.note, bounds=curve.bounds, marks=marks) if series else None


def _group_chart(
    groups: Sequence[Group], key: str, title: str, note: str, bounds: tuple[float | None, float | None]
) -> Chart | None:
    series = [one for colour, group in enumerate(groups) if (one := _group_series(group, key, colour)) is not None]
    if not series:
        return None
    over_seeds = _OVER_SEEDS if any(line.faint for line in series) else ""
    return line_chart(title, series, "; ".join(filter(None, (note, over_seeds))), bounds=bounds)


def _group_series(group: Group, key: str, colour: int) -> Series | None:
    """Mean and standard deviation at the steps that all runs of the group have."""
    lines: list[Line] = [curve for run in group.runs if (curve := run.curve(key))[0]]
    if not lines:
        return None
    common = sorted(set.intersection(*(set(steps) for steps, _ in lines)))
    if len(lines) == 1 or not common:
        return Series(group.name, *lines[0], faint=tuple(lines[1:]), colour=colour)
    tables = [dict(zip(*line, strict=True)) for line in lines]
    columns = [[table[step] for table in tables] for step in common]
    means, stds = [statistics.fmean(column) for column in columns], [statistics.stdev(column) for column in columns]
    low = [mean - std for mean, std in zip(means, stds, strict=True)]
    high = [mean + std for mean, std in zip(means, stds, strict=True)]
    return Series(group.name, common, means, (low, high), tuple(lines), colour)


def _reliability(group: Group) -> list[tuple[float, float]]:
    """Mean confidence and accuracy of each bin that holds a pixel."""
    sums: dict[int, list[float]] = {}
    for run in group.runs:
        columns = [at(run.evaluation, "reliability", key) for key in ("pixels", "confidence", "accuracy")]
        if not all(isinstance(column, list) for column in columns):
            continue
        for position, row in enumerate(zip(*columns, strict=False)):
            pixels, confidence, accuracy = (number(value) for value in row)
            if pixels and confidence is not None and accuracy is not None:
                total = sums.setdefault(position, [0.0, 0.0, 0.0])
                for i, value in enumerate((pixels, pixels * confidence, pixels * accuracy)):
                    total[i] += value
    return [(sums[i][1] / sums[i][0], sums[i][2] / sums[i][0]) for i in sorted(sums)]


def _histogram(group: Group) -> tuple[list[float], list[float], list[float]]:
    """Edges, and counts of wrong and of right pixels, summed over the runs that have the first one's edges."""
    edges: list[float] = []
    counts: list[list[float]] = [[], []]
    for run in group.runs:
        columns = [_numbers(at(run.evaluation, "entropy_histogram", key)) for key in ("edges", "wrong", "right")]
        if len(columns[0]) < 2 or len(columns[1]) != len(columns[0]) - 1 or len(columns[2]) != len(columns[1]):
            continue
        if not edges:
            edges, counts = columns[0], columns[1:]
        elif columns[0] == edges:
            counts = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(counts, columns[1:], strict=True)]
    return edges, counts[0], counts[1]


def _numbers(values: object) -> list[float]:
    numbers = [number(value) for value in values] if isinstance(values, list) else []
    found = [value for value in numbers if value is not None]
    return found if len(found) == len(numbers) else []
