"""Tables of scores over seeds: mean, standard deviation, and difference to a baseline with its 95 % CI.

For a page, and as CSV and Markdown for the report of a grid.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError, printable
from dem_apps.report.intervals import difference_interval
from dem_apps.report.runs import NOT_OF_AN_ARM, Finished, Group, Run, differing, flat
from dem_apps.runtime.files import write_atomically
from dem_apps.runtime.metrics_info import Score

#: A class with less than this share of the labelled pixels that are scored is a tail class.
TAIL_SHARE = 0.01
_TAIL = Score("tail_classes", "tail classes %", better="higher", scale=100, digits=2)
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


def scores_of(runs: Sequence[Run]) -> tuple[Score, ...]:
    """The scores that the runs describe and at least one of them has."""
    return tuple(
        score
        for score in runs[0].info.scores
        if any(run.score(score.key) is not None for run in runs)
    )


def comparison_table(
    scores: Sequence[Score], groups: Sequence[Group], baseline: Group | None
) -> Table:
    """A row per group and a column per score: mean ± standard deviation over seeds, and the difference."""
    note = (
        "Mean ± sample standard deviation over seeds."
        if any(len(group.runs) > 1 for group in groups)
        else ""
    )
    if baseline is not None and len(groups) > 1:
        note += (
            f" Small: difference to the baseline “{baseline.name}” with its 95 % CI (Student's t over seeds that both "
            "have, else Welch's); bold where it excludes 0. Nothing corrects for the number of comparisons."
        )
    titles = [f"{score.title} ({score.note})" if score.warning else score.title for score in scores]
    table = Table("Final scores", ["arm", "seeds", *titles], note=note.strip())
    for group in groups:
        cells = [compared(score, group, baseline) for score in scores]
        table.rows.append((group.name, [Cell(str(len(group.runs))), *cells]))
    return table


def compared(score: Score, group: Group, baseline: Group | None) -> Cell:
    """Mean ± standard deviation, and the difference to the baseline with its CI; in words where the CI excludes 0.

    There is no difference where a score of either side is censored: of bounds, Student's t says nothing.
    """
    ours = group.scores(score.key)
    main = spread(score, list(ours.values()))
    if baseline is None or group is baseline or group.censored(score) or baseline.censored(score):
        return Cell(main)
    theirs = baseline.scores(score.key)
    if not ours or not theirs:
        return Cell(main)
    interval = difference_interval(ours, theirs)
    text = score.text(interval.estimate, "+")
    if interval.low is not None and interval.high is not None:
        text += f" [{score.text(interval.low, '+')}, {score.text(interval.high, '+')}]"
    if interval.excludes_zero and score.better:
        text += ", better" if (interval.estimate > 0) == (score.better == "higher") else ", worse"
    return Cell(main, text, strong=interval.excludes_zero)


def spread(score: Score, values: Sequence[float]) -> str:
    """Mean ± sample standard deviation; a dash where there is no value."""
    if not values:
        return "–"
    std = f" ± {score.text(statistics.stdev(values))}" if len(values) > 1 else ""
    return score.text(statistics.fmean(values)) + std


def answer(scores: Sequence[Score], groups: Sequence[Group], reference: Group) -> str:
    """The result of a comparison in two sentences: the best arm by the first score, then the others."""
    if not scores:
        return ""
    score = scores[0]
    scored = [group for group in groups if group.scores(score.key)]
    if len(scored) < 2:
        return ""
    lower = score.better == "lower"
    scored.sort(key=lambda group: _mean(score, group), reverse=not lower)
    best = scored[0]
    small = compared(score, best, reference).small
    over = f" ({small} over “{reference.name}”)" if small else ""
    kind, title = "lowest" if lower else "highest", score.title.removesuffix(", last")
    others = ", ".join(f"“{group.name}” {score.text(_mean(score, group))}" for group in scored[1:6])
    sentences = [
        f"The {kind} {title} is {score.text(_mean(score, best))}, by “{best.name}”{over}.",
        f"Then follow {others}." if len(scored) < 7 else "",
        "One seed an arm: a difference of a few points may be chance."
        if small and "[" not in small
        else "",
    ]
    return " ".join(filter(None, sentences))


def _mean(score: Score, group: Group) -> float:
    return statistics.fmean(group.scores(score.key).values())


def class_table(groups: Sequence[Group], tail: Sequence[str] = ()) -> Table | None:
    """Scores by class, a column per group, of a single run one for each mapping; None where there is none."""
    info = groups[0].runs[0].info
    runs = [run for group in groups for run in group.runs]
    known = [
        each
        for each in info.classes
        if any(set(run.by_class(each.key).values()) - {None} for run in runs)
    ]
    if not known:
        return None
    main = known[0]  # without labels there is no IoU
    names = list(dict.fromkeys(name for run in runs for name in run.by_class(main.key)))
    tails = tail_classes(runs, tail)
    columns = [(group.name, main, group.runs) for group in groups]
    if len(runs) == 1:
        columns = [(score.title, score, tuple(runs)) for score in known]
    table = Table(f"{main.title} by class", ["class", *(heading for heading, *_ in columns)])
    for name in names:
        cells = [
            Cell(
                spread(
                    score,
                    [v for run in members if (v := run.by_class(score.key).get(name)) is not None],
                )
            )
            for _, score, members in columns
        ]
        table.rows.append((f"{name} (tail)" if name in tails else name, cells))
    if tails & set(names) and main == info.classes[0]:
        of_main = [members if score == main else () for _, score, members in columns]
        means = [
            [mean for run in members if (mean := tail_mean(run, tails)) is not None]
            for members in of_main
        ]
        table.rows.append(("mean over tail classes", [Cell(spread(main, each)) for each in means]))
    return table


def tail_classes(runs: Sequence[Run], tail: Sequence[str]) -> set[str]:
    """The classes that are named, else those that are rare in the labels of the first run that says so."""
    shares = next(filter(None, (run.by_class(run.info.class_share) for run in runs)), {})
    return set(tail) or {
        name for name, share in shares.items() if share is not None and share < TAIL_SHARE
    }


def tail_mean(run: Run, tails: set[str]) -> float | None:
    """The mean over tail classes of a run's main mapping."""
    found = run.by_class(run.info.classes[0].key)
    values = [value for name, value in found.items() if name in tails and value is not None]
    return sum(values) / len(values) if values else None


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, with an empty line behind it."""
    lines = [header, ["---"] * len(header), *rows]
    return (
        "".join(
            f"| {' | '.join(printable(cell).replace('|', '/') for cell in line)} |\n"
            for line in lines
        )
        + "\n"
    )


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A line per row under a line of keys; a key that a row lacks, and None, are empty; of file names UTF-8 alone."""
    text = io.StringIO()
    writer = csv.DictWriter(
        text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode(errors="backslashreplace"))


def write_grid_report(
    finished: Sequence[Finished], out: Path, control: str | None, tail: Sequence[str]
) -> str:
    """Write ``runs.csv`` and ``table.md``, and return the tables of the first score alone, which fit a terminal.

    ``tail`` defaults to the labels' rare classes.
    """
    runs = _with_tail(finished, tail)
    compared = by_row(runs)
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "runs.csv", _csv_rows(runs))
    write_atomically(out / "table.md", score_tables(compared, control, tail=tail).encode())
    return score_tables(compared, control, [runs[0][2].info.scores[0].key])


def by_row(runs: Sequence[Finished]) -> Compared:
    """The runs of each row and arm, in the order given; an InputError for two of one seed."""
    compared: Compared = {}
    for row, arm, run in runs:
        of_arm = compared.setdefault(row, {}).setdefault(arm, [])
        for other in of_arm:
            if other.seed == run.seed:
                raise InputError(
                    f"{other.path} and {run.path}: both are {arm}, seed {run.seed}; leave one out"
                )
        of_arm.append(run)
    return compared


def score_tables(
    compared: Compared,
    control: str | None,
    keys: Collection[str] | None = None,
    tail: Sequence[str] = (),
) -> str:
    """Tables in Markdown, a line per arm: mean ± standard deviation over seeds, in parentheses the difference to the
    control. ``keys`` names the scores; None is for all of them, and those of each class."""
    text, note = "", ""
    for row, by_arm in compared.items():
        groups = [Group(arm, tuple(runs)) for arm, runs in by_arm.items()]
        every = scores_of([run for group in groups for run in group.runs])
        scores = [score for score in every if keys is None or score.key in keys]
        table = comparison_table(
            scores, groups, next((group for group in groups if group.name == control), None)
        )
        classes = class_table(groups, tail) if keys is None else None
        text += f"## {row}\n\n" if row else ""
        reference = next((group for group in groups if group.name == control), groups[0])
        sentence = answer(scores, groups, reference)
        text += f"{sentence}\n\n" if sentence else ""
        for each in filter(None, (table, classes)):
            lines = [each.header, *([name, *map(_in_one_line, cells)] for name, cells in each.rows)]
            # for a terminal
            widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
            header, *rows = [
                [f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)]
                for line in lines
            ]
            text += f"{each.caption}\n\n{markdown(header, rows)}"
        note = max(note, table.note.replace("Small", "In parentheses"), key=len)
    return f"{text}{note}\n"


def _in_one_line(cell: Cell) -> str:
    small = f"**{cell.small}**" if cell.strong else cell.small
    return f"{cell.main} ({small})" if small else cell.main


def _with_tail(runs: Sequence[Finished], tail: Sequence[str]) -> list[Finished]:
    """The runs with the mean over their tail classes as one more score."""
    tails, extended = tail_classes([run for *_, run in runs], tail), []
    for row, arm, run in runs:
        mean = tail_mean(run, tails) if run.info.classes else None
        info = replace(run.info, scores=(*run.info.scores, _TAIL))
        extended.append(
            (row, arm, replace(run, info=info, evaluation={**run.evaluation, _TAIL.key: mean}))
        )
    return extended


def _csv_rows(runs: Sequence[Finished]) -> list[dict[str, Any]]:
    """Row, arm, seed, the settings in which runs differ, every score unscaled, and the scores of every class."""
    differ = differing([flat(run.config) for _, _, run in runs])
    rows = []
    for position, (row, arm, run) in enumerate(runs):
        line = {"row": row, "arm": arm, "seed": run.seed}
        line |= {
            key: values[position] for key, values in differ.items() if key not in NOT_OF_AN_ARM
        }
        line |= {score.key: run.score(score.key) for score in run.info.scores}
        for classes in run.info.classes[:1]:
            line |= {
                f"{classes.title} {name}": value
                for name, value in run.by_class(classes.key).items()
            }
        rows.append(line)
    return rows
