"""What an adaptation came to, for people and for programs: the answer, the shares of the classes, the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

#: Evidence on fewer images than these says little, and the answer says so.
_FEW_IMAGES = PROBE_IMAGES // 2
#: A class whose share of the pixels has moved by more than this is named.
_MOVED = 0.10


@dataclass(frozen=True)
class Result:
    """The answer and its numbers.

    Args:
        settings: of the command, resolved.
        classes: names and colours.
        outcome: what was decided.
        rows: of each image, by stage: of the network as it was, and of the predictions that stand.
        skipped: why an image was left out, by its path.
    """

    settings: dict[str, Any]
    classes: ClassSet
    outcome: Outcome
    rows: Mapping[str, Mapping[str, Row]]
    skipped: Mapping[str, str]

    @property
    def _pairs(self) -> list[tuple[str, Row, Row]]:
        """Of each image its path, and its row before and after."""
        return [(name, old, self.rows["after"][name]) for name, old in self.rows["before"].items()]

    @property
    def adapted(self) -> bool:
        """Whether the adapted network is used."""
        return self.outcome.used is not None and self.settings["method"] != "none"

    @property
    def answer(self) -> str:
        """One sentence, and another on classes whose shares have moved far."""
        outcome = self.outcome
        if outcome.used is None or not self.adapted:
            return f"Not adapted: {self._why_not()}; predictions and weights are those of the network as it was."
        used, alone = outcome.used, "new batch norm statistics alone, with nothing learnt"
        if outcome.stopped:
            done = f"up to batch {used.step} of {outcome.planned}" if used.step else f"by {alone}"
            said = f"Adapted {done}: {outcome.stopped}{self._doubt}, so it went back to that state."
        elif used.step == outcome.batches and self.settings["method"] != "bn":
            said = f"Adapted: {used.verdict.reason}{self._doubt}."
        else:
            best = f"the network after batch {used.step} of {outcome.batches} is best" if used.step else f"by {alone}"
            said = f"Adapted{',' if used.step else ''} {best}: {used.verdict.reason}{self._doubt}."
        return f"{said}{self._moved()}"

    @property
    def _doubt(self) -> str:
        """That the evidence rests on few images, as the end of a clause."""
        number = self.outcome.before.images
        return "" if number >= _FEW_IMAGES else f", on {number} image{'s' * (number != 1)} only, which tells little"

    def _moved(self) -> str:
        """The classes to look at, as a sentence."""
        moved = [
            f"{row['class']} from {100 * row['before']:.1f} % of the pixels to {100 * row['after']:.1f} %"
            for row in self.shares()
            if abs(row["difference"]) > _MOVED
        ]
        return f" Look at what has moved most: {', '.join(moved)}." if moved else ""

    def _why_not(self) -> str:
        if self.settings["method"] == "none":
            return "the method is none"
        if self.outcome.stopped:
            return f"{self.outcome.stopped}{self._doubt}"
        last = self.outcome.checks[-1].verdict
        why = "no state of it is better than the network as it was" if last.adapt else last.reason
        return f"{why}{self._doubt}"

    @property
    def left_out(self) -> str:
        """How many images are missing; empty where none are."""
        if not self.skipped:
            return ""
        return f"{len(self.skipped)} of {len(self._pairs) + len(self.skipped)} images left out, which cannot be read"

    @property
    def score(self) -> LabelScore | None:
        """On labelled images: of the predictions that stand, or of the adaptation that is not used."""
        if not self.adapted:
            return self.outcome.checks[-1].score if self.outcome.checks else None
        both = [(old.confusion, new.confusion) for _, old, new in self._pairs]
        labelled = [(old, new) for old, new in both if old is not None and new is not None]
        return label_score(*zip(*labelled, strict=True)) if labelled else None

    def shares(self) -> list[dict[str, Any]]:
        """A row per class, the largest before first: its share of the pixels before and after."""
        old, new = (_shares(np.sum([row.pixels for row in rows.values()], 0)) for rows in self.rows.values())
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
                "image": name, "entropy_before": old.entropy, "entropy_after": new.entropy,
                "largest_share_before": max(_shares(old.pixels)), "largest_share_after": max(_shares(new.pixels)),
            }
            for name, old, new in self._pairs
        ]  # fmt: skip

    @property
    def mean_entropy(self) -> dict[str, float]:
        """Before and after, over images, each counting once; 0 is certain, 1 uniform."""
        return {stage: float(np.mean([row.entropy for row in rows.values()])) for stage, rows in self.rows.items()}

    def document(self) -> dict[str, Any]:
        """``adapt.json``."""
        outcome, score = self.outcome, self.score
        return {
            "adapted": self.adapted,
            "answer": self.answer,
            "settings": self.settings,
            "images": len(self._pairs),
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
        console().print(shares_table(self.shares()))
        print(self.answer)
        if self.score is not None:
            print(f"with labels: {self.score.sentence}")
        print(f"weights:     {out / 'adapted'}")
        print(f"page:        {out / 'report.html'}")
        if self.skipped:
            print(f"skipped:     {self.left_out}; {out / 'adapt.json'} names them")


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


def _shares(pixels: NDArray[np.int64]) -> list[float]:
    shares: list[float] = (pixels / max(pixels.sum(), 1)).tolist()
    return shares
