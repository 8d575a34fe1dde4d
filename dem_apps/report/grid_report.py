"""What the runs of a grid have come to: a CSV line for each, and tables of arms beside their control as Markdown.

What the scores are comes from the runs, and the numbers are those of a page of the same runs (:mod:`.tables`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from dem_apps.errors import printable
from dem_apps.report.groups import Group, differing
from dem_apps.report.settings_text import flat
from dem_apps.report.tables import Table, by_class, class_table, comparison_table, scores_of
from dem_apps.report.text_tables import markdown, write_csv
from dem_apps.runtime.files import write_atomically
from dem_apps.runtime.metrics_info import Score
from dem_apps.runtime.run_reader import Run, read_run

#: Row and arm of a grid, and a finished run of theirs.
Finished = tuple[str, str, Path]
_TAIL = Score("tail_classes", "tail classes %", better="higher", scale=100, digits=2)
_NOTE = (
    "Mean ± sample standard deviation over seeds. Differences: mean over the seeds that both have, in brackets its "
    "95 % interval (Student's t, paired by seed); bold where it excludes 0; without brackets there is one seed. "
    "Nothing corrects for the number of arms.\n"
)

#: What a report consists of, and how each file begins.
REPORT_FILES = {"runs.csv": "row,arm,seed", "table.md": _NOTE.partition(".")[0]}


def write_grid_report(finished: Sequence[Finished], out: Path, control: str | None, tail: Sequence[str]) -> str:
    """Write ``runs.csv`` and ``table.md``, and return the first score of each arm as a table that fits a terminal.

    Args:
        finished: at least one; a row's name is empty where the grid has no rows.
        out: folder; made if missing, an earlier report in it is replaced.
        control: the arm that the others are compared with, if any.
        tail: names of the tail classes; empty takes those that are rare in the labels.

    Raises:
        InputError: a run that cannot be read.
    """
    members = _with_tail([read_run(path) for _, _, path in finished], tail)
    runs = [(row, arm, run) for (row, arm, _), run in zip(finished, members, strict=True)]
    text, brief = _NOTE, ""
    for row in dict.fromkeys(row for row, _, _ in runs):
        arms: dict[str, list[Run]] = {}
        for other, arm, run in runs:
            if other == row:
                arms.setdefault(arm, []).append(run)
        text += f"\n## {row}\n\n" if row else "\n"
        groups = [Group(arm, tuple(members), {}) for arm, members in arms.items()]
        text += _arms_text(groups, control, tail)
        brief += (f"\n{printable(row)}\n" if row else "\n") + _brief(groups, control)
    text = text.rstrip("\n") + "\n"
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "runs.csv", _csv_rows(runs))
    write_atomically(out / "table.md", text.encode())
    return brief


def _with_tail(runs: Sequence[Run], tail: Sequence[str]) -> list[Run]:
    """The runs with the mean over their tail classes as one more score."""
    about = runs[0].info.classes
    table = class_table(about, [Group("all", tuple(runs), {})], tail) if about else None
    tails = {name for name, mark, _ in table.rows if mark} if table else set()
    if about is None or not tails:
        return list(runs)
    extended = []
    for run in runs:
        found = [value for name, value in by_class(run, about.key).items() if name in tails and value is not None]
        evaluation = {**run.evaluation, _TAIL.key: fmean(found)} if found else run.evaluation
        info = replace(run.info, scores=(*scores_of([run]), _TAIL))
        extended.append(replace(run, info=info, evaluation=evaluation))
    return extended


def _arms_text(groups: Sequence[Group], control: str | None, tail: Sequence[str]) -> str:
    baseline = next((group for group in groups if group.name == control), None)
    described = scores_of(groups[0].runs)
    scores = comparison_table(described, groups, baseline or groups[0])
    warned = {score.title: f"{score.title} ({score.note})" for score in described if score.warning}
    text = markdown(
        ["arm", "seeds", *(warned.get(title, title) for title, _ in scores.header[1:])],
        [[group.name, str(len(group.runs)), *(cell.main for cell in cells)]
         for group, (_, _, cells) in zip(groups, scores.rows, strict=True)],
    )  # fmt: skip
    if baseline is not None and len(groups) > 1:
        text += _differences(scores, groups, baseline)
    about = groups[0].runs[0].info.classes
    classes = class_table(about, groups, tail) if about else None
    if classes is not None:
        rows = [[f"{name} ({mark})" if mark else name, *(cell.main for cell in cells)]
                for name, mark, cells in classes.rows]  # fmt: skip
        text += markdown([classes.caption, *(title for title, _ in classes.header[1:])], rows) + f"{classes.note}\n"
    return text


def _brief(groups: Sequence[Group], control: str | None) -> str:
    """The first score alone, in columns: of each arm, and its difference to the control where there is one."""
    baseline = next((group for group in groups if group.name == control), None)
    table = comparison_table(scores_of(groups[0].runs)[:1], groups, baseline or groups[0])
    titles = [title for title, _ in table.header[1:]]
    lines = [["arm", "seeds", *titles, *([f"minus {control} [95 %]"] if baseline and titles else [])]]
    for group, (_, _, cells) in zip(groups, table.rows, strict=True):
        difference = [cell.small if group is not baseline else "" for cell in cells] if baseline else []
        lines.append([group.name, str(len(group.runs)), *(cell.main for cell in cells), *difference])
    lines = [[printable(text) for text in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in lines
    )


def _differences(scores: Table, groups: Sequence[Group], baseline: Group) -> str:
    """The first score seed by seed, then every score's mean difference with its interval."""
    first = scores_of(baseline.runs)[0]
    theirs = baseline.by_seed(lambda run: run.score(first.key))
    lines = []
    for group, (_, _, cells) in zip(groups, scores.rows, strict=True):
        if group is not baseline:
            ours = group.by_seed(lambda run: run.score(first.key))
            seeds = [
                f"{first.scale * (ours[seed] - theirs[seed]):+.{first.digits}f}" if seed in ours else "–"
                for seed in theirs
            ]
            lines.append([group.name, *seeds, *(f"**{c.small}**" if c.strong else c.small or "–" for c in cells)])
    header = [f"minus {baseline.name}", *(f"{first.title}, seed {seed}" for seed in theirs)]
    return markdown([*header, *(f"{title} [95 %]" for title, _ in scores.header[1:])], lines)


def _csv_rows(runs: Sequence[tuple[str, str, Run]]) -> list[dict[str, Any]]:
    """Row, arm, seed, the settings in which runs differ, every score unscaled, and the scores of every class."""
    differ = differing([flat(run.config) for _, _, run in runs])
    settings = {key: values for key, values in differ.items() if key not in ("seed", "run_dir", "resume")}
    rows = []
    for position, (row, arm, run) in enumerate(runs):
        about = run.info.classes
        line = {"row": row, "arm": arm, "seed": run.seed}
        line |= {key: values[position] for key, values in settings.items()}
        line |= {score.key: run.score(score.key) for score in scores_of([run])}
        if about is not None:
            line |= {f"{about.title} {name}": value for name, value in by_class(run, about.key).items()}
        rows.append(line)
    return rows
