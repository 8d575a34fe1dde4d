"""What an adaptation came to, for people and for programs: the answer, the shares of the classes, the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.table import Table

from seg.adaptation.flow import Outcome
from seg.adaptation.labelled import LabelScore, label_score
from seg.data.labels import ClassSet

Rows = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Result:
    """All of it.

    Args:
        settings: of the command, resolved.
        classes: names and colours.
        outcome: what was decided.
        before: a row per image of the network as it was.
        after: of the predictions that stand.
    """

    settings: dict[str, Any]
    classes: ClassSet
    outcome: Outcome
    before: Rows
    after: Rows

    @property
    def adapted(self) -> bool:
        """Whether the adapted network is used."""
        return self.outcome.used is not None and self.settings["method"] != "none"

    @property
    def answer(self) -> str:
        """One sentence."""
        outcome = self.outcome
        if outcome.used is None or not self.adapted:
            return f"Not adapted: {self._why_not()}; predictions and weights are those of the network as it was."
        done = f"batch {outcome.used.step} of {outcome.planned}" if outcome.used.step else "its statistics alone"
        if not outcome.stopped:
            best = (
                "" if outcome.used.step == outcome.batches else f", the network after batch {outcome.used.step} is best"
            )
            return f"Adapted{best}: {outcome.used.verdict.reason}."
        done = f"batch {outcome.used.step} of {outcome.planned}" if outcome.used.step else "its statistics alone"
        return f"Adapted up to {done}: {outcome.stopped}, so it went back to that state."

    def _why_not(self) -> str:
        if self.settings["method"] == "none":
            return "the method is none"
        outcome = self.outcome
        if outcome.stopped:
            return outcome.stopped
        last = outcome.checks[-1].verdict
        return "no state of it is better than the network as it was" if last.adapt else last.reason

    @property
    def score(self) -> LabelScore | None:
        """On labelled images: of the predictions that stand, or of the adaptation that is not used."""
        if not self.adapted:
            return self.outcome.checks[-1].score if self.outcome.checks else None
        both = [name for name, row in self.after.items() if "confusion" in row and name in self.before]
        if not both:
            return None
        old, new = (
            [np.asarray(rows[name]["confusion"], np.int64) for name in both] for rows in (self.before, self.after)
        )
        return label_score(old, new)

    def shares(self) -> list[dict[str, Any]]:
        """A row per class, the largest before first: its share of the pixels before and after."""
        old, new = (_shares(list(rows.values())) for rows in (self.before, self.after))
        order = sorted(range(len(self.classes)), key=lambda index: (-old[index], index))
        return [
            {
                "class": self.classes.names[index], "before": old[index], "after": new[index],
                "difference": new[index] - old[index],
            }
            for index in order
        ]  # fmt: skip

    def images(self) -> list[dict[str, Any]]:
        """A row per image: its mean entropy before and after, and the share of the class predicted most."""
        return [
            {
                "image": name, "entropy_before": old["entropy"], "entropy_after": self.after[name]["entropy"],
                "largest_share_before": _largest(old), "largest_share_after": _largest(self.after[name]),
            }
            for name, old in self.before.items()
        ]  # fmt: skip

    def document(self) -> dict[str, Any]:
        """``adapt.json``."""
        outcome, score = self.outcome, self.score
        return {
            "adapted": self.adapted,
            "answer": self.answer,
            "settings": self.settings,
            "images": len(self.before),
            "batches": outcome.batches,
            "planned_batches": outcome.planned,
            "stopped": outcome.stopped,
            "used_after_batch": outcome.used and outcome.used.step,
            "evidence": {
                "before": outcome.before.document(),
                "checks": [check.document() for check in outcome.checks],
            },
            "labels": score and {**asdict(score), "gain": score.gain},
            "mean_entropy": {"before": mean_entropy(self.before), "after": mean_entropy(self.after)},
        }


def mean_entropy(rows: Rows) -> float:
    """Over images, each counting once; 0 is certain, 1 uniform."""
    return float(np.mean([row["entropy"] for row in rows.values()]))


def shares_table(shares: Sequence[dict[str, Any]]) -> Table:
    """For a terminal; classes that are never predicted are left out."""
    table = Table(title="predicted share of the pixels")
    for heading in ("class", "before %", "after %", "difference"):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    for row in shares:
        if row["before"] or row["after"]:
            before, after, difference = (100 * row[key] for key in ("before", "after", "difference"))
            table.add_row(row["class"], f"{before:.1f}", f"{after:.1f}", f"{difference:+.1f}")
    return table


def _shares(rows: Sequence[dict[str, Any]]) -> list[float]:
    pixels = np.sum([row["pixels"] for row in rows], axis=0)
    shares: list[float] = (pixels / max(pixels.sum(), 1)).tolist()
    return shares


def _largest(row: dict[str, Any]) -> float:
    return float(max(row["pixels"]) / max(sum(row["pixels"]), 1))
