"""The tables of what ``benchmarks/digits.py`` has measured.

    python benchmarks/digits_tables.py [docs/results/digits.jsonl]

A cell is the difference in points to the statistics of batch norm alone (``bn``), by seed, with Student's t interval
over seeds, bold where that excludes 0. "Harms from" is the rate from which adapting is half a point worse than ``bn``,
between rates by a line, the mean over seeds of its logarithm.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from digits import ABLATION_RATES, ABLATIONS, MODES, OBJECTIVES, RATES, REDUCTIONS, SEARCH_SEED, key_of

from dem_apps.report.intervals import difference_interval, mean_interval
from dem_apps.report.text_tables import markdown


def tables(rows: list[dict[str, Any]]) -> str:
    """All tables, in Markdown."""
    scores: dict[tuple[Any, ...], dict[int, float]] = {}
    for row in rows:
        scores.setdefault(key_of(row)[1:-1], {})[row["seed"]] = row["accuracy"]
    text = ""
    for mode in MODES:
        none, bn = (scores[mode, method, "none", "{}", "mean", 0.0] for method in ("none", "bn"))
        text += f"{mode}: none {mean_interval(list(none.values())).text('.1f')}, "
        text += f"bn {mean_interval(list(bn.values())).text('.1f')}, {len(bn)} seeds\n\n"
        arms = {(objective, reduction): arm_of(scores, mode, objective, reduction)
                for objective in OBJECTIVES for reduction in REDUCTIONS}  # fmt: skip
        text += markdown(
            ["objective", "reduction", *(f"{lr:g}" for lr in RATES)],
            [[*name, *(difference_interval(arm[lr], bn).text(".1f", difference=True) if lr in arm else ""
                       for lr in RATES)] for name, arm in arms.items()],
        ) + "\n"  # fmt: skip
        text += markdown(
            ["objective", "reduction", "best rate", "there", "harms from", "times that of entropy"],
            [tolerance(name, arms, bn) for name in arms],
        ) + "\n"  # fmt: skip
    return text + ablation_table(scores)


def arm_of(
    scores: dict[tuple[Any, ...], dict[int, float]], mode: str, objective: str, reduction: str
) -> dict[float, dict[int, float]]:
    """Accuracies by rate and seed."""
    found: dict[float, dict[int, float]] = {}
    for (where, _, what, options, how, lr), values in scores.items():
        searched = what == "dem" and min(values) < SEARCH_SEED
        plain = options == "{}" or searched
        if (where, what, how) == (mode, objective, reduction) and plain and lr in RATES:
            found[lr] = {seed: value for seed, value in values.items() if seed != SEARCH_SEED}
    return dict(sorted(found.items()))


def tolerance(name: tuple[str, str], arms: dict[Any, dict[float, dict[int, float]]], bn: dict[int, float]) -> list[str]:
    """The best rate, and the rate from which adapting is half a point worse than statistics alone."""
    arm, entropy = arms[name], arms["entropy", name[1]]
    best = max(arm, key=lambda lr: float(np.mean(list(arm[lr].values()))))
    ours, theirs = ({seed: harms_from(each, bn, seed) for seed in bn} for each in (arm, entropy))
    mean = float(np.mean(list(ours.values())))
    apart = difference_interval(ours, theirs)
    ends = "" if apart.low is None or apart.high is None else f" [{10**apart.low:.1f}, {10**apart.high:.1f}]"
    factor = "" if name[0] == "entropy" else f"{10**apart.estimate:.1f}{ends}"
    there = difference_interval(arm[best], bn).text(".1f", difference=True)
    return [*name, f"{best:g}", there, f"{'≥ ' * (mean >= math.log10(RATES[-1]))}{10**mean:.2g}", factor]


def harms_from(arm: dict[float, dict[int, float]], bn: dict[int, float], seed: int) -> float:
    """log₁₀ of the rate at which a seed's accuracy falls half a point below the statistics', between rates by a line;
    the highest rate where it never does.
    """
    above = None
    for lr, values in arm.items():
        gain = values[seed] - bn[seed] + 0.5
        if gain < 0:
            if above is None:
                return math.log10(lr)
            (left, high), right = above, math.log10(lr)
            return left + (right - left) * high / (high - gain)
        above = math.log10(lr), gain
    return math.log10(RATES[-1])


def ablation_table(scores: dict[tuple[Any, ...], dict[int, float]]) -> str:
    """AdaDEM with one thing changed, less AdaDEM as it is."""
    places = [(mode, lr) for mode in MODES[:2] for lr in ABLATION_RATES]
    lines = []
    for name, (objective, options) in ABLATIONS.items():
        cells = []
        for mode, lr in places:
            ours = scores[mode, "tent", objective, json.dumps(options, sort_keys=True), "mean", lr]
            adadem = scores[mode, "tent", "adadem", "{}", "mean", lr]
            cells.append(difference_interval(ours, adadem).text(".1f", difference=True))
        lines.append([name, *cells])
    return markdown(["AdaDEM with", *(f"{mode}, {lr:g}" for mode, lr in places)], lines)


if __name__ == "__main__":
    file = Path(*sys.argv[1:2] or ["docs/results/digits.jsonl"])
    print(tables([json.loads(line) for line in file.read_text().splitlines()]))
