"""Scores as tables in a terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Column, Table


def score_table(result: dict[str, Any], title: str) -> Table:
    """The scores of :func:`seg.scores.evaluation.evaluate` for a terminal; without labels those that need none."""
    labelled = result["miou"] is not None
    first, second = ("class", "IoU %") if labelled else ("label-free score", "value")
    table = Table(first, Column(second, justify="right"), title=title, caption=result.get("numbering"))
    if labelled:
        for name, iou in result["per_class_iu"].items():
            table.add_row(name, _shown(iou, 1, 100))
        table.add_section()
        table.add_row("mean IoU", _shown(result["miou"], 2, 100), style="bold")
        table.add_row("pixel accuracy %", _shown(result["pixel_accuracy"], 2, 100))
    table.add_row("mean entropy / log C", _shown(result["mean_entropy_normalised"], 3))
    if labelled:
        table.add_row("calibration error", _shown(result["calibration_error"], 3))
        table.add_row("error ranking, AUROC", _shown(result["error_ranking_auroc"], 3))
    for name, score in result["label_free"].items() if not labelled else ():
        table.add_row(name.replace("_", " "), _shown(score, 3))
    return table


def checkpoints_table(rows: dict[str, dict[str, Any]]) -> Table:
    """A run's checkpoints side by side: by name ``step``, ``miou`` and ``chosen_by``."""
    labelled, taken = any(row["miou"] is not None for row in rows.values()), "best" if "best" in rows else "last"
    numbers = [Column(name, justify="right") for name in ("step", *(["mean IoU %"] if labelled else []))]
    caption = f"other commands take {taken}, or what --checkpoint names"
    table = Table("checkpoint", *numbers, "chosen by", title="checkpoints", caption=caption)
    for name, row in rows.items():
        miou = [_shown(row["miou"], 2, 100)] if labelled else []
        table.add_row(name, str(row["step"]), *miou, row["chosen_by"])
    return table


def _shown(score: float | None, digits: int, scale: float = 1.0) -> str:
    return "-" if score is None else f"{scale * score:.{digits}f}"
