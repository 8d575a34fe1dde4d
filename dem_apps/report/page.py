"""Pages of one file: what happened in one run, or how several compare. Only files of the run folders are read."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dem_apps.errors import InputError, printable
from dem_apps.report.charts import curve_charts
from dem_apps.report.pictures import compared_pictures, embed_videos, find_pictures, gallery
from dem_apps.report.runs import (
    NOT_OF_AN_ARM,
    Finished,
    Group,
    Run,
    differing,
    flat,
    grouped,
    read_runs,
)
from dem_apps.report.tables import Cell, Table, answer, class_table, comparison_table, scores_of
from dem_apps.runtime.files import write_atomically
from dem_apps.runtime.metrics_info import Metric, Score

#: Scores in the first table, and arms in the title; the other scores are folded.
_SCORES, _ARMS = 6, 4
#: What moves the pictures of a slider, and of frames shows one.
_SLIDE = (
    'document.querySelectorAll(".slide input").forEach(i => i.oninput = () => { const b = i.closest("div"); '
    'b.style.setProperty("--at", i.value + "%"); '
    'b.querySelectorAll("[data-at]").forEach(e => e.hidden = e.dataset.at != i.value) })'
)
#: How a page begins that may be replaced by a newer one.
GENERATOR = '<!doctype html>\n<meta name="generator" content="dem-apps report">'


@dataclass(frozen=True)
class Section:
    """A part of a page: its heading, what kind of content it has, and the content.

    ``text`` and ``notes`` (in a box) are sentences, ``facts`` and ``folded`` (behind a click) names and values,
    ``table`` and ``more`` (behind a click) a Table, ``charts`` data URIs, ``gallery`` a Gallery, ``slider`` one whose
    pictures by two runs lie above each other, ``comparison`` a Comparison, ``frames`` :class:`Frames`, ``colours``
    #rrggbb.
    """

    heading: str
    kind: Literal[
        "text",
        "notes",
        "facts",
        "table",
        "charts",
        "gallery",
        "slider",
        "comparison",
        "frames",
        "videos",
        "colours",
        "folded",
        "more",
    ]
    content: Any


@dataclass(frozen=True)
class Frames:
    """Pictures of some images at every position of one slider."""

    captions: Sequence[str]  #: of the positions
    at: int  #: that is shown first
    images: Sequence[tuple[str, Sequence[str]]]  #: a name, and a data URI at every position


def write_report(paths: Sequence[Path], out: Path, baseline: Path | None = None) -> Path:
    """Read the runs and write the page, over an earlier one; ``baseline`` is by default the first run."""
    if out.exists() and (not out.is_file() or not out.read_bytes().startswith(GENERATOR.encode())):
        raise InputError(f"--out: {out} exists and is no report of this command; give another file")
    runs = read_runs(paths)
    first = next(
        (run for run in runs if baseline is not None and run.path.resolve() == baseline.resolve()),
        None,
    )
    if baseline is not None and first is None:
        raise InputError(f"--baseline: {baseline} is none of the runs given; name one of them")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, render_runs(runs, first))
    return out


def write_grid_page(finished: Sequence[Finished], out: Path, control: str | None) -> Path:
    """Write the page of a grid's finished runs, named by their arms; ``control`` is by default the first arm."""
    several = len({run.seed for *_, run in finished}) > 1
    runs = [
        replace(run, name=f"{arm}, seed {run.seed}" if several else arm, row=row, arm=arm)
        for row, arm, run in finished
    ]
    baseline = next((run for run in runs if run.arm == control), None)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, render_runs(runs, baseline))
    return out


def render_runs(runs: Sequence[Run], baseline: Run | None = None) -> bytes:
    """The page of runs; those of different applications or tasks stand below each other and are not compared."""
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        kinds.setdefault(run.kind, []).append(run)
    sections = [section for members in kinds.values() for section in _sections(members, baseline)]
    if len(kinds) > 1:
        several = (
            f"{len(kinds)} different tasks, whose scores cannot be compared: {'; '.join(kinds)}."
        )
        sections.insert(0, Section("", "notes", [several]))
    arms = [group.name for group in grouped(runs)]
    return render(", ".join(arms) if len(arms) <= _ARMS else f"{len(runs)} runs compared", sections)


def render(title: str, sections: Sequence[Section]) -> bytes:
    """A page of one file that loads nothing and runs a slider's line alone; sections without content are left out."""
    folder = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(
        loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_shown
    )
    shown = [section for section in sections if section.content]
    script = (
        Markup(_SLIDE) if any(section.kind in ("slider", "frames") for section in shown) else ""
    )
    digest = base64.b64encode(hashlib.sha256(_SLIDE.encode()).digest()).decode()
    text = environment.get_template("page.html").render(
        title=title, sections=shown, script=script, script_hash=digest
    )
    return f"{GENERATOR}\n{text}".encode(errors="replace")


def _shown(value: Any) -> Any:
    # and not Markup, which is the template's
    return printable(value) if type(value) is str else value


def _sections(runs: Sequence[Run], baseline: Run | None) -> list[Section]:
    groups = grouped(runs)
    reference = next((group for group in groups if baseline in group.runs), groups[0])
    info, several = runs[0].info, len(runs) > 1
    shown = list(groups[0].runs) if len(groups) == 1 else [group.runs[0] for group in groups]
    found = [picture for run in shown for picture in find_pictures(run)]
    pictures = gallery(found)
    videos = [video for run in shown for video in embed_videos(run)]
    first_of_arm = pictures and len(groups) > 1 and any(len(group.runs) > 1 for group in groups)
    scores = scores_of(runs)
    curves: dict[str, list[Metric]] = {"Curves": [], "Label-free curves": []}
    for metric in info.metrics:
        curves["Label-free curves" if metric.label_free else "Curves"].append(metric)
    colours = next(filter(None, (run.colours() for run in runs)), []) if pictures else []
    alarms = [f"{run.name}, step {step:,}: {text}" for run in runs for step, text in run.alarms()]
    first_answer = answer(scores, groups, reference)
    return [
        Section(runs[0].kind, "text", [first_answer] if first_answer else []),
        Section("", "comparison", compared_pictures(found) if len(shown) > 1 else None),
        Section(
            "" if several else runs[0].kind, "text", [] if several else _summary(scores, runs[0])
        ),
        Section(
            "Scores",
            "table",
            _scores_table(scores[:_SCORES], groups, reference) if several else None,
        ),
        Section("Arms", "text", _arms(groups) if several else []),
        Section("", "facts", [] if several else _facts(runs[0])),
        Section(
            "Missing",
            "notes",
            [f"{run.name}: {sentence}" for run in runs for sentence in run.missing],
        ),
        Section("Alarms", "notes", alarms),
        Section("Settings that differ", "table", _differences(groups)),
        Section("Pictures", "gallery", pictures),
        Section("", "colours", colours),
        Section(
            "", "notes", ["Pictures are of the first run of each arm."] if first_of_arm else []
        ),
        Section("Videos", "videos", videos),
        Section(
            "Scores",
            "table",
            None if several else _scores_table(scores[:_SCORES], groups, reference),
        ),
        Section("More scores", "more", _scores_table(scores[_SCORES:], groups, reference)),
        Section("Classes", "table", class_table(groups)),
        *(Section(name, "charts", curve_charts(groups, drawn)) for name, drawn in curves.items()),
        *(Section(f"How {run.name} was made", "folded", _made(run)) for run in runs),
    ]


def _summary(scores: Sequence[Score], run: Run) -> list[str]:
    """What a run is, its first score, and what it has to be compared with."""
    lines = [": ".join(filter(None, (run.name, run.info.summary)))]
    value = run.score(scores[0].key) if scores else None
    if value is not None:
        lines.append(f"{scores[0].title}: {scores[0].text(value)}.")
    if value is not None and run.info.control:
        lines.append(f"The effect of training is the difference to {run.info.control}.")
    return lines


def _arms(groups: Sequence[Group]) -> list[str]:
    """What each arm is, where its name does not say it."""
    summaries = [(group.name, group.runs[0].info.summary) for group in groups]
    return [
        f"{name}: {summary}"
        for name, summary in summaries
        if summary and not summary.startswith(name)
    ]


def _scores_table(
    scores: Sequence[Score], groups: Sequence[Group], reference: Group
) -> Table | None:
    """Arms as rows; of one arm, and of a few, scores as rows."""
    if not scores:
        return None
    table = comparison_table(scores, groups, reference)
    if len(groups) > 5:
        return table
    names = [f"{score.title} ({score.note})" if score.note else score.title for score in scores]
    rows = [
        (name, [cells[place] for _, cells in table.rows])
        for place, name in enumerate(names, start=1)
    ]
    return Table(table.caption, ["score", *(name for name, _ in table.rows)], rows, table.note)


def _differences(groups: Sequence[Group]) -> Table | None:
    if len(groups) < 2:
        return None
    first = [group.runs[0] for group in groups]
    # a run does not name those that it makes no use of
    named = {key for run in first for key in run.info.settings}
    rows = differing(
        [
            {k: v for k, v in flat(run.config).items() if k not in named - set(run.info.settings)}
            for run in first
        ]
    )
    rows = {key: values for key, values in rows.items() if key not in NOT_OF_AN_ARM}
    rows["seeds"] = [", ".join(group.seeds) for group in groups]
    cells = [(key, [Cell(value) for value in values]) for key, values in rows.items()]
    return Table("", ["setting", *(group.name for group in groups)], cells)


def _facts(run: Run) -> list[tuple[str, str]]:
    settings = flat(run.config)
    facts = [
        (key.replace("_", " "), settings[key])
        for key in (*run.info.settings, "seed")
        if key in settings
    ]
    steps = max((line["step"] for line in run.metrics), default=0)
    return [
        *facts,
        ("steps", f"{steps:,}"),
        ("state", "finished" if run.evaluation else "not finished"),
    ]


def _made(run: Run) -> list[tuple[str, str]]:
    """Command, settings, protocol and environment of a run."""
    words = run.environment.get("command")
    command = ""
    if isinstance(words, list) and words:
        program = PurePath(str(words[0]))
        command = (
            f"python -m {program.parent.name}.{program.stem} {shlex.join(map(str, words[1:]))}"
        )
    where = {"folder": str(run.path), **run.environment}
    documents = {
        "settings": run.config,
        "protocol": run.evaluation.get("protocol", {}),
        "environment": where,
    }
    return [("command", command), *flat(documents).items()]
