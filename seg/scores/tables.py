"""Scores as tables in a terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def score_table(result: dict[str, Any], title: str) -> Table:
    """The scores of :func:`seg.scores.evaluation.evaluate` for a terminal."""
    table = Table(title=title, caption=result.get("numbering"))
    table.add_column("class")
    table.add_column("IoU %", justify="right")
    for name, iou in result["per_class_iu"].items() if result["miou"] is not None else ():
        table.add_row(name, _shown(iou, 1, 100))
    table.add_section()
    table.add_row("mean IoU", _shown(result["miou"], 2, 100), style="bold")
    table.add_row("pixel accuracy", _shown(result["pixel_accuracy"], 2, 100))
    table.add_row("mean entropy / log C", _shown(result["mean_entropy_normalised"], 3))
    table.add_row("calibration error", _shown(result["calibration_error"], 3))
    table.add_row("error ranking, AUROC", _shown(result["error_ranking_auroc"], 3))
    for name, score in result["label_free"].items() if result["miou"] is None else ():
        table.add_row(f"label-free: {name}", _shown(score, 3))
    return table


def checkpoints_table(rows: dict[str, dict[str, Any]]) -> Table:
    """A run's checkpoints side by side: by name ``step``, ``miou``, ``chosen_by`` and ``used_target_labels``."""
    table = Table(title="checkpoints")
    for heading in ("checkpoint", "step", "mean IoU %", "chosen by"):
        table.add_column(heading, justify="right" if heading in ("step", "mean IoU %") else "left")
    for name, row in rows.items():
        chosen_by = "chosen with target labels" if row["used_target_labels"] else row["chosen_by"]
        style = "dim" if row["used_target_labels"] else None
        table.add_row(name, str(row["step"]), _shown(row["miou"], 2, 100), chosen_by, style=style)
    return table


def _shown(score: float | None, digits: int, scale: float = 1.0) -> str:
    return "-" if score is None else f"{scale * score:.{digits}f}"
