"""What the page shows of the runs of one kind: one run by itself, or several by what tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dem_apps.report.charts import COLOURS, Chart
from dem_apps.report.curves import entropy_chart, group_charts, reliability_chart, run_charts
from dem_apps.report.groups import Group, differing, grouped
from dem_apps.report.pictures import VIEWS, Embedded, Video, embed, embed_videos, find_pictures
from dem_apps.report.run import Run, at, flat
from dem_apps.report.scores import (
    RL_SCORES,
    SEG_SCORES,
    Cell,
    Table,
    checkpoints_table,
    class_table,
    comparison_table,
    scores_table,
    seeds_table,
    transposed,
)

ALL_VIEWS = "all"
#: Settings up to this number are columns of the table of scores, more are its rows.
_MOST_COLUMNS = 5
_HEADINGS = {"seg": "Segmentation", "rl": "Reinforcement learning", "unknown": "Runs of an unknown kind"}
_SCORES = {"seg": SEG_SCORES, "rl": RL_SCORES, "unknown": ()}
_FACTS = {"seg": ("method", "loss", "reduction"), "rl": ("env", "algo", "loss", "ent_coef"), "unknown": ()}
_ALT = {
    "image": "image {name}",
    "prediction": "classes that {run} predicts on {name}",
    "entropy": "entropy of {run} on {name}: black is certain, light yellow is undecided",
    "label": "labels of {name}",
    "panel": "image, prediction and entropy of {run} on {name} side by side",
}


@dataclass(frozen=True)
class Shot:
    """A picture in the gallery: ``same_as`` is the id of an earlier one with the same content, whose data it takes."""

    id: str
    embedded: Embedded
    alt: str
    run: int
    same_as: str | None


@dataclass(frozen=True)
class Gallery:
    """Pictures by image and view.

    Args:
        views: those that occur.
        runs: names of the runs shown.
        images: the image's name, and by view a picture of each run that has it.
        notes: what is not shown, or smaller.
    """

    views: list[str]
    runs: list[str]
    images: list[tuple[str, dict[str, list[Shot]]]]
    notes: list[str]

    @property
    def choices(self) -> list[str]:
        """What can be looked at: all views at once, if there are several, or one."""
        return [ALL_VIEWS, *self.views] if len(self.views) > 1 else self.views


@dataclass
class Part:
    """Everything of one kind of runs, ready for the template."""

    kind: str
    heading: str
    groups: list[Group]
    runs: list[Run]
    missing: list[tuple[str, tuple[str, ...]]]
    facts: list[tuple[str, str]]
    differences: Table | None
    tables: list[Table]
    alarms: list[tuple[str, int, str]]
    charts: list[Chart]
    other_charts: list[Chart]
    classes: Table | None
    distributions: list[Chart]
    absent: list[str]
    legend: list[tuple[str, str]]
    gallery: Gallery
    class_colours: list[tuple[str, str]]
    videos: list[tuple[str, list[Video]]]
    details: list[tuple[str, list[tuple[str, dict[str, str]]]]]
    picture_bytes: int = field(default=0)

    @property
    def several(self) -> bool:
        """Whether runs are compared."""
        return len(self.runs) > 1


def build_part(runs: Sequence[Run], baseline: Run | None, tail: Sequence[str], budget: int) -> Part:
    """What there is to show of runs of one kind.

    Args:
        runs: at least one.
        baseline: the run whose group the others are compared with; the first group if it is none of these.
        tail: classes to mark.
        budget: bytes for pictures and videos together.
    """
    kind, groups = runs[0].kind, grouped(runs)
    several = len(runs) > 1
    reference = next((group for group in groups if baseline in group.runs), groups[0])
    charts, other = group_charts(kind, groups) if several else run_charts(runs[0])
    distributions, absent = _distributions(groups) if kind == "seg" else ([], [])
    videos, used, lost = _videos(runs, budget)
    gallery, picture_bytes = _gallery(groups, budget - used, kind, lost)
    return Part(
        kind=kind,
        heading=_HEADINGS[kind],
        groups=groups,
        runs=list(runs),
        missing=[(run.name, run.missing) for run in runs if run.missing],
        facts=[] if several else _facts(runs[0]),
        differences=_differences(groups) if several else None,
        tables=_tables(kind, groups, reference) if several else _tables_of(runs[0]),
        alarms=[(run.name, step, text) for run in runs for step, text in run.alarms()],
        charts=charts,
        other_charts=other,
        classes=class_table(groups, tail) if kind == "seg" else None,
        distributions=distributions,
        absent=absent,
        legend=[(_style(i), group.name) for i, group in enumerate(groups)] if several else [],
        gallery=gallery,
        class_colours=next((run.classes for run in runs if run.classes), []),
        videos=videos,
        details=[(run.name, _details(run)) for run in runs],
        picture_bytes=used + picture_bytes,
    )


def _facts(run: Run) -> list[tuple[str, str]]:
    """What kind of run it was, in a few words."""
    settings = flat(run.config)
    facts = [(key.replace("_", " "), settings[key]) for key in _FACTS[run.kind] if key in settings]
    if run.seed is not None:
        facts.append(("seed", settings["seed"]))
    steps = "none logged" if run.last_step is None else f"{run.last_step:,}"
    if run.planned_steps is not None:
        steps += f" of {run.planned_steps:,}"
    facts += [("steps", steps), ("state", "finished" if run.evaluation else "not finished")]
    for key in ("device_name", "started"):
        value = at(run.environment, key)
        if isinstance(value, str):
            facts.append((key.replace("_", " "), value[:80]))
    return facts


def _differences(groups: Sequence[Group]) -> Table:
    """Which settings differ, one row each; seeds as the first row."""
    table = Table("What differs", [("setting", ""), *((group.name, "") for group in groups)])
    seeds = [", ".join(str(run.seed) for run in group.runs if run.seed is not None) or "–" for group in groups]
    table.rows.append(("seeds", "", [Cell(text[:200]) for text in seeds]))
    known = [group for group in groups if group.settings]
    for key, values in differing([group.settings for group in known]).items():
        by_name = dict(zip((group.name for group in known), values, strict=True))
        table.rows.append((key, "", [Cell(by_name.get(group.name, "unknown")) for group in groups]))
    return table


def _tables(kind: str, groups: Sequence[Group], reference: Group) -> list[Table]:
    if len(groups) == 1:
        table = seeds_table(_SCORES[kind], groups[0])
    else:
        table = comparison_table(_SCORES[kind], groups, reference)
        # a row per score is read more easily, and on a telephone, while the settings fit side by side
        if len(groups) <= _MOST_COLUMNS:
            table = transposed(table, "score")
    return [table] if len(table.header) > 1 and table.rows else []


def _tables_of(run: Run) -> list[Table]:
    tables = (scores_table(_SCORES[run.kind], run), checkpoints_table(run))
    return [table for table in tables if table.rows]


def _distributions(groups: Sequence[Group]) -> tuple[list[Chart], list[str]]:
    made = (
        (reliability_chart(groups), "No reliability diagram: eval.json has no key 'reliability'."),
        (entropy_chart(groups), "No entropy histogram: eval.json has no key 'entropy_histogram'."),
    )
    return [chart for chart, _ in made if chart is not None], [sentence for chart, sentence in made if chart is None]


def _videos(runs: Sequence[Run], budget: int) -> tuple[list[tuple[str, list[Video]]], int, list[str]]:
    shown, used, lost = [], 0, []
    for run in runs:
        videos, size, left_out = embed_videos(run, budget - used)
        used += size
        lost += [f"{run.name}: {sentence}" for sentence in left_out]
        if videos:
            shown.append((run.name, videos))
    return shown, used, lost


def _gallery(groups: Sequence[Group], budget: int, kind: str, notes: list[str]) -> tuple[Gallery, int]:
    """One run of each setting, or all seeds where there is one setting only."""
    runs = list(groups[0].runs) if len(groups) == 1 else [group.runs[0] for group in groups]
    notes = list(notes)
    pictures = []
    for run in runs:
        # without room, as when the text alone is measured, there is no need to decode them
        found, unreadable = find_pictures(run) if budget > 0 else ([], [])
        pictures += found
        notes += [f"{run.name}: {sentence}" for sentence in unreadable]
    if pictures and len(groups) > 1 and any(len(group.runs) > 1 for group in groups):
        notes.append("Pictures are of the first run of each setting.")
    if kind == "seg" and not pictures:
        notes.append("There are no entropy maps (entropy_maps/ is missing or empty).")
    embedded, smaller = embed(pictures, budget)
    notes += [smaller] if smaller else []
    if pictures and not any(run.classes for run in runs):
        notes.append("The colours of the classes have no names here: there is no classes.json.")
    names = [run.name for run in runs]
    images: dict[str, dict[str, list[Shot]]] = {}
    first: dict[str, str] = {}
    for position, one in enumerate(embedded):
        shot_id = f"{kind}-picture-{position}"
        alt = _ALT[one.picture.view].format(name=one.picture.name, run=one.picture.run)
        shot = Shot(shot_id, one, alt, names.index(one.picture.run), first.get(one.uri))
        first.setdefault(one.uri, shot_id)
        images.setdefault(one.picture.name, {}).setdefault(one.picture.view, []).append(shot)
    views = [view for view in (*VIEWS, "panel") if any(view in shots for shots in images.values())]
    return Gallery(views, names, list(images.items()), notes), sum(len(uri) for uri in first)


def _details(run: Run) -> list[tuple[str, dict[str, str]]]:
    protocol: Any = at(run.evaluation, "protocol")
    documents = (
        ("Settings", run.config),
        ("Protocol of the scores", protocol if isinstance(protocol, dict) else {}),
        ("Environment", {"folder": str(run.path), **run.environment}),
    )
    return [(title, flat(document)) for title, document in documents if document]


def _style(position: int) -> str:
    return f"c{position % COLOURS} d{(position + position // COLOURS) % 4}"
