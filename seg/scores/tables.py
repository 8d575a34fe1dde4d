"""Scores as tables in a terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def score_table(result: dict[str, Any], title: str) -> Table:
    """The scores of :func:`seg.scores.evaluation.evaluate` for a terminal; without labels those that need none."""
    table = Table(title=title, caption=result.get("numbering"))
    labelled = result["miou"] is not None
    table.add_column("class" if labelled else "label-free score")
    table.add_column("IoU %" if labelled else "value", justify="right")
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
    taken = "best" if "best" in rows else "last"
    table = Table(title="checkpoints", caption=f"other commands take {taken}, or what --checkpoint names")
    labelled = any(row["miou"] is not None for row in rows.values())
    for heading in ("checkpoint", "step", *(["mean IoU %"] if labelled else []), "chosen by"):
        table.add_column(heading, justify="right" if heading in ("step", "mean IoU %") else "left")
    for name, row in rows.items():
        miou = [_shown(row["miou"], 2, 100)] if labelled else []
        table.add_row(name, str(row["step"]), *miou, row["chosen_by"])
    return table


def _shown(score: float | None, digits: int, scale: float = 1.0) -> str:
    return "-" if score is None else f"{scale * score:.{digits}f}"
