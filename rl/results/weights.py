"""How much the weight of an entropy term matters: scores by weight, and the width of the range that will do.

Of a term (a loss) the runs of several weights are compared within an environment. The width is that of the longest run
of neighbouring weights around the best one whose mean is within 5 % of the best's, in decades, and counts tested
weights only: no value between two of them is guessed. A range that reaches the end of what was tested is at least that
wide. Means over few seeds make widths uncertain; they are a summary of the curve beside them and carry no interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dem_apps.report.text_tables import markdown
from rl.results.read_runs import Result, names
from rl.results.returns_table import short
from rl.results.time_to_goal import common_horizon

WEIGHTS_NOTE = (
    "Width in decades of the range of tested weights around a term's best one whose mean over seeds is within 5 % of "
    "it, of the last policies' return under sampled actions and of the restricted mean time to the goal. '≥' where the "
    "range reaches an end of what was tested. The arm 'none' has no weight.\n"
)
#: How far from the best still counts as good.
WITHIN = 0.05
#: Weights that a term has at least before anything is said of their range.
FEWEST = 3
NONE = "none"


@dataclass(frozen=True)
class Width:
    """Of the range that will do.

    Args:
        best: the weight whose mean is best.
        decades: from the smallest to the largest weight of the range, 0 where only the best one will do.
        open: whether the range reaches the smallest or largest weight that was tested.
    """

    best: float
    decades: float
    open: bool

    def __str__(self) -> str:
        return f"{'≥ ' if self.open else ''}{self.decades:.1f}"


def width(means: Mapping[float, float], lower_is_better: bool = False) -> Width:
    """The width of what will do.

    >>> width({0.001: 0.90, 0.01: 0.96, 0.1: 0.95, 1.0: 0.1})
    Width(best=0.01, decades=1.0, open=False)

    Args:
        means: weight → mean, two weights at least.
        lower_is_better: for steps instead of returns.
    """
    weights = sorted(means)
    sign = -1.0 if lower_is_better else 1.0
    best = max(weights, key=lambda weight: sign * means[weight])
    limit = sign * means[best] - WITHIN * abs(means[best])
    fits = [sign * means[weight] >= limit for weight in weights]
    first = last = weights.index(best)
    while first > 0 and fits[first - 1]:
        first -= 1
    while last < len(weights) - 1 and fits[last + 1]:
        last += 1
    return Width(best, math.log10(weights[last] / weights[first]), first == 0 or last == len(weights) - 1)


def by_weight(results: Sequence[Result], env: str) -> dict[str, dict[float, list[Result]]]:
    """Term → weight → its runs, of terms with :data:`FEWEST` weights or more, and of ``none`` under weight 0."""
    found: dict[str, dict[float, list[Result]]] = {}
    for run in results:
        weight = _number(run.row.get("ent_coef"))
        if run.env == env and run.row.get("loss") == NONE:
            found.setdefault(NONE, {}).setdefault(0.0, []).append(run)
        elif run.env == env and weight is not None and weight > 0:
            found.setdefault(str(run.row.get("loss")), {}).setdefault(weight, []).append(run)
    kept = {term: dict(sorted(runs.items())) for term, runs in found.items() if term == NONE or len(runs) >= FEWEST}
    return kept if set(kept) - {NONE} else {}


def returns_of(runs: Sequence[Result], actions: str) -> list[float]:
    """The last policies' returns under one kind of actions, ``"sampled"`` or ``"greedy"``."""
    return [run.returns[actions] for run in runs]


def steps_of(runs: Sequence[Result], results: Sequence[Result], env: str) -> list[float]:
    """Steps without the goal up to the horizon of all runs of the environment; empty where a run has no goal."""
    times = [run.goal for run in results if run.env == env]
    horizon = common_horizon([time for time in times if time is not None]) if all(times) else 0
    return [float(run.goal.until(horizon)) for run in runs if run.goal is not None] if horizon else []


def weights_table(results: Sequence[Result]) -> str:
    """A row per environment and term; empty where no term has enough weights."""
    rows = []
    for env in names(results)[0]:
        for term, runs in by_weight(results, env).items():
            if term != NONE:
                rows.append([short(env), term, *_cells(runs, results, env)])
    columns = [
        "environment", "term", "weights", "seeds", "return: best at", "width, decades", "time to the goal: best at",
        "width, decades",
    ]  # fmt: skip
    return markdown(columns, rows).removesuffix("\n") if rows else ""


def _cells(runs: Mapping[float, Sequence[Result]], results: Sequence[Result], env: str) -> list[str]:
    seeds = {len(group) for group in runs.values()}
    of_return = width({weight: float(np.mean(returns_of(group, "sampled"))) for weight, group in runs.items()})
    steps = {weight: steps_of(group, results, env) for weight, group in runs.items()}
    cells = [
        f"{min(runs):g} to {max(runs):g} ({len(runs)})", " to ".join(map(str, sorted({min(seeds), max(seeds)}))),
        f"{of_return.best:g}", str(of_return),
    ]  # fmt: skip
    if not all(steps.values()):
        return [*cells, "", ""]
    of_time = width({weight: float(np.mean(values)) for weight, values in steps.items()}, lower_is_better=True)
    return [*cells, f"{of_time.best:g}", str(of_time)]


def _number(value: object) -> float | None:
    """A weight as settings and CSV files have it; None for a schedule."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
