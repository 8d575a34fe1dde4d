"""Pages of one file: what happened in one run, or how several compare. Only files of the run folders are read."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dem_apps.errors import InputError, printable
from dem_apps.report.charts import curve_charts
from dem_apps.report.pictures import embed_videos, find_pictures, gallery
from dem_apps.report.runs import (
    Groups,
    Run,
    Runs,
    differing,
    flat,
    grouped,
    read_runs,
)
from dem_apps.report.tables import Cell, Table, answer, class_table, comparison_table, scores_of
from dem_apps.runtime.files import write_atomically
from dem_apps.runtime.metrics_info import Scores

#: Scores in the first table, and arms in the title; the other scores are folded.
_SCORES, _ARMS = 6, 4
#: How a page begins that may be replaced by a newer one.
GENERATOR = '<!doctype html>\n<meta name="generator" content="dem-apps report">'


@dataclass(frozen=True)
class Section:
    """A part of a page: its heading, what kind of content it has, and the content.

    The kinds: ``text`` and ``notes`` (in a box) are sentences, ``facts`` and ``folded`` (behind a click) names and
    values, ``table`` and ``more`` (behind a click) a Table, ``charts`` data URIs, ``gallery`` a Gallery, ``videos``
    Pictures, ``colours`` #rrggbb.
    """

    heading: str
    kind: str
    content: Any


def write_report(paths: Sequence[Path], out: Path) -> Path:
    """Read the runs and write the page, over an earlier one; the first run is the baseline."""
    if out.exists() and not (out.is_file() and out.read_bytes().startswith(GENERATOR.encode())):
        raise InputError(f"--out: {out} exists and is no report of this command; give another file")
    page = render_runs(read_runs(paths))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page)
    return out


def write_grid_page(finished: Runs, out: Path, control: str | None) -> Path:
    """Write the page of a grid's finished runs, named by their arms, the ``control`` first."""
    runs = [replace(run, name=f"{run.arm}, seed {run.seed}") for run in finished]
    runs.sort(key=lambda run: run.arm != control)
    write_atomically(out, render_runs(runs))
    return out


def render_runs(runs: Runs) -> bytes:
    """Return the page of runs, which are compared with the first.

    Those of different applications or tasks stand below each other and are not compared.
    """
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        kinds.setdefault(run.kind, []).append(run)
    sections = []
    if len(kinds) > 1:
        text = f"{len(kinds)} different tasks, whose scores cannot be compared: {'; '.join(kinds)}."
        sections.append(Section("", "notes", [text]))
    for kind, members in kinds.items():
        sections += _sections(kind, members)
    arms = [group.name for group in grouped(runs)]
    title = ", ".join(arms) if len(arms) <= _ARMS else f"{len(runs)} runs compared"
    return render(title, sections)


def render(title: str, sections: Sequence[Section]) -> bytes:
    """A page of one file that loads nothing and runs nothing; sections without content are left out."""
    folder = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(
        loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_shown
    )
    shown = [section for section in sections if section.content]
    text = environment.get_template("page.html").render(title=title, sections=shown)
    return f"{GENERATOR}\n{text}".encode(errors="replace")


def _shown(value: Any) -> Any:
    # and not Markup, which is the template's
    return printable(value) if type(value) is str else value


def _sections(kind: str, runs: Runs) -> list[Section]:
    """Return the part of a page about runs of one kind, from the result down to how each run was made."""
    alone = len(runs) == 1
    groups, scores = grouped(runs), scores_of(runs)
    return [
        Section(kind, "text", _summary(scores, groups, alone)),
        Section("", "facts", _facts(runs[0]) if alone else []),
        Section("Alarms", "notes", _alarms(runs)),
        Section("Not finished", "notes", [run.name for run in runs if not run.evaluation]),
        *_pictures("Pictures" if alone else "Pictures of each arm's first run", groups),
        Section("Scores", "table", _scores_table(scores[:_SCORES], groups)),
        Section("Arms", "text", [] if alone else _arms(groups)),
        Section("Settings that differ", "table", _differences(groups)),
        Section("More scores", "more", _scores_table(scores[_SCORES:], groups)),
        Section("Classes", "table", class_table(groups)),
        Section("Curves", "charts", curve_charts(groups, label_free=False)),
        Section("Label-free curves", "charts", curve_charts(groups, label_free=True)),
        *(Section(f"How {run.name} was made", "folded", _made(run)) for run in runs),
    ]


def _pictures(heading: str, groups: Groups) -> list[Section]:
    firsts = [group.runs[0] for group in groups]
    pictures = gallery([picture for run in firsts for picture in find_pictures(run)])
    colours = next(filter(None, map(Run.colours, firsts)), [])
    return [
        Section(heading, "gallery", pictures),
        Section("", "colours", colours if pictures else []),
        Section("Videos", "videos", [video for run in firsts for video in embed_videos(run)]),
    ]


def _alarms(runs: Runs) -> list[str]:
    """Return the alarms in the logs."""
    return [
        f"{run.name}, step {line['step']:,}: {line['alarm']}"
        for run in runs
        for line in run.metrics
        if line.get("alarm")
    ]


def _summary(scores: Scores, groups: Groups, alone: bool) -> list[str]:
    """Return the result in sentences: the best arm, or what the only run is and has to be compared with."""
    if not alone:
        return [answer(scores, groups, groups[0])]
    (run,) = groups[0].runs
    lines = _arms(groups)
    if scores:
        value = scores[0].text(run.score(scores[0].key) or 0.0)
        lines.append(f"{scores[0].title}: {value}.")
        if run.info.control:
            lines.append(f"The effect of training is the difference to {run.info.control}.")
    return lines


def _arms(groups: Groups) -> list[str]:
    """Return what each arm is, where its name does not say it."""
    summaries = [(group.name, group.runs[0].info.summary) for group in groups]
    return [f"{name}: {text}" for name, text in summaries if text and not text.startswith(name)]


def _scores_table(scores: Scores, groups: Groups) -> Table | None:
    """Return arms as rows; of a few arms, scores as rows."""
    if not scores:
        return None
    table = comparison_table(scores, groups, groups[0])
    if len(groups) > 5:
        return table
    rows = []
    for place, score in enumerate(scores, start=1):
        name = f"{score.title} ({score.note})" if score.note else score.title
        rows.append((name, [cells[place] for _, cells in table.rows]))
    return Table(table.caption, ["score", *(name for name, _ in table.rows)], rows, table.note)


def _differences(groups: Groups) -> Table | None:
    if len(groups) < 2:
        return None
    rows = differing([flat(group.runs[0].config) for group in groups])
    rows["seeds"] = [", ".join(group.seeds) for group in groups]
    cells = [(key, [Cell(value) for value in values]) for key, values in rows.items()]
    return Table("", ["setting", *(group.name for group in groups)], cells)


def _facts(run: Run) -> list[tuple[str, str]]:
    settings = flat(run.config)
    named = [key for key in (*run.info.settings, "seed") if key in settings]
    steps = max((line["step"] for line in run.metrics), default=0)
    return [
        *((key.replace("_", " "), settings[key]) for key in named),
        ("steps", f"{steps:,}"),
    ]


def _made(run: Run) -> list[tuple[str, str]]:
    """Return command, settings, protocol and environment of a run."""
    program, *arguments = map(str, run.environment.get("command") or ["unknown"])
    module = ".".join(PurePath(program).with_suffix("").parts[-2:])
    documents = {
        "settings": run.config,
        "protocol": run.evaluation.get("protocol", {}),
        "environment": {"folder": str(run.path), **run.environment},
    }
    return [("command", f"python -m {module} {shlex.join(arguments)}"), *flat(documents).items()]
