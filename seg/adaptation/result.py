"""The result of an adaptation: the answer and its numbers, in a terminal, as tables and as ``adapt.json``."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dem_apps.report.tables import write_csv
from dem_apps.runtime.arguments import flags
from dem_apps.runtime.documents import Document
from dem_apps.runtime.files import write_json
from dem_apps.runtime.progress import print_table
from seg.adaptation.decision import (
    LEAST_LABELLED,
    RECORD,
    AcceptanceMonitor,
    Check,
    LabelScore,
    label_score,
)
from seg.adaptation.images import Rows
from seg.adaptation.normalisation import NormalisationCheck
from seg.data.files import evenly
from seg.data.labels import ClassSet
from seg.data.pixel_format import Floats
from seg.trained.description import Description
from seg.trained.settings import ADAPTED, NetworkSettings, given_settings, is_function
from seg.trained.trained_network import TrainedNetwork

#: With fewer images than these the answer says that the evidence is weak.
_FEW_IMAGES = 8
#: Images whose labels would measure the result, and most letters of their names in a terminal.
_TO_LABEL, _MOST_LETTERS = 8, 200


@dataclass(frozen=True)
class Result:
    """The answer and its numbers."""

    settings: Document  #: of the command, resolved
    classes: ClassSet
    outcome: AcceptanceMonitor
    #: By image: "before" of the unadapted network, "after" of what stands.
    rows: Rows
    skipped: Mapping[str, str]  #: why an image was left out, by its path
    description: Description  #: how the network sees images
    normalisation: NormalisationCheck

    @property
    def names(self) -> list[str]:
        """Paths of the images."""
        return [*self.rows["before"]]

    @property
    def method(self) -> str:
        """The method, resolved."""
        return str(self.settings["method"])

    @property
    def adapted(self) -> bool:
        """True where the adapted network is used."""
        return self.outcome.used is not None and self.method != "none"

    @property
    def answer(self) -> str:
        """The sentences that say what was done and why."""
        used = self.outcome.used
        last = self.outcome.checks[-1]
        if used is not None and self.adapted:
            sentences = [self._adapted(used), *self._doubts(used)]
        else:
            sentences = [
                f"Not adapted: {self._why_not(last)}; predictions and weights are those of the unadapted network."
            ]
            if not last.verdict.adapt and last.evidence is not None:
                sentences.append("--accept takes the adaptation.")
        if self.normalisation.warns:
            sentences.append(f"Normalisation: {self.normalisation.sentence}.")
        return " ".join(sentences)

    @property
    def headline(self) -> str:
        """The answer in a few words, with its score or, where it is not measured, the stability of the predictions."""
        score = self.score
        verdict = "Adapted" if self.adapted else "Not adapted"
        if self.method == "none":
            return verdict
        if score is not None:
            return f"{verdict}: {'' if self.adapted else 'it would be '}{score.short}"
        before = self.outcome.before
        check = self.outcome.used or self.outcome.checks[-1]
        if check.evidence is None:
            return f"{verdict}, not measured"
        old, new = (each.stability_on(before) for each in (before, check.evidence))
        would = "" if self.adapted else "would be "
        return f"{verdict}, not measured: stability of the predictions {would}{old:.2f} → {new:.2f}"

    @property
    def assumed(self) -> str:
        """How the network sees the images, and what another guess would need."""
        told = "; a few labels and --mean, --std, --channels, --scale would tell"
        return f"the network sees {self.description.described}{told if self.description.guessed else ''}"

    @property
    def to_label(self) -> list[str]:
        """Images, evenly from the folder, whose labels would measure the result; none where it is measured."""
        names = self.names
        if self.score is not None or self.method == "none":
            return []
        return evenly(names, _TO_LABEL) if len(names) >= LEAST_LABELLED else []

    @property
    def _weak(self) -> str:
        number = len(self.names)
        few = f", on {number} image{'s' * (number != 1)} only, which is weak evidence"
        return few if number < _FEW_IMAGES else ""

    def _why_not(self, last: Check) -> str:
        outcome = self.outcome
        why = last.verdict.reason
        if self.method == "none":
            return "the method is none"
        if outcome.stopped:
            why = outcome.stopped
        elif outcome.share == 0 and not outcome.planned:
            why = (
                "no share of these images' batch norm statistics is clearly better than none "
                "(--bn-alpha sets one)"
            )
        elif last.verdict.adapt:
            why = "no adapted state is better than the unadapted network"
        return why + self._weak

    def _adapted(self, used: Check) -> str:
        """Return the sentence on the extent of the adaptation and the reason for it."""
        why = used.verdict.reason + self._weak
        stopped = self.outcome.stopped
        if stopped:
            state = "the statistics alone, as before the first batch"
            if used.step:
                state = f"the state after batch {used.step}"
            why = f"{stopped}{self._weak}, so it went back to {state}"
        return f"Adapted{self._extent(used)}: {why}."

    def _extent(self, used: Check) -> str:
        """Return the extent of the adaptation; empty where it has learnt from all batches."""
        outcome = self.outcome
        share = outcome.share
        part = "" if share is None else f"a share of {share:g} of "
        statistics = f" by {'all of ' if share == 1 else part}these images' batch norm statistics"
        if used.learning is not None:
            return f"{statistics} and a step of {self.learning(used)}"
        finished = not outcome.stopped and used.step == outcome.batches
        if finished and self.method not in ("bn", "step"):
            return ""
        if not used.step:
            return f"{statistics} alone"
        best = "" if outcome.stopped else ", the best state"
        return f" up to batch {used.step} of {outcome.planned}{best}"

    def _doubts(self, used: Check) -> list[str]:
        """Return sentences on images that are left as they were, and on the uncertainty without labels."""
        outcome = self.outcome
        sentences = list[str]()
        number = len(outcome.kept_before)
        if number:
            keep = "keeps" if number == 1 else "keep"
            sentences.append(
                f"Of {len(self.names)} images {number} {keep} the prediction from before, more stable there."
            )
        if len(set(outcome.share_by_halves)) > 1:
            first, second = outcome.share_by_halves
            sentences.append(
                f"The share is uncertain: the halves of the images choose {first:g} and {second:g}."
            )
        if outcome.share is not None and outcome.planned == 0 and used.score is None:
            tests, lost, times = RECORD
            sentences.append(
                f"In {tests} tests {lost} networks got worse by more than 0.5 mIoU; in sum {times} times as much "
                "was gained as lost."
            )
        return sentences

    def learning(self, check: Check | None) -> str:
        """Return objective, average and learning rate in words.

        A step has the ones that labels have chosen. The text is empty without learning.
        """
        chosen = {"objective": self.settings["loss"], **self.settings}
        chosen |= (check and check.learning) or {}
        if chosen["lr"] is None:
            return ""
        return "{objective}, {reduction}, learning rate {lr:g}".format(**chosen)

    @property
    def score(self) -> LabelScore | None:
        """The score on labelled images.

        It belongs to the predictions that stand, or to the adaptation that is not used.
        """
        if not self.adapted:
            return self.outcome.checks[-1].score
        new = [self.rows["after"][name].confusion for name in self.names]
        tables = [table for table in new if table is not None]
        return label_score(self.outcome.baseline, tables) if tables else None

    def shares(self) -> list[Document]:
        """A row per class, the largest before first: its share of the pixels before and after."""
        old, new = (
            class_shares(np.sum([row.pixels for row in rows.values()], 0))
            for rows in self.rows.values()
        )
        table = [
            {"class": name, "before": a, "after": b, "difference": b - a}
            for name, a, b in zip(self.classes.names, old, new, strict=True)
        ]
        return sorted(table, key=lambda row: -row["before"])

    def shown_shares(self) -> list[list[str]]:
        """The same in per cent, below headings, without classes that are never predicted."""
        table = [["class", "before %", "after %", "difference %"]]
        for row in self.shares():
            name, *shares, difference = row.values()
            if any(shares):
                numbers = [f"{100 * share:.1f}" for share in shares]
                table.append([name, *numbers, f"{100 * difference:+.1f}"])
        return table

    def images(self) -> list[Document]:
        """A row per image: its mean entropy before and after, and the share of the class predicted most."""
        table = []
        for name in self.names:
            row: Document = {"image": name}
            for stage, rows in self.rows.items():
                row[f"entropy_{stage}"] = rows[name].entropy
                row[f"largest_share_{stage}"] = max(class_shares(rows[name].pixels))
            table.append(row)
        return table

    @property
    def mean_entropy(self) -> dict[str, float]:
        """Mean entropy over images before and after; 0 is certain, 1 uniform."""
        return {
            stage: float(np.mean([row.entropy for row in rows.values()]))
            for stage, rows in self.rows.items()
        }

    def document(self) -> Document:
        """``adapt.json``."""
        outcome = self.outcome
        score = self.score
        return {
            "adapted": self.adapted,
            "answer": self.answer,
            "settings": self.settings,
            "images": len(self.names),
            "skipped": [
                {"image": name, "reason": reason} for name, reason in sorted(self.skipped.items())
            ],
            "batches": outcome.batches,
            "planned_batches": outcome.planned,
            "stopped": outcome.stopped,
            "share_of_statistics": outcome.share,
            "share_by_halves": outcome.share_by_halves,
            "kept_before": [self.names[index] for index in outcome.kept_before],
            "used_after_batch": outcome.used and outcome.used.step,
            "evidence": {
                "before": asdict(outcome.before),
                "checks": [asdict(check) for check in outcome.checks],
            },
            "labels": score and {**asdict(score), "gain": score.gain},
            "normalisation": {
                **self.description.normalisation,
                "said": self.description.described,
                "trial": self.normalisation.sentence,
            },
            "mean_entropy": self.mean_entropy,
        }

    def _spec_of(self, out: Path) -> str:
        """Return the flags that name the adapted network.

        They name the folder as a whole, or a function and its weights. A function also needs the
        flags that say what it expects.
        """
        model = str(self.settings["model"])
        if not is_function(model):
            return f"--model {shlex.quote(str(out))}"
        (file,) = (out / ADAPTED).iterdir()
        given = given_settings(self.settings, NetworkSettings)
        return shlex.join(flags({**given, "weights": str(file)}))

    def print(self, out: Path) -> None:
        """Print class shares; then the answer in four lines, which end with the next command; then its files."""
        header, *rows = self.shown_shares()
        print_table("predicted share of the pixels", header, rows)
        spec = self._spec_of(out)
        lines = [
            self.headline,
            f"answer:      {self.answer}",
            f"assumes:     {self.assumed}",
            f"new images:  python -m seg.export {spec} --images DIR --out predictions",
            f"weights:     {out / 'adapted'}",
            f"page:        {out / 'report.html'}",
            f"ONNX:        python -m seg.export_model {spec} --out model --onnx",
        ]
        names = self.to_label
        if names:
            listed = textwrap.shorten(
                ", ".join(names), _MOST_LETTERS, placeholder=" … (all are in the page)"
            )
            lines.insert(3, f"to be sure:  label these {len(names)} and add --labels: {listed}")
        if self.skipped:
            total = len(self.names) + len(self.skipped)
            lines.append(
                f"skipped:     {len(self.skipped)} of {total} images, which cannot be read; see {out / 'adapt.json'}"
            )
        print(*lines, sep="\n")


def class_shares(pixels: Floats) -> list[float]:
    """Return the share of each class from its pixels (C,)."""
    shares: list[float] = (pixels / max(pixels.sum(), 1)).tolist()
    return shares


def write_result(folder: Path, result: Result, trained: TrainedNetwork, page: bytes) -> None:
    """Write weights, tables, the page and ``adapt.json`` beside the predictions."""
    trained.network.cpu()
    trained.save(folder / "adapted")
    write_csv(folder / "shares.csv", result.shares())
    write_csv(folder / "images.csv", result.images())
    (folder / "report.html").write_bytes(page)
    write_json(folder / "adapt.json", result.document())
