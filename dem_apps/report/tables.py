"""Tables of scores over seeds: mean, standard deviation, and difference to a baseline with its 95 % CI.

For a page, and as CSV and Markdown for the report of a grid.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError, printable
from dem_apps.report.intervals import difference_interval
from dem_apps.report.runs import Group, Groups, Run, Runs, differing, flat, runs_of
from dem_apps.runtime.documents import Document
from dem_apps.runtime.files import write_atomically
from dem_apps.runtime.metrics_info import Score, Scores

#: Runs by row of a grid, then by arm.
Compared = dict[str, dict[str, list[Run]]]


@dataclass(frozen=True)
class Cell:
    """A table cell: ``main`` and ``small`` below it; ``strong`` where a CI excludes 0."""

    main: str
    small: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """A table: its caption, the heading of every column, rows of a name and cells, and a note below."""

    caption: str
    header: list[str]
    rows: list[tuple[str, list[Cell]]] = field(default_factory=list)
    note: str = ""


def scores_of(runs: Runs) -> tuple[Score, ...]:
    """Return the scores that the runs describe and at least one of them has."""
    return tuple(
        score
        for score in runs[0].info.scores
        if any(run.score(score.key) is not None for run in runs)
    )


def comparison_table(scores: Scores, groups: Groups, baseline: Group | None) -> Table:
    """Make a row per group and a column per score: mean ± standard deviation over seeds, and the difference."""
    notes = []
    if any(len(group.runs) > 1 for group in groups):
        notes.append("Mean ± sample standard deviation over seeds.")
    if baseline is not None and len(groups) > 1:
        notes.append(
            f"Small: difference to the baseline “{baseline.name}” with its 95 % CI (Student's t over seeds that both "
            "have, else Welch's); bold where it excludes 0. Nothing corrects for the number of comparisons."
        )
    titles = [f"{score.title} ({score.note})" if score.warning else score.title for score in scores]
    table = Table("Final scores", ["arm", "seeds", *titles], note=" ".join(notes))
    for group in groups:
        cells = [compared(score, group, baseline) for score in scores]
        table.rows.append((group.name, [Cell(str(len(group.runs))), *cells]))
    return table


def compared(score: Score, group: Group, baseline: Group | None) -> Cell:
    """Return mean ± standard deviation, and the difference to the baseline with its CI; in words where it excludes 0.

    There is no difference where a score of either side is censored: of bounds, Student's t says nothing.
    """
    values = group.scores(score.key)
    main = spread(score, values.values())
    if baseline is None or group is baseline or group.censored(score) or baseline.censored(score):
        return Cell(main)
    of_baseline = baseline.scores(score.key)
    if not values or not of_baseline:
        return Cell(main)
    interval = difference_interval(values, of_baseline)
    text = score.text(interval.estimate, "+")
    if interval.low is not None and interval.high is not None:
        text += f" [{score.text(interval.low, '+')}, {score.text(interval.high, '+')}]"
    if interval.excludes_zero and score.better:
        higher = interval.estimate > 0
        text += ", better" if higher == (score.better == "higher") else ", worse"
    return Cell(main, text, strong=interval.excludes_zero)


def spread(score: Score, values: Collection[float]) -> str:
    """Return mean ± sample standard deviation; a dash where there is no value."""
    if not values:
        return "–"
    mean = score.text(statistics.fmean(values))
    return f"{mean} ± {score.text(statistics.stdev(values))}" if len(values) > 1 else mean


def answer(scores: Scores, groups: Groups, reference: Group) -> str:
    """Return the result of a comparison in words: the best arm by the first score."""
    scored = [group for group in groups if scores and group.scores(scores[0].key)]
    if len(scored) < 2:
        return ""
    score = scores[0]
    kind, pick = ("lowest", min) if score.better == "lower" else ("highest", max)
    best = pick(scored, key=lambda group: statistics.fmean(group.scores(score.key).values()))
    cell = compared(score, best, reference)
    over = f" ({cell.small} over “{reference.name}”)" if cell.small else ""
    title = score.title.removesuffix(", last")
    text = f"The {kind} {title} is {cell.main}, by “{best.name}”{over}."
    if cell.small and "[" not in cell.small:
        text += " One seed an arm: a difference of a few points may be chance."
    return text


def class_table(groups: Groups) -> Table | None:
    """Make a table of scores by class; None where there is none."""
    columns = _class_columns(groups)
    if not columns:
        return None
    _, main, _ = columns[0]
    runs = runs_of(groups)
    tail = set(chain.from_iterable(map(Run.tail, runs)))
    names = chain.from_iterable(run.by_class(main.key) for run in runs)
    table = Table(f"{main.title} by class", ["class", *(heading for heading, *_ in columns)])
    for name in dict.fromkeys(names):
        cells = [
            Cell(spread(score, group.scores(score.key, name).values()))
            for _, score, group in columns
        ]
        table.rows.append((f"{name} (tail)" if name in tail else name, cells))
    return table


def _class_columns(groups: Groups) -> list[tuple[str, Score, Group]]:
    """Return the headings of a table by class with their scores: an arm each, or of a single run a mapping each."""
    runs = runs_of(groups)
    known = [
        score for score in runs[0].info.classes if any(run.by_class(score.key) for run in runs)
    ]
    if len(runs) == 1:
        return [(score.title, score, groups[0]) for score in known]
    # without labels there is no IoU
    return [(group.name, score, group) for score in known[:1] for group in groups]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, with an empty line behind it."""
    text = ""
    for line in (header, ["---"] * len(header), *rows):
        cells = [printable(cell).replace("|", "/") for cell in line]
        text += f"| {' | '.join(cells)} |\n"
    return f"{text}\n"


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a line per row under a line of keys; a key that a row lacks, and None, are empty.

    A file name that is no UTF-8 is written with escapes.
    """
    text = io.StringIO()
    keys = list(dict.fromkeys(chain.from_iterable(rows)))
    writer = csv.DictWriter(text, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode(errors="backslashreplace"))


def write_grid_report(finished: Runs, out: Path, control: str | None) -> str:
    """Write ``runs.csv`` and ``table.md``.

    Args:
        finished: the runs.
        out: the folder of the report.
        control: the arm to compare with.

    Returns:
        The tables of the first score alone, which fit a terminal.
    """
    compared = by_row(finished)
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "runs.csv", _csv_rows(finished))
    write_atomically(out / "table.md", score_tables(compared, control).encode())
    return score_tables(compared, control, [finished[0].info.scores[0].key])


def by_row(runs: Runs) -> Compared:
    """Return the runs of each row and arm, in the order given; an InputError for two of one seed."""
    compared: Compared = {}
    for run in runs:
        of_arm = compared.setdefault(run.row, {}).setdefault(run.arm, [])
        for other in of_arm:
            if other.seed == run.seed:
                raise InputError(
                    f"{other.path} and {run.path}: both have the arm {run.arm} and the seed {run.seed}; leave one out"
                )
        of_arm.append(run)
    return compared


def score_tables(
    compared: Compared, control: str | None, keys: Collection[str] | None = None
) -> str:
    """Return tables in Markdown, a line per arm: mean ± standard deviation over seeds, and the difference.

    Args:
        compared: the runs by row and arm.
        control: the arm to compare with.
        keys: the scores; None is for all of them, and those of each class.
    """
    text = note = ""
    for row, by_arm in compared.items():
        groups = [Group(arm, tuple(runs)) for arm, runs in by_arm.items()]
        baseline = next((group for group in groups if group.name == control), None)
        scores = scores_of(runs_of(groups))
        if keys is not None:
            scores = tuple(score for score in scores if score.key in keys)
        table = comparison_table(scores, groups, baseline)
        heading = f"## {row}" if row else ""
        sentence = answer(scores, groups, baseline or groups[0])
        text += "".join(f"{part}\n\n" for part in (heading, sentence) if part)
        text += _aligned(table)
        if keys is None:
            text += _aligned(class_table(groups))
        note = max(note, table.note.replace("Small", "In parentheses"), key=len)
    return f"{text}{note}\n"


def _aligned(table: Table | None) -> str:
    """Return a table in Markdown whose columns are aligned for a terminal; nothing for None."""
    if table is None:
        return ""
    lines = [table.header]
    for name, cells in table.rows:
        line = [name]
        for cell in cells:
            small = f"**{cell.small}**" if cell.strong else cell.small
            line.append(f"{cell.main} ({small})" if small else cell.main)
        lines.append(line)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    header, *rows = [list(map(str.ljust, line, widths)) for line in lines]
    return f"{table.caption}\n\n{markdown(header, rows)}"


def _csv_rows(runs: Runs) -> list[Document]:
    """Return row, arm, seed, settings in which runs differ, every score unscaled, and scores of every class."""
    differ = differing([flat(run.config) for run in runs])
    rows = []
    for position, run in enumerate(runs):
        line = {"row": run.row, "arm": run.arm, "seed": run.seed}
        line |= {key: values[position] for key, values in differ.items()}
        line |= {score.key: run.score(score.key) for score in run.info.scores}
        for classes in run.info.classes[:1]:
            for name, value in run.by_class(classes.key).items():
                line[f"{classes.title} {name}"] = value
        rows.append(line)
    return rows
