"""Scores as tables in a terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Column, Table

from dem_apps.report.runs import at
from seg.scores.described_metrics import CLASSES, SCORES


def score_table(result: dict[str, Any], title: str) -> Table:
    """The scores of :func:`seg.scores.evaluation.evaluate` for a terminal, those that it has."""
    table = Table("score", Column("value", justify="right"), title=title, caption=result.get("numbering"))
    for name, iou in result["per_class_iu"].items() if result["miou"] is not None else ():
        table.add_row(name, "-" if iou is None else CLASSES[0].text(iou))
    table.add_section()
    for score in SCORES:
        if (value := at(result, score.key)) is not None:
            table.add_row(score.title.removesuffix(", last"), score.text(value))
    return table


def checkpoints_table(rows: dict[str, dict[str, Any]]) -> Table:
    """A run's checkpoints side by side: by name ``step``, ``miou`` and ``chosen_by``."""
    labelled, taken = any(row["miou"] is not None for row in rows.values()), "best" if "best" in rows else "last"
    numbers = [Column(name, justify="right") for name in ("step", *(["mean IoU %"] if labelled else []))]
    caption = f"other commands take {taken}, or what --checkpoint names"
    table = Table("checkpoint", *numbers, "chosen by", title="checkpoints", caption=caption)
    for name, row in rows.items():
        miou = ["-" if row["miou"] is None else SCORES[0].text(row["miou"])] if labelled else []
        table.add_row(name, str(row["step"]), *miou, row["chosen_by"])
    return table
