"""The report of a grid: a CSV line for each run, and tables of arms beside their control as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dem_apps.report.runs import NOT_OF_AN_ARM, Group, Run, differing, flat, read_run
from dem_apps.report.tables import (
    class_table,
    comparison_table,
    markdown,
    scores_of,
    tail_classes,
    tail_mean,
    values_of,
    write_csv,
)
from dem_apps.runtime.files import write_atomically
from dem_apps.runtime.metrics_info import Score

#: Row and arm of a grid, and a finished run of theirs.
Finished = tuple[str, str, Path]
_TAIL = Score("tail_classes", "tail classes %", better="higher", scale=100, digits=2)
_NOTE = (
    "Mean ± sample standard deviation over seeds. Differences: mean over the seeds that both have, in brackets its "
    "95 % CI (Student's t, paired by seed); bold where it excludes 0; without brackets there is one seed. "
    "Nothing corrects for the number of arms.\n"
)


def write_grid_report(finished: Sequence[Finished], out: Path, control: str | None, tail: Sequence[str]) -> str:
    """Write ``runs.csv`` and ``table.md``, and return the first score of each arm as a table that fits a terminal.

    A row's name is empty where the grid has no rows; without ``tail`` the tail classes are those rare in the labels.
    """
    members = _with_tail([read_run(path) for _, _, path in finished], tail)
    runs = [(row, arm, run) for (row, arm, _), run in zip(finished, members, strict=True)]
    text, brief = _NOTE, ""
    for row in dict.fromkeys(row for row, _, _ in runs):
        arms: dict[str, list[Run]] = {}
        for other, arm, run in runs:
            if other == row:
                arms.setdefault(arm, []).append(run)
        groups = [Group(arm, tuple(members)) for arm, members in arms.items()]
        baseline = next((group for group in groups if group.name == control), None)
        text += (f"\n## {row}\n\n" if row else "\n") + _arms_text(groups, baseline, tail)
        brief += (f"\n{row}\n" if row else "\n") + _brief(groups, baseline)
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "runs.csv", _csv_rows(runs))
    write_atomically(out / "table.md", (text.rstrip("\n") + "\n").encode())
    return brief


def _with_tail(runs: Sequence[Run], tail: Sequence[str]) -> list[Run]:
    """The runs with the mean over their tail classes as one more score."""
    tails = tail_classes([Group("all", tuple(runs))], tail)
    extended = []
    for run in runs:
        mean = tail_mean(run, tails) if run.info.classes else None
        evaluation = run.evaluation if mean is None else {**run.evaluation, _TAIL.key: mean}
        info = replace(run.info, scores=(*run.info.scores, _TAIL))
        extended.append(replace(run, info=info, evaluation=evaluation))
    return extended


def _arms_text(groups: Sequence[Group], baseline: Group | None, tail: Sequence[str]) -> str:
    scores = scores_of([run for group in groups for run in group.runs])
    table = comparison_table(scores, groups, baseline)
    text = markdown(table.header, [[name, *(cell.main for cell in cells)] for name, cells in table.rows])
    if baseline is not None and len(groups) > 1:
        first = scores[0]
        theirs = values_of(first, baseline)
        lines = []
        for group, (name, (_, *cells)) in zip(groups, table.rows, strict=True):
            if group is baseline:
                continue
            ours = values_of(first, group)
            seeds = [first.text(ours[seed] - theirs[seed], "+") if seed in ours else "–" for seed in theirs]
            lines.append([name, *seeds, *(f"**{c.small}**" if c.strong else c.small or "–" for c in cells)])
        header = [f"minus {baseline.name}", *(f"{first.title}, seed {seed}" for seed in theirs)]
        text += markdown([*header, *(f"{score.title} [95 %]" for score in scores)], lines)
    classes = class_table(groups, tail)
    if classes is not None:
        rows = [[name, *(cell.main for cell in cells)] for name, cells in classes.rows]
        text += markdown([classes.caption, *classes.header[1:]], rows)
    return text


def _brief(groups: Sequence[Group], baseline: Group | None) -> str:
    """The first score alone, in columns."""
    scores = scores_of([run for group in groups for run in group.runs])[:1]
    table = comparison_table(scores, groups, baseline)
    lines = [[*table.header, *([f"minus {baseline.name} [95 %]"] if baseline else [])]]
    lines += [
        [name, *(cell.main for cell in cells), *([cells[-1].small] if baseline else [])] for name, cells in table.rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ["  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)) for line in lines]
    return "".join(f"{text.rstrip()}\n" for text in texts)


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
