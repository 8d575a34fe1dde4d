"""What the runs of a grid have come to: a line of raw numbers for each, and tables of arms beside their control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dem_apps.jobs.job import Job
from dem_apps.jobs.tables import markdown
from dem_apps.report.intervals import Interval, difference_interval, mean_and_std
from dem_apps.runtime.run_folder import read_config

Row = Mapping[str, Any]
#: A class with less than this share of the labelled pixels is rare, as on the pages of dem_apps.report.
RARE_SHARE = 0.01
_SETTINGS = ("method", "loss", "reduction", "tau", "alpha", "max_steps")


@dataclass(frozen=True)
class Column:
    """A column of the tables: a key of the rows, its title, and how its numbers are shown."""

    key: str
    title: str
    scale: float = 100
    digits: int = 2


_COLUMNS = (
    Column("miou_last", "mIoU %, last"),
    Column("miou_selected", "selected"),
    Column("miou_best", "best (uses labels)"),
    Column("miou_rare", "rare classes %"),
    Column("pixel_accuracy", "pixel accuracy %"),
    Column("mean_entropy_normalised", "entropy / log C", 1, 3),
    Column("calibration_error", "calibration error", 1, 3),
    Column("error_ranking_auroc", "AUROC", 1, 3),
)
_LABEL_FREE = tuple(Column(name, f"`{name}`", 1, 3) for name in ("im", "entropy", "snd"))
_NOTE = (
    "Mean ± sample standard deviation over seeds. Differences: mean over the seeds that both have, in brackets its "
    "95 % interval (Student's t, paired by seed); bold where it excludes 0. Nothing corrects for the number of arms.\n"
)


def run_row(task: str, arm: str, job: Job, rare: Sequence[str]) -> Row:
    """The raw numbers of a finished run; None where it has none, such as mIoU without labels.

    Args:
        task: what it was trained on, empty where the grid has no tasks.
        arm: what it is compared as.
        job: the run.
        rare: classes of the column ``miou_rare``; empty takes those that are rare in the labels.
    """
    scores, settings = job.scores() or {}, read_config(job.run)
    checkpoints, classes = scores.get("checkpoints", {}), scores.get("per_class_iu", {})
    row = {"task": task, "arm": arm, "seed": settings.get("seed"), **{name: settings.get(name) for name in _SETTINGS}}
    row |= {f"weight_{name}": settings.get("weights", {}).get(f"target_{name}") for name in ("main", "aux")}
    row |= {"miou_last": scores.get("miou")}
    row |= {f"miou_{name}": checkpoints.get(name, {}).get("miou") for name in ("selected", "best")}
    row["miou_rare"] = _mean(classes, rare or _rare(scores))
    row |= {column.key: scores.get(column.key) for column in _COLUMNS if column.key not in row}
    row |= {column.key: scores.get("label_free", {}).get(column.key) for column in _LABEL_FREE}
    return {**row, **{f"iou {name}": value for name, value in classes.items()}}


def arms_tables(rows: Sequence[Row], control: str | None) -> str:
    """Markdown: per task the scores of each arm, the differences to the control, and the classes.

    Args:
        rows: of :func:`run_row`.
        control: the arm that the others are compared with; None leaves that table out.
    """
    text = _NOTE
    for task in dict.fromkeys(row["task"] for row in rows):
        arms: dict[str, list[Row]] = {}
        for row in rows:
            if row["task"] == task:
                arms.setdefault(row["arm"], []).append(row)
        text += f"\n## {task}\n\n" if task else "\n"
        text += _scores_table(arms)
        if control in arms and len(arms) > 1:
            text += _differences_table(arms, control)
        text += _classes_table(arms)
    return text.rstrip("\n") + "\n"


def _scores_table(arms: Mapping[str, Sequence[Row]]) -> str:
    columns = [column for column in (*_COLUMNS, *_LABEL_FREE) if any(_by_seed(rows, column) for rows in arms.values())]
    lines = [[arm, str(len(rows)), *(_spread(_by_seed(rows, column), column) for column in columns)]
             for arm, rows in arms.items()]  # fmt: skip
    return markdown(["arm", "seeds", *(column.title for column in columns)], lines)


def _differences_table(arms: Mapping[str, Sequence[Row]], control: str) -> str:
    """mIoU of the last checkpoint seed by seed, and the mean differences of the other scores."""
    first, *others = [column for column in _COLUMNS if _by_seed(arms[control], column)]
    theirs = _by_seed(arms[control], first)
    lines = []
    for arm, rows in arms.items():
        if arm != control:
            ours = _by_seed(rows, first)
            seeds = [f"{ours[seed] - theirs[seed]:+.{first.digits}f}" if seed in ours else "–" for seed in theirs]
            lines.append([arm, *seeds, *(_difference(rows, arms[control], column) for column in (first, *others))])
    header = [f"minus {control}", *(f"mIoU %, seed {seed}" for seed in theirs)]
    return markdown([*header, *(f"{column.title} [95 %]" for column in (first, *others))], lines)


def _classes_table(arms: Mapping[str, Sequence[Row]]) -> str:
    keys = dict.fromkeys(key for rows in arms.values() for row in rows for key in row if key.startswith("iou "))
    columns = [Column(key, key.removeprefix("iou "), digits=1) for key in keys]
    columns = [column for column in columns if any(_by_seed(rows, column) for rows in arms.values())]
    lines = []
    for arm, rows in arms.items():
        found = [list(_by_seed(rows, column).values()) for column in columns]
        lines.append([arm, *(f"{mean_and_std(values)[0]:.1f}" if values else "–" for values in found)])
    return markdown(["IoU %, last", *(column.title for column in columns)], lines) if columns else ""


def _by_seed(rows: Sequence[Row], column: Column) -> dict[Any, float]:
    return {row["seed"]: column.scale * row[column.key] for row in rows if row.get(column.key) is not None}


def _spread(values: Mapping[Any, float], column: Column) -> str:
    if not values:
        return "–"
    mean, std = mean_and_std(list(values.values()))
    return f"{mean:.{column.digits}f}" + ("" if std is None else f" ± {std:.{column.digits}f}")


def _difference(rows: Sequence[Row], control: Sequence[Row], column: Column) -> str:
    ours, theirs = _by_seed(rows, column), _by_seed(control, column)
    return _shown(difference_interval(ours, theirs), column.digits) if ours and theirs else "–"


def _shown(interval: Interval, digits: int) -> str:
    text = f"{interval.estimate:+.{digits}f}"
    if interval.low is not None and interval.high is not None:
        text += f" [{interval.low:+.{digits}f}, {interval.high:+.{digits}f}]"
    return f"**{text}**" if interval.excludes_zero else text


def _rare(scores: Mapping[str, Any]) -> list[str]:
    shares = scores.get("per_class_label_share") or {}
    return [name for name, share in shares.items() if share is not None and share < RARE_SHARE]


def _mean(classes: Mapping[str, float | None], names: Sequence[str]) -> float | None:
    values = [value for name in names if (value := classes.get(name)) is not None]
    return mean_and_std(values)[0] if values else None
