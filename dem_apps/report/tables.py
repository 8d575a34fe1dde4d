"""Tables of scores over seeds: mean, standard deviation, and difference to a baseline with its 95 % CI."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dem_apps.errors import printable
from dem_apps.report.intervals import difference_interval
from dem_apps.report.runs import Group, Run
from dem_apps.runtime.files import write_atomically
from dem_apps.runtime.metrics_info import Score

#: A class with less than this share of the labelled pixels that are scored is a tail class.
TAIL_SHARE = 0.01


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
    return tuple(score for score in runs[0].info.scores if any(run.score(score.key) is not None for run in runs))


def comparison_table(scores: Sequence[Score], groups: Sequence[Group], baseline: Group | None) -> Table:
    """A row per group and a column per score: mean ± standard deviation over seeds, and the difference."""
    note = "Mean ± sample standard deviation over seeds." if any(len(group.runs) > 1 for group in groups) else ""
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
    """Mean ± standard deviation, and the difference to the baseline with its CI; in words where the CI excludes 0."""
    ours = group.scores(score.key)
    main = spread(score, list(ours.values()))
    theirs = {} if baseline is None or group is baseline else baseline.scores(score.key)
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


def class_table(groups: Sequence[Group], tail: Sequence[str] = ()) -> Table | None:
    """Scores by class, a column per group, of a single run one for each mapping; None where there is none."""
    info = groups[0].runs[0].info
    if not info.classes:
        return None
    runs = [run for group in groups for run in group.runs]
    known = [each for each in info.classes if any(set(run.by_class(each.key).values()) - {None} for run in runs)]
    if not known:
        return None
    main = known[0]  # without labels there is no IoU
    names = list(dict.fromkeys(name for run in runs for name in run.by_class(main.key)))
    tails = tail_classes(groups, tail)
    columns = [(group.name, main, group.runs) for group in groups]
    if len(runs) == 1:
        columns = [(score.title, score, tuple(runs)) for score in known]
    table = Table(f"{main.title} by class", ["class", *(heading for heading, *_ in columns)])
    for name in names:
        cells = [
            Cell(spread(score, [v for run in members if (v := run.by_class(score.key).get(name)) is not None]))
            for _, score, members in columns
        ]
        table.rows.append((f"{name} (tail)" if name in tails else name, cells))
    if tails & set(names) and main == info.classes[0]:
        of_main = [members if score == main else () for _, score, members in columns]
        means = [[mean for run in members if (mean := tail_mean(run, tails)) is not None] for members in of_main]
        table.rows.append(("mean over tail classes", [Cell(spread(main, each)) for each in means]))
    return table


def tail_classes(groups: Sequence[Group], tail: Sequence[str]) -> set[str]:
    """The classes that are named, else those that are rare in the labels."""
    if tail:
        return set(tail)
    for run in (run for group in groups for run in group.runs):
        shares = run.by_class(run.info.class_share)
        if shares:
            return {name for name, share in shares.items() if share is not None and share < TAIL_SHARE}
    return set()


def tail_mean(run: Run, tails: set[str]) -> float | None:
    """The mean over tail classes of a run's main mapping."""
    found = run.by_class(run.info.classes[0].key)
    values = [value for name, value in found.items() if name in tails and value is not None]
    return sum(values) / len(values) if values else None


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, with an empty line behind it."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(printable(cell).replace('|', '/') for cell in line)} |\n" for line in lines) + "\n"


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A line per row under a line of keys; a key that a row lacks, and None, are empty; of file names UTF-8 alone."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode(errors="backslashreplace"))
