"""The report of a grid: a CSV line for each run, and tables of arms beside their control as Markdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError
from dem_apps.report.runs import NOT_OF_AN_ARM, Group, Run, differing, flat, read_run
from dem_apps.report.tables import (
    Cell,
    class_table,
    comparison_table,
    markdown,
    scores_of,
    tail_classes,
    tail_mean,
    write_csv,
)
from dem_apps.runtime.files import write_atomically
from dem_apps.runtime.metrics_info import Score

#: Row and arm of a grid, and a finished run of theirs.
Finished = tuple[str, str, Path]
#: Runs by row of a grid, then by arm.
Compared = dict[str, dict[str, list[Run]]]
_TAIL = Score("tail_classes", "tail classes %", better="higher", scale=100, digits=2)


def write_grid_report(finished: Sequence[Finished], out: Path, control: str | None, tail: Sequence[str]) -> str:
    """Write ``runs.csv`` and ``table.md``, and return the tables of the first score alone, which fit a terminal.

    A row's name is empty where the grid has no rows; without ``tail`` the tail classes are those rare in the labels.
    """
    members = _with_tail([read_run(path) for _, _, path in finished], tail)
    runs = [(row, arm, run) for (row, arm, _), run in zip(finished, members, strict=True)]
    compared = by_row(runs)
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "runs.csv", _csv_rows(runs))
    write_atomically(out / "table.md", score_tables(compared, control, tail=tail).encode())
    return score_tables(compared, control, [members[0].info.scores[0].key])


def by_row(runs: Sequence[tuple[str, str, Run]]) -> Compared:
    """The runs of each row and arm, in the order given; an InputError for two of one seed."""
    compared: Compared = {}
    for row, arm, run in runs:
        of_arm = compared.setdefault(row, {}).setdefault(arm, [])
        for other in of_arm:
            if other.seed == run.seed:
                raise InputError(f"{other.path} and {run.path}: both are {arm}, seed {run.seed}; leave one out")
        of_arm.append(run)
    return compared


def score_tables(
    compared: Compared, control: str | None, keys: Collection[str] | None = None, tail: Sequence[str] = ()
) -> str:
    """Tables in Markdown, a line per arm: mean ± standard deviation over seeds, in parentheses the difference to the
    control. ``keys`` names the scores; None is for all of them, and those of each class."""
    text, note = "", ""
    for row, by_arm in compared.items():
        groups = [Group(arm, tuple(runs)) for arm, runs in by_arm.items()]
        every = scores_of([run for group in groups for run in group.runs])
        scores = [score for score in every if keys is None or score.key in keys]
        table = comparison_table(scores, groups, next((group for group in groups if group.name == control), None))
        classes = class_table(groups, tail) if keys is None else None
        text += f"## {row}\n\n" if row else ""
        for each in filter(None, (table, classes)):
            lines = [each.header, *([name, *map(_in_one_line, cells)] for name, cells in each.rows)]
            widths = [max(map(len, column)) for column in zip(*lines, strict=True)]  # for a terminal
            header, *rows = [[f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)] for line in lines]
            text += f"{each.caption}\n\n{markdown(header, rows)}"
        note = max(note, table.note.replace("Small", "In parentheses"), key=len)
    return f"{text}{note}\n"


def _in_one_line(cell: Cell) -> str:
    small = f"**{cell.small}**" if cell.strong else cell.small
    return f"{cell.main} ({small})" if small else cell.main


def _with_tail(runs: Sequence[Run], tail: Sequence[str]) -> list[Run]:
    """The runs with the mean over their tail classes as one more score."""
    tails = tail_classes([Group("all", tuple(runs))], tail)
    extended = []
    for run in runs:
        mean = tail_mean(run, tails) if run.info.classes else None
        info = replace(run.info, scores=(*run.info.scores, _TAIL))
        extended.append(replace(run, info=info, evaluation={**run.evaluation, _TAIL.key: mean}))
    return extended


def _csv_rows(runs: Sequence[tuple[str, str, Run]]) -> list[dict[str, Any]]:
    """Row, arm, seed, the settings in which runs differ, every score unscaled, and the scores of every class."""
    differ = differing([flat(run.config) for _, _, run in runs])
    rows = []
    for position, (row, arm, run) in enumerate(runs):
        line = {"row": row, "arm": arm, "seed": run.seed}
        line |= {key: values[position] for key, values in differ.items() if key not in NOT_OF_AN_ARM}
        line |= {score.key: run.score(score.key) for score in run.info.scores}
        for classes in run.info.classes[:1]:
            line |= {f"{classes.title} {name}": value for name, value in run.by_class(classes.key).items()}
        rows.append(line)
    return rows
