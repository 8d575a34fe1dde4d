"""What the page shows of comparable runs: one run by itself, or several by what tells them apart."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from dem_apps.report.charts import COLOURS, Chart
from dem_apps.report.curves import group_charts, histogram_chart, reliability_chart, run_charts
from dem_apps.report.groups import Group, differing, grouped, without_seed
from dem_apps.report.pictures import PANEL, Embedded, Video, embed, embed_videos, find_pictures
from dem_apps.report.settings_text import flat
from dem_apps.report.tables import (
    Cell,
    Table,
    checkpoints_table,
    class_table,
    comparison_table,
    scores_of,
    scores_table,
    transposed,
)
from dem_apps.report.verdict import verdict
from dem_apps.runtime.metrics_info import MetricsInfo, View, same_heading
from dem_apps.runtime.run_reader import Run, at

ALL_VIEWS = "all"
#: Settings up to this number are columns of the table of scores, more are its rows.
_MOST_COLUMNS = 5
_LONGEST_COMMAND = 4000


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

    views: list[View]
    runs: list[str]
    images: list[tuple[str, dict[View, list[Shot]]]]
    notes: list[str]

    @property
    def choices(self) -> list[str]:
        """What can be looked at: all views at once, if there are several, or one."""
        names = [view.name for view in self.views]
        return [ALL_VIEWS, *names] if len(names) > 1 else names


@dataclass(frozen=True)
class Part:
    """Everything of comparable runs, ready for the template."""

    id: str
    info: MetricsInfo
    groups: list[Group]
    runs: list[Run]
    in_words: list[tuple[str, str]]
    verdict: list[str]
    facts: list[tuple[str, str]]
    differences: Table | None
    tables: list[Table]
    charts: list[Chart]
    other_charts: list[Chart]
    classes: Table | None
    distributions: list[Chart]
    absent: list[str]
    legend: list[tuple[str, str]]
    gallery: Gallery
    videos: list[tuple[str, list[Video]]]
    details: list[tuple[str, str, list[tuple[str, dict[str, str]]]]]
    marks: set[str]
    picture_bytes: int

    @property
    def several(self) -> bool:
        """Whether runs are compared."""
        return len(self.runs) > 1

    @property
    def title(self) -> str:
        """The settings that are compared where they are few, without the seeds that do not tell them apart."""
        names = [without_seed(group.name) for group in self.groups]
        if len(set(names)) < len(names) or not all(names):
            names = [group.name for group in self.groups]
        return f"{', '.join(names)} compared" if 1 < len(names) <= _MOST_COLUMNS else f"{len(self.runs)} runs"

    @property
    def shared_caption(self) -> str:
        """Under a picture that is the same of all."""
        return "every run"

    @property
    def alarms(self) -> bool:
        """Whether any run has one."""
        return any(run.alarms() for run in self.runs)

    @property
    def colours(self) -> list[tuple[str, str]]:
        """Names and #rrggbb of the pictures' colours, of the first run that has them."""
        return next((run.colours for run in self.runs if run.colours), [])


def build_part(runs: Sequence[Run], baseline: Run | None, tail: Sequence[str], budget: int) -> Part:
    """What there is to show of runs that describe themselves alike.

    Args:
        runs: at least one.
        baseline: the run whose group the others are compared with; the first group if it is none of these.
        tail: classes to mark.
        budget: bytes for pictures and videos together.
    """
    info, groups = same_heading([run.info for run in runs]), grouped(runs)
    several = len(runs) > 1
    reference = next((group for group in groups if baseline in group.runs), groups[0])
    charts, other = group_charts(groups, info.metrics) if several else run_charts(runs[0], info.metrics)
    distributions, absent = _distributions(info, groups)
    part_id = re.sub(r"\W+", "-", info.heading.lower())
    videos, used, lost = _videos(runs, budget)
    gallery, picture_bytes = _gallery(groups, info, budget - used, part_id, lost)
    return Part(
        id=part_id,
        info=info,
        groups=groups,
        runs=list(runs),
        in_words=[(group.name, text) for group in groups if (text := group.runs[0].info.summary)],
        verdict=verdict(info, groups, reference),
        facts=[] if several else _facts(runs[0]),
        differences=_differences(groups) if several else None,
        tables=_tables(groups, reference),
        charts=charts,
        other_charts=other,
        classes=class_table(info.classes, groups, tail) if info.classes else None,
        distributions=distributions,
        absent=absent,
        legend=[(_style(i), group.name) for i, group in enumerate(groups)] if several else [],
        gallery=gallery,
        videos=videos,
        details=[(run.name, _command(run), _details(run)) for run in runs],
        marks={"tail", *(score.note for score in info.scores if score.warning)},
        picture_bytes=used + picture_bytes,
    )


def _facts(run: Run) -> list[tuple[str, str]]:
    """What kind of run it was, in a few words."""
    settings = flat(run.config)
    facts = [(key.replace("_", " "), settings[key]) for key in run.info.settings if key in settings]
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


def _tables(groups: Sequence[Group], reference: Group) -> list[Table]:
    scores = scores_of([run for group in groups for run in group.runs])
    if len(groups) == 1:
        tables = [scores_table(scores, groups[0])]
        if len(groups[0].runs) == 1:
            tables.append(checkpoints_table(scores, groups[0].runs[0]))
    else:
        tables = [comparison_table(scores, groups, reference)]
        # a row per score is read more easily, and on a telephone, while the settings fit side by side
        if len(groups) <= _MOST_COLUMNS:
            tables = [transposed(tables[0], "score")]
    return [table for table in tables if len(table.header) > 1 and table.rows]


def _distributions(info: MetricsInfo, groups: Sequence[Group]) -> tuple[list[Chart], list[str]]:
    """The charts of ``eval.json``, and a sentence for each that the runs describe and do not have."""
    made: list[tuple[Chart | None, str]] = []
    if info.reliability is not None:
        made.append((reliability_chart(info.reliability, groups), info.reliability.x))
    if info.histogram is not None:
        made.append((histogram_chart(info.histogram, groups), info.histogram.edges))
    absent = [f"No chart: eval.json has no key '{key}'." for chart, key in made if chart is None]
    return [chart for chart, _ in made if chart is not None], absent


def _videos(runs: Sequence[Run], budget: int) -> tuple[list[tuple[str, list[Video]]], int, list[str]]:
    shown, used, lost = [], 0, []
    for run in runs:
        videos, size, left_out = embed_videos(run, budget - used)
        used += size
        lost += [f"{run.name}: {sentence}" for sentence in left_out]
        if videos:
            shown.append((run.name, videos))
    return shown, used, lost


def _gallery(
    groups: Sequence[Group], info: MetricsInfo, budget: int, part_id: str, notes: Sequence[str]
) -> tuple[Gallery, int]:
    """One run of each setting, or all seeds where there is one setting only; and the bytes that its pictures take."""
    runs = list(groups[0].runs) if len(groups) == 1 else [group.runs[0] for group in groups]
    notes = list(notes)
    pictures = []
    for run in runs:
        # without room, as when the text alone is measured, there is no need to decode them
        found, unreadable = find_pictures(run, info.pictures) if budget > 0 and info.pictures else ([], [])
        pictures += found
        notes += [f"{run.name}: {sentence}" for sentence in unreadable]
    if pictures and len(groups) > 1 and any(len(group.runs) > 1 for group in groups):
        notes.append("Pictures are of the first run of each setting.")
    if info.pictures is not None and info.metrics and not pictures:
        notes.append(f"There are no pictures ({info.pictures.folder}/ is missing or empty).")
    embedded, smaller = embed(pictures, budget)
    notes += [smaller] if smaller else []
    if pictures and info.pictures is not None and info.pictures.colours and not any(run.colours for run in runs):
        notes.append(f"The colours of the classes have no names here: there is no {info.pictures.colours}.")
    shots, picture_bytes = shots_of(embedded, [run.name for run in runs], part_id)
    views = [view for view in (*(info.pictures.views if info.pictures else ()), PANEL)
             if any(view in by_view for by_view in shots.values())]  # fmt: skip
    return Gallery(views, [run.name for run in runs], list(shots.items()), notes), picture_bytes


def shots_of(
    embedded: Sequence[Embedded], names: Sequence[str], part_id: str
) -> tuple[dict[str, dict[View, list[Shot]]], int]:
    """Pictures by image and view, equal ones held once, and how many bytes they take."""
    images: dict[str, dict[View, list[Shot]]] = {}
    first: dict[str, str] = {}
    for position, one in enumerate(embedded):
        shot_id, picture = f"{part_id}-picture-{position}", one.picture
        # not format(), since the text may be a stranger's
        alt = picture.view.alt.replace("{run}", picture.run).replace("{image}", picture.name)
        shot = Shot(shot_id, one, alt, names.index(picture.run), first.get(one.uri))
        first.setdefault(one.uri, shot_id)
        images.setdefault(picture.name, {}).setdefault(picture.view, []).append(shot)
    return images, sum(len(uri) for uri in first)


def _command(run: Run) -> str:
    """What was typed, ready to be pasted; empty where the run does not say."""
    words = at(run.environment, "command")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        return ""
    program = PurePath(words[0])
    # python -m has put the module's file in place of its name
    module = f"python -m {program.parent.name}.{program.stem}" if program.suffix == ".py" else shlex.quote(words[0])
    return f"{module} {shlex.join(words[1:])}".strip()[:_LONGEST_COMMAND]


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
