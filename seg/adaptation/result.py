"""The result of an adaptation: one sentence of answer, the shares of the classes, ``adapt.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from dem_apps.runtime.terminal import console
from seg.adaptation.decision import LabelScore, label_score
from seg.adaptation.flow import PROBE_IMAGES, Outcome
from seg.adaptation.predictions import Row
from seg.data.labels import ClassSet

#: With fewer images than these the answer says that the evidence is weak.
_FEW_IMAGES = PROBE_IMAGES // 2
#: A class whose share of the pixels has moved by more than this is named.
_MOVED = 0.10


@dataclass(frozen=True)
class Result:
    """The answer and its numbers."""

    settings: dict[str, Any]  #: of the command, resolved
    classes: ClassSet
    outcome: Outcome
    rows: Mapping[str, Mapping[str, Row]]  #: by image: "before" of the unadapted network, "after" of what stands
    skipped: Mapping[str, str]  #: why an image was left out, by its path

    @property
    def adapted(self) -> bool:
        """Whether the adapted network is used."""
        return self.outcome.used is not None and self.settings["method"] != "none"

    @property
    def answer(self) -> str:
        """One sentence, and another on classes whose shares have moved far."""
        outcome, used = self.outcome, self.outcome.used
        number = outcome.before.images
        doubt = "" if number >= _FEW_IMAGES else f", on {number} image{'s' * (number != 1)} only, which tells little"
        if used is None or not self.adapted:
            last = outcome.checks[-1].verdict
            why = "no state of it is better than the network as it was" if last.adapt else last.reason
            why = "the method is none" if self.settings["method"] == "none" else f"{outcome.stopped or why}{doubt}"
            return f"Not adapted: {why}; predictions and weights are those of the network as it was."
        done = f" up to batch {used.step} of {outcome.planned}" if used.step else " by new batch norm statistics alone"
        if not outcome.stopped and used.step == outcome.batches and self.settings["method"] != "bn":
            done = ""
        elif not outcome.stopped and used.step:
            done += ", the best state"
        back = f"{outcome.stopped}{doubt}, so it went back to that state"
        said = f"Adapted{done}: {back if outcome.stopped else used.verdict.reason + doubt}."
        moved = [
            f"{row['class']} from {100 * row['before']:.1f} % of the pixels to {100 * row['after']:.1f} %"
            for row in self.shares()
            if abs(row["difference"]) > _MOVED
        ]
        return said + (f" Look at what has moved most: {', '.join(moved)}." if moved else "")

    @property
    def score(self) -> LabelScore | None:
        """On labelled images: of the predictions that stand, or of the adaptation that is not used."""
        if not self.adapted:
            return self.outcome.checks[-1].score
        both = [(old.confusion, self.rows["after"][name].confusion) for name, old in self.rows["before"].items()]
        labelled = [(old, new) for old, new in both if old is not None and new is not None]
        return label_score(*zip(*labelled, strict=True)) if labelled else None

    def shares(self) -> list[dict[str, Any]]:
        """A row per class, the largest before first: its share of the pixels before and after."""
        old, new = (_shares(np.sum([row.pixels for row in rows.values()], 0)) for rows in self.rows.values())
        rows = zip(self.classes.names, old, new, strict=True)
        table = [{"class": name, "before": a, "after": b, "difference": b - a} for name, a, b in rows]
        return sorted(table, key=lambda row: -row["before"])

    def shown_shares(self) -> list[list[str]]:
        """The same in per cent, for people; without classes that are never predicted."""
        shown = [row for row in self.shares() if row["before"] or row["after"]]
        return [
            [row["class"], *(f"{100 * row[stage]:.1f}" for stage in self.rows), f"{100 * row['difference']:+.1f}"]
            for row in shown
        ]

    def images(self) -> list[dict[str, Any]]:
        """A row per image: its mean entropy before and after, and the share of the class predicted most."""
        return [
            {"image": name}
            | {f"entropy_{stage}": rows[name].entropy for stage, rows in self.rows.items()}
            | {f"largest_share_{stage}": max(_shares(rows[name].pixels)) for stage, rows in self.rows.items()}
            for name in self.rows["before"]
        ]

    @property
    def mean_entropy(self) -> dict[str, float]:
        """Before and after, the mean over images; 0 is certain, 1 uniform."""
        return {stage: float(np.mean([row.entropy for row in rows.values()])) for stage, rows in self.rows.items()}

    def document(self) -> dict[str, Any]:
        """``adapt.json``."""
        outcome, score = self.outcome, self.score
        return {
            "adapted": self.adapted,
            "answer": self.answer,
            "settings": self.settings,
            "images": len(self.rows["before"]),
            "skipped": [{"image": name, "reason": reason} for name, reason in sorted(self.skipped.items())],
            "batches": outcome.batches,
            "planned_batches": outcome.planned,
            "stopped": outcome.stopped,
            "used_after_batch": outcome.used and outcome.used.step,
            "evidence": {"before": asdict(outcome.before), "checks": [asdict(check) for check in outcome.checks]},
            "labels": score and {**asdict(score), "gain": score.gain},
            "mean_entropy": self.mean_entropy,
        }

    def print(self, out: Path) -> None:
        """Shares, answer and places in a terminal."""
        console().print(shares_table(self.shown_shares()))
        print(self.answer)
        if self.score is not None:
            print(f"with labels: {self.score.sentence}")
        print(f"weights:     {out / 'adapted'}")
        print(f"page:        {out / 'report.html'}")
        if self.skipped:
            total = len(self.rows["before"]) + len(self.skipped)
            print(f"skipped:     {len(self.skipped)} of {total} images, which cannot be read; see {out / 'adapt.json'}")


def shares_table(rows: list[list[str]]) -> Table:
    """For a terminal."""
    table = Table(title="predicted share of the pixels")
    for heading in ("class", "before %", "after %", "difference"):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _shares(pixels: NDArray[np.int64]) -> list[float]:
    shares: list[float] = (pixels / max(pixels.sum(), 1)).tolist()
    return shares
