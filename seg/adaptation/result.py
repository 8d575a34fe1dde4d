"""The result of an adaptation: the answer and its numbers, in a terminal, as tables and as ``adapt.json``."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dem_apps.report.tables import write_csv
from dem_apps.runtime.files import write_json
from dem_apps.runtime.progress import print_table
from dem_apps.test_time_methods.copies import put_values
from seg.adaptation.decision import (
    RECORD,
    AcceptanceMonitor,
    Check,
    LabelScore,
    decide_with_labels,
    label_score,
)
from seg.adaptation.images import ImageNumbers
from seg.adaptation.normalisation_trial import Trial
from seg.data.labels import ClassSet
from seg.scores.segmentation_scores import other_numbering
from seg.trained.settings import ADAPTED, is_function
from seg.trained.trained_network import TrainedNetwork

#: The list of images to label first, and how many of them it has.
LABEL_FIRST = "label_first.csv"
_LABEL_FIRST = 100
#: With fewer images than these the answer says that the evidence is weak.
_FEW_IMAGES = 8
#: A class whose share of the pixels has moved by more than this is named.
_MOVED = 0.10


@dataclass(frozen=True)
class Result:
    """The answer and its numbers."""

    settings: dict[str, Any]  #: of the command, resolved
    classes: ClassSet
    outcome: AcceptanceMonitor
    #: By image: "before" of the unadapted network, "after" of what stands.
    rows: Mapping[str, Mapping[str, ImageNumbers]]
    skipped: Mapping[str, str]  #: why an image was left out, by its path
    trial: Trial  #: of normalisations

    @property
    def adapted(self) -> bool:
        """Whether the adapted network is used."""
        return self.outcome.used is not None and self.settings["method"] != "none"

    @property
    def answer(self) -> str:
        """What was done and why, in sentences."""
        said = self._adapted() if self.adapted else self._not_adapted()
        return said + (f" Normalisation: {self.trial.sentence}." if self.trial.warns else "")

    @property
    def headline(self) -> str:
        """The answer in a few words, with its number."""
        used, score, done = (
            self.outcome.used,
            self.score,
            "Adapted" if self.adapted else "Not adapted",
        )
        if score is not None and self.settings["method"] != "none":
            ends = ""
            if score.low is not None and score.high is not None:
                ends = f" [{100 * score.low:+.1f}, {100 * score.high:+.1f}]"
            both = f"{100 * score.before:.1f} → {100 * score.after:.1f} %"
            return f"{done}: {'' if self.adapted else 'it would be '}mIoU {both}, {100 * score.gain:+.1f}{ends}"
        if used is None or used.evidence is None or not self.adapted:
            return done
        before, after = (
            each.stability_on(self.outcome.before) for each in (self.outcome.before, used.evidence)
        )
        return f"{done}, not measured: stability of the predictions {before:.3f} → {after:.3f}"

    @property
    def _doubt(self) -> str:
        number = len(self.rows["before"])
        few = f", on {number} image{'s' * (number != 1)} only, which is weak evidence"
        return few if number < _FEW_IMAGES else ""

    def _not_adapted(self) -> str:
        outcome, last = self.outcome, self.outcome.checks[-1].verdict
        why = "no adapted state is better than the unadapted network" if last.adapt else last.reason
        if outcome.share == 0 and not outcome.planned:
            why = "no share of these images' batch norm statistics is clearly better than none (--bn-alpha sets one)"
        why = (
            "the method is none"
            if self.settings["method"] == "none"
            else f"{outcome.stopped or why}{self._doubt}"
        )
        kept = (
            " Those of the adaptation are in refused/, and --accept takes them."
            if self.refused
            else ""
        )
        return (
            f"Not adapted: {why}; predictions and weights are those of the unadapted network.{kept}"
        )

    def _adapted(self) -> str:
        """How far it was adapted and why that stands, then what changed most and what is uncertain."""
        outcome, used = self.outcome, self.outcome.used
        assert used is not None
        share = {None: "", 1.0: "all of "}.get(
            outcome.share, f"a share of {outcome.share or 0:g} of "
        )
        statistics = f" by {share}these images' batch norm statistics"
        done = (
            f" up to batch {used.step} of {outcome.planned}" if used.step else f"{statistics} alone"
        )
        refused = (
            outcome.checks[-1].verdict
            if outcome.ground is not None and used.beside is None
            else None
        )
        if used.beside is not None:
            done = f"{statistics} and a step of {self.learning(used)}"
        elif (
            not outcome.stopped
            and used.step == outcome.batches
            and self.settings["method"] not in ("bn", "step")
        ):
            done = ""
        elif not outcome.stopped and used.step:
            done += ", the best state"
        state = (
            f"the state after batch {used.step}"
            if used.step
            else "the statistics alone, before the first batch"
        )
        back = f"{outcome.stopped}{self._doubt}, so it went back to {state}"
        why = back if outcome.stopped and refused is None else self._reason(used) + self._doubt
        said = f"Adapted{done}: {why}."
        said += f" A step of an objective is not taken: {refused.reason}." if refused else ""
        moved = [
            f"{row['class']} from {100 * row['before']:.1f} % of the pixels to {100 * row['after']:.1f} %"
            for row in self.shares()
            if abs(row["difference"]) > _MOVED
        ]
        said += f" Largest changes: {', '.join(moved)}." if moved else ""
        if outcome.kept:
            keep, number = "keep" if len(outcome.kept) > 1 else "keeps", len(self.rows["before"])
            said += f" Of {number} images {len(outcome.kept)} {keep} the prediction from before, more stable there."
        if len(set(outcome.chosen)) > 1:
            said += (
                " The share is uncertain: the halves of the images choose {:g} and {:g}.".format(
                    *outcome.chosen
                )
            )
        if outcome.share is not None and outcome.planned == 0 and used.score is None:
            said += (
                " Of {} adaptations accepted so on other networks and folders {} gained more than 0.5 mIoU and {} lost "
                "as much (95 % bound: {} %); eight labelled images would measure it (--labels)."
            ).format(*RECORD)
        return said

    def _reason(self, used: Check) -> str:
        """Why the adaptation stands; of a step that labels chose, for the whole, then for the step alone."""
        whole = self.score
        if used.beside is None or used.score is None or whole is None:
            return used.verdict.reason
        verdict = decide_with_labels(self.outcome.checks[0].verdict, whole)
        return f"{verdict.reason}; the step alone: {used.score.sentence}"

    def learning(self, check: Check | None) -> str:
        """Objective, average and rate in words, of a step those that labels have chosen."""
        chosen = (
            {"objective": self.settings["loss"]}
            | self.settings
            | ((check and check.learning) or {})
        )
        return "{objective}, {reduction}, learning rate {lr:g}".format(**chosen)

    @property
    def refused(self) -> bool:
        """Whether an adaptation was made and not accepted."""
        last = self.outcome.checks[-1]
        return self.outcome.used is None and not last.verdict.adapt and last.evidence is not None

    @property
    def score(self) -> LabelScore | None:
        """On labelled images: of the predictions that stand, or of the adaptation that is not used."""
        if not self.adapted:
            return self.outcome.checks[-1].score
        new = [self.rows["after"][name].confusion for name in self.rows["before"]]
        tables = [table for table in new if table is not None]
        return label_score(self.outcome.baseline, tables) if tables else None

    @property
    def numbering(self) -> str | None:
        """A sentence about labels whose ids seem to be shifted, by the predictions before."""
        tables = [
            row.confusion for row in self.rows["before"].values() if row.confusion is not None
        ]
        return other_numbering(np.sum(tables, axis=0), self.classes.ids) if tables else None

    def shares(self) -> list[dict[str, Any]]:
        """A row per class, the largest before first: its share of the pixels before and after."""
        old, new = (
            class_shares(np.sum([row.pixels for row in rows.values()], 0))
            for rows in self.rows.values()
        )
        rows = zip(self.classes.names, old, new, strict=True)
        table = [
            {"class": name, "before": a, "after": b, "difference": b - a} for name, a, b in rows
        ]
        return sorted(table, key=lambda row: -row["before"])

    def shown_shares(self) -> list[list[str]]:
        """The same in per cent, below headings; once where nothing changed, and without classes never predicted."""
        shown = [row for row in self.shares() if row["before"] or row["after"]]
        columns = ("before", "after", "difference") if self.adapted else ("before",)
        texts = [
            [f"{100 * row[column]:{'+' * (column == 'difference')}.1f}" for column in columns]
            for row in shown
        ]
        rows = [[row["class"], *cells] for row, cells in zip(shown, texts, strict=True)]
        return [
            ["class", *(f"{column} %" for column in (columns if self.adapted else ["share"]))],
            *rows,
        ]

    def images(self) -> list[dict[str, Any]]:
        """A row per image: its mean entropy before and after, and the share of the class predicted most."""
        return [
            {"image": name}
            | {f"entropy_{stage}": rows[name].entropy for stage, rows in self.rows.items()}
            | {
                f"largest_share_{stage}": max(class_shares(rows[name].pixels))
                for stage, rows in self.rows.items()
            }
            for name in self.rows["before"]
        ]

    @property
    def mean_entropy(self) -> dict[str, float]:
        """Before and after, the mean over images; 0 is certain, 1 uniform."""
        return {
            stage: float(np.mean([row.entropy for row in rows.values()]))
            for stage, rows in self.rows.items()
        }

    def document(self) -> dict[str, Any]:
        """``adapt.json``."""
        outcome, score = self.outcome, self.score
        return {
            "adapted": self.adapted,
            "answer": self.answer,
            "settings": self.settings,
            "images": len(self.rows["before"]),
            "skipped": [
                {"image": name, "reason": reason} for name, reason in sorted(self.skipped.items())
            ],
            "batches": outcome.batches,
            "planned_batches": outcome.planned,
            "stopped": outcome.stopped,
            "share_of_statistics": outcome.share,
            "share_by_halves": outcome.chosen,
            "kept_before": [[*self.rows["before"]][index] for index in outcome.kept],
            "used_after_batch": outcome.used and outcome.used.step,
            "evidence": {
                "before": asdict(outcome.before),
                "checks": [asdict(check) for check in outcome.checks],
            },
            "labels": score and {**asdict(score), "gain": score.gain},
            "numbering": self.numbering,
            "normalisation": self.trial.document(),
            "mean_entropy": self.mean_entropy,
        }

    def _spec_of(self, out: Path) -> str:
        """The flags that name the adapted network: the folder as a whole, of a function its weights beside it."""
        if not is_function(str(self.settings["model"])):
            return f"--model {shlex.quote(str(out))}"
        (file,) = (out / ADAPTED).iterdir()
        used, flags = (
            self.trial.used,
            f"--model {self.settings['model']} --weights {shlex.quote(str(file))}",
        )
        if not used.guessed and used.origin != "the function's facts":
            said = used.normalisation
            flags += "".join(
                _flag(name, said[name]) for name in ("mean", "std", "channels", "scale")
            )
        given = {name: self.settings.get(name) for name in ("classes", "size")}
        return flags + "".join(
            _flag(name, each) for name, each in given.items() if each not in (None, "auto")
        )

    def print(self, out: Path) -> None:
        """The result, the reason, class shares, and what to do next, in a terminal."""
        header, *rows = self.shown_shares()
        print_table("predicted share of the pixels", header, rows)
        print(self.headline)
        print(f"answer:      {self.answer}")
        if self.score is not None and self.numbering:
            print(f"labels:      {self.numbering}")
        print(f"weights:     {out / 'adapted'}")
        print(f"page:        {out / 'report.html'}")
        if (out / LABEL_FIRST).is_file():
            print(f"label first: {out / LABEL_FIRST}, an order not shown to beat a random one")
        spec = self._spec_of(out)
        print(f"new images:  python -m seg.export {spec} --images DIR --out predictions")
        print(f"ONNX:        python -m seg.export_model {spec} --out model --onnx")
        if self.skipped:
            total = len(self.rows["before"]) + len(self.skipped)
            print(
                f"skipped:     {len(self.skipped)} of {total} images, which cannot be read; see {out / 'adapt.json'}"
            )


def _flag(name: str, value: Any) -> str:
    joined = (
        ",".join(f"{each:g}" for each in value) if isinstance(value, (list, tuple)) else str(value)
    )
    return f" --{name} {shlex.quote(joined)}"


def class_shares(pixels: NDArray[np.int64]) -> list[float]:
    """(C,) pixels of each class → their shares."""
    shares: list[float] = (pixels / max(pixels.sum(), 1)).tolist()
    return shares


def label_first(rows: Mapping[str, ImageNumbers]) -> list[dict[str, str]]:
    """The images without a label in the order of the list "label these first", with reasons; at most 100.

    The order was not shown to beat a random one (docs/appendix.md).
    Next is the image of the largest mean entropy times the share of its pixels whose classes the nearest one before
    lacks.
    """
    rows, listed = (
        {name: row for name, row in rows.items() if row.confusion is None},
        list[dict[str, str]](),
    )
    shares = np.array([class_shares(row.pixels) for row in rows.values()])
    entropy = [row.entropy for row in rows.values()]
    apart, left = np.ones(len(rows)), np.ones(len(rows), np.bool_)
    for _ in range(min(len(rows), _LABEL_FIRST)):
        best = int(np.argmax(np.where(left, entropy * apart, -1)))
        unlike = (
            f"; {apart[best]:.0%} of its pixels are of other classes than in those above"
            if listed
            else ""
        )
        reason = f"mean entropy {entropy[best]:.3f}, of the folder {np.mean(entropy):.3f}{unlike}"
        listed.append({"image": [*rows][best], "reason": reason})
        apart, left[best] = np.minimum(apart, 0.5 * np.abs(shares - shares[best]).sum(1)), False
    return listed


def write_result(folder: Path, result: Result, trained: TrainedNetwork, page: bytes) -> None:
    """Write weights, tables, the page and ``adapt.json`` beside the predictions."""
    trained.network.cpu()
    trained.save(folder / "adapted")
    if result.outcome.refused is not None:
        own = copy.deepcopy(trained.network.state_dict())
        put_values(trained.network, result.outcome.refused)
        trained.save(folder / "refused" / "adapted")
        put_values(trained.network, own)
    write_csv(folder / "shares.csv", result.shares())
    write_csv(folder / "images.csv", result.images())
    if listed := label_first(result.rows["after"]):
        write_csv(folder / LABEL_FIRST, listed)
    (folder / "report.html").write_bytes(page)
    write_json(folder / "adapt.json", result.document())
