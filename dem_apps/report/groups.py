"""Runs side by side: which of them are seeds of one setting, what differs, and what the difference is worth."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dem_apps.report.run import Run, flat

#: Settings in which two runs of one group may differ.
_NO_SETTINGS = ("seed", "run_dir", "resume")
_ABSENT = "(not in config.yaml)"
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone.

    Args:
        name: what the report calls them.
        runs: in the order given.
        settings: their common settings, flat.
    """

    name: str
    runs: tuple[Run, ...]
    settings: Mapping[str, str]


@dataclass(frozen=True)
class Interval:
    """A difference of two groups' means.

    Args:
        difference: this group's mean minus the baseline's.
        low: lower end of the 95 % confidence interval, or None where there are too few seeds.
        high: upper end.
        paired: whether it is over seeds that both have.
    """

    difference: float
    low: float | None
    high: float | None
    paired: bool

    @property
    def excludes_zero(self) -> bool:
        """Whether the seeds tell the two apart."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs of equal settings together, groups and runs in the order given."""
    members: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for position, run in enumerate(runs):
        settings = {key: text for key, text in flat(run.config).items() if key not in _NO_SETTINGS}
        # a run whose settings are lost may be anything, and is put with nobody
        key = tuple(sorted(settings.items())) if run.config else (("", str(position)),)
        members.setdefault(key, []).append(run)
    names = _names(list(members.values()), differing([dict(key) for key in members]))
    return [
        Group(name, tuple(runs), dict(key) if runs[0].config else {})
        for name, (key, runs) in zip(names, members.items(), strict=True)
    ]


def differing(settings: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """By key, the value in each of ``settings``, for the keys in which they differ."""
    keys = dict.fromkeys(key for one in settings for key in one if key)
    rows = {key: [one.get(key, _ABSENT) for one in settings] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (divisor n − 1); no deviation of a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def against(group: Mapping[object, float], baseline: Mapping[object, float]) -> Interval:
    """The difference of the means with its 95 % confidence interval.

    Where at least two seeds are in both, it is Student's t interval over the differences by seed. Otherwise it is
    Welch's for two samples, with the degrees of freedom rounded down.

    Args:
        group: score by seed, at least one.
        baseline: the same for what it is compared with.
    """
    common = [seed for seed in group if seed in baseline]
    if len(common) > 1:
        differences = [group[seed] - baseline[seed] for seed in common]
        half = t_quantile(len(common) - 1) * statistics.stdev(differences) / math.sqrt(len(common))
        mean = statistics.fmean(differences)
        return Interval(mean, mean - half, mean + half, paired=True)
    ours, theirs = list(group.values()), list(baseline.values())
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    if min(len(ours), len(theirs)) < 2:
        return Interval(difference, None, None, paired=False)
    shares = [statistics.variance(values) / len(values) for values in (ours, theirs)]
    if sum(shares) == 0.0:
        return Interval(difference, difference, difference, paired=False)
    freedom = sum(shares) ** 2 / (shares[0] ** 2 / (len(ours) - 1) + shares[1] ** 2 / (len(theirs) - 1))
    half = t_quantile(max(1, math.floor(freedom + 1e-9))) * math.sqrt(sum(shares))
    return Interval(difference, difference - half, difference + half, paired=False)


def t_quantile(freedom: int, confidence: float = _CONFIDENCE) -> float:
    """t with P(|T| < t) = ``confidence`` for Student's T with a whole number of degrees of freedom, by bisection."""
    low, high = 0.0, 1.0
    while _t_inside(high, freedom) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_inside(middle, freedom) < confidence else (low, middle)
    return high


def _t_inside(t: float, freedom: int) -> float:
    """P(|T| < t), the finite sums of Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= k / (k + 1) * math.cos(angle) ** 2
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def _names(members: Sequence[Sequence[Run]], differences: Mapping[str, Sequence[str]]) -> list[str]:
    """The runs' own name without the seed where that tells the groups apart, else the settings that differ."""
    names = []
    for position, runs in enumerate(members):
        bare = {re.sub(r"[-_.]*seed[-_=]*\d+", "", run.name) for run in runs}
        if len(runs) == 1:
            names.append(runs[0].name)
        elif len(bare) == 1 and bare != {""}:
            names.append(bare.pop())
        else:
            names.append(", ".join(f"{key} {values[position]}" for key, values in list(differences.items())[:4]))
    names = [name or "all runs" for name in names]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)
    ]
