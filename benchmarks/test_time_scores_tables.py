"""The tables of what ``benchmarks/test_time_scores.py`` has measured.

    python benchmarks/test_time_scores_tables.py [docs/results/test_time.jsonl]

A cell is a difference in points of mIoU with its 95 % interval, Student's t over networks × corruptions (photographs:
networks), bold where that excludes 0: to the network as it is, or to the statistics of batch norm alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from corrupted_streets import rows_of
from test_time_scores import DEFAULT_RATE, METHODS, RATES

from dem_apps.report.intervals import Interval, difference_interval
from dem_apps.report.text_tables import markdown

Arm = tuple[str, str, str, float]
#: Of an arm: points by network and corruption, and of everything by round.
Scores = dict[tuple[str, str], float]


def tables(rows: list[dict[str, Any]]) -> str:
    """All of them, in Markdown."""
    text = ""
    for data, mode in dict.fromkeys((row["data"], row["mode"]) for row in rows):
        here = [row for row in rows if (row["data"], row["mode"]) == (data, mode)]
        arms: dict[Arm, list[dict[str, Any]]] = {}
        for row in here:
            arms.setdefault((row["method"], row["objective"], row["reduction"], row["lr"]), []).append(row)
        text += f"{data}, {mode}: {len({row['network'] for row in here})} networks\n\n"
        text += methods_table(arms) + "\n" + rates_table(arms) + "\n"
        if data == "demo":
            text += corruptions_table(arms) + "\n"
    return text


def methods_table(arms: dict[Arm, list[dict[str, Any]]]) -> str:
    """Every method with the entropy and the plain mean at one rate, and Tent with AdaDEM, balanced."""
    lines = []
    names: list[Arm] = [(method, "entropy" if lr else "none", "mean", lr) for method, lr in METHODS]
    none, bn = (points(arms[name]) for name in names[:2])
    for name in [*names, ("tent", "adadem", "balanced", DEFAULT_RATE)]:
        if name not in arms:
            continue
        rounds = [
            100 * float(np.mean([row["by_round"][key] for row in arms[name]])) for key in arms[name][0]["by_round"]
        ]
        what = f"{name[0]}, {name[1]} {name[2]}" if name[1] == "adadem" else name[0]
        total = 100 * float(np.mean([row["miou"] for row in arms[name]]))
        to_none = "" if name[0] == "none" else apart(arms[name], none)
        to_bn = "" if name[0] == "bn" else apart(arms[name], bn)
        by_round = ", ".join(f"{value:.1f}" for value in rounds)
        lines.append([what, f"{name[3]:g}" if name[3] else "", f"{total:.1f}", by_round, to_none, to_bn])
    return markdown(["method", "rate", "mIoU %", "by round", "less none", "less bn"], lines)


def rates_table(arms: dict[Arm, list[dict[str, Any]]]) -> str:
    """Tent's objectives and reductions (rows) at the learning rates, less the statistics of batch norm."""
    bn = points(arms["bn", "none", "mean", 0.0])
    rates = [lr for lr in sorted(RATES) if any(name[0] == "tent" and name[3] == lr for name in arms)]
    lines = [
        [objective, reduction, *(cell(arms.get(("tent", objective, reduction, lr)), bn) for lr in rates)]
        for objective in ("entropy", "adadem", "adadem-norm", "dem")
        for reduction in ("mean", "balanced")
        if any(name[:3] == ("tent", objective, reduction) for name in arms)
    ]
    return markdown(["objective", "reduction", *(f"{lr:g}" for lr in rates)], lines)


def corruptions_table(arms: dict[Arm, list[dict[str, Any]]]) -> str:
    """Tent with AdaDEM and the controls by corruption, less the network as it is; intervals over networks."""
    chosen = {"bn": ("bn", "none", "mean", 0.0), "lab": ("lab", "none", "mean", 0.0),
              "tent, adadem balanced": ("tent", "adadem", "balanced", DEFAULT_RATE)}  # fmt: skip
    chosen = {name: arm for name, arm in chosen.items() if arm in arms}
    none = by_corruption(arms["none", "none", "mean", 0.0])
    lines = []
    for corruption, scores in none.items():
        cells = [difference_interval(by_corruption(arms[name])[corruption], scores) for name in chosen.values()]
        lines.append([corruption, f"{np.mean(list(scores.values())):.1f}", *(text(each) for each in cells)])
    return markdown(["corruption", "none", *chosen], lines)


def points(rows: list[dict[str, Any]]) -> Scores:
    """mIoU % by network and corruption."""
    return {(row["network"], name): 100 * value for row in rows for name, value in row["by_corruption"].items()}


def by_corruption(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """mIoU % by corruption and then network."""
    found: dict[str, dict[str, float]] = {}
    for (network, name), value in points(rows).items():
        found.setdefault(name, {})[network] = value
    return found


def apart(rows: list[dict[str, Any]], control: Scores) -> str:
    """The difference, seed by seed and corruption by corruption."""
    return text(difference_interval(points(rows), control))


def cell(rows: list[dict[str, Any]] | None, control: Scores) -> str:
    """The same, empty where there are no runs."""
    return "" if rows is None else apart(rows, control)


def text(interval: Interval) -> str:
    """A difference in points."""
    return interval.text(".1f", difference=True)


if __name__ == "__main__":
    print(tables(rows_of(Path(*sys.argv[1:2] or ["docs/results/test_time.jsonl"]))))
