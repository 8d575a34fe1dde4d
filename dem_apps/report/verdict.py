"""The first lines of a page: what came out, against what it was compared with, and whether to trust it."""

from __future__ import annotations

from collections.abc import Sequence

from dem_apps.report.groups import Group
from dem_apps.report.intervals import difference_interval, mean_and_std
from dem_apps.runtime.metrics_info import MetricsInfo, Score


def verdict(info: MetricsInfo, groups: Sequence[Group], reference: Group) -> list[str]:
    """Sentences, none where the runs describe no score or have none.

    Args:
        info: what the runs say about themselves.
        groups: runs by setting.
        reference: the group that the others are compared with.
    """
    score = next((one for one in info.scores if one.key == info.verdict), info.scores[0] if info.scores else None)
    if score is None:
        return []
    if len(groups) == 1:
        return _alone(info, score, groups[0])
    theirs = _values(reference, score)
    if not theirs:
        return []
    return [_compared(score, group, reference) for group in groups if group is not reference and _values(group, score)]


def _alone(info: MetricsInfo, score: Score, group: Group) -> list[str]:
    values = _values(group, score)
    if not values:
        return []
    title = score.title.removesuffix(", last")
    if len(values) == 1:
        said = f"{title}: {score.text(next(iter(values.values())))} at the end of training"
    else:
        mean, std = mean_and_std(list(values.values()))
        said = f"{title}: {score.text(mean)} ± {score.text(std or 0.0)} over {len(values)} seeds"
    alarms = _alarms(group)
    heard = f"; an alarm in {alarms} of {len(group.runs)} runs, read below" if alarms else "; no alarm"
    compare = f" Whether training helped is told by the difference to {info.control}." if info.control else ""
    return [f"{said}{heard}.{compare}"]


def _compared(score: Score, group: Group, reference: Group) -> str:
    ours, theirs = _values(group, score), _values(reference, score)
    interval = difference_interval(ours, theirs)
    title, unit = score.title.removesuffix(", last"), ""
    if title.endswith(" %"):
        title, unit = title.removesuffix(" %"), " %"
    mean, other = (f"{score.text(mean_and_std(list(values.values()))[0])}{unit}" for values in (ours, theirs))
    said = (
        f"{group.name}: {title} {mean} at the end of training, {reference.name} {other}; "
        f"difference {score.text(interval.estimate, '+')}"
    )
    if interval.low is None or interval.high is None:
        verdict = " of one seed, and only more seeds tell how much of it is chance"
    else:
        ends = f" [{score.text(interval.low, '+')}, {score.text(interval.high, '+')}] over {interval.count} seeds"
        better = (interval.estimate > 0) == (score.better != "lower")
        named = ("better" if better else "worse") if score.better else "different"
        verdict = f"{ends}: {named}" if interval.excludes_zero else f"{ends}: not told from chance"
    alarms = _alarms(group)
    return f"{said}{verdict}{f'; an alarm in {alarms} of {len(group.runs)} runs' if alarms else ''}."


def _alarms(group: Group) -> int:
    """How many of its runs have any."""
    return sum(1 for run in group.runs if run.alarms())


def _values(group: Group, score: Score) -> dict[str, float]:
    return group.by_seed(lambda run: run.score(score.key))
