"""A run's checkpoints: their names, which are kept besides the last, and when a run looks collapsed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dem_apps.runtime.documents import Document

#: The share of the pixels that each class has.
Shares = Mapping[str, float]
CHECKPOINTS = ("auto", "last", "selected", "best")
#: The label-free score that selects a checkpoint: information maximisation.
CRITERION = "im"
CHECKPOINT_HELP = (
    "auto: best, chosen by the target's validation labels, where it has any, else last; selected: chosen without "
    "labels, by information maximisation"
)
#: A collapse: predictions in one class beyond this share, or a mean entropy below this share of log C.
_ONE_CLASS, _NO_ENTROPY = 0.95, 0.01
#: In a collapse into one class, the others have so many times fewer pixels than in the source's labels.
_TIMES_FEWER = 4.0
#: A class swells when it has this share of the predicted pixels, and so many times its share of the source labels.
_SWOLLEN, _TIMES = 0.01, 3.0
#: Least share of all swelling classes; a single class swells for a while in every sixth run without any objective.
_SWOLLEN_TOGETHER = 0.03


def chosen_by(checkpoint: str) -> str:
    """Describe how a checkpoint was chosen."""
    return {"selected": f"label-free score {CRITERION}", "best": "target labels"}.get(
        checkpoint, "end of training"
    )


class CheckpointSelector:
    """The checkpoint that the label-free score selects, and the best one by labels."""

    def __init__(self) -> None:
        self._rows: dict[str, Document] = {}
        self._previous: float | None = None

    def update(self, step: int, result: Document, alarm: str | None) -> list[str]:
        """Return the checkpoints to replace.

        ``selected`` is among them only without an ``alarm``, ``best`` only with target labels.
        """
        self._previous = result["label_free"][CRITERION]
        scores = {"selected": None if alarm else self._previous, "best": result["miou"]}
        improved = []
        for name, score in scores.items():
            before = self._rows.get(name, {"score": -math.inf})["score"]
            if score is not None and score > before:
                self._rows[name] = {"step": step, "score": score, "miou": result["miou"]}
                improved.append(name)
        return improved

    def alarm(self, result: Document, source_share: Shares) -> str | None:
        """Return a sentence when predictions collapse.

        They collapse into one class, in certainty, or into rare classes. A target that holds that
        much more of a class raises the last alarm too. Frequencies are in
        docs/appendix.md#weights-that-are-too-large. Call it before :meth:`update`.

        Args:
            result: of :func:`seg.scores.evaluation.evaluate`.
            source_share: each class's share of the source's labels seen.
        """
        predicted = result["predicted_share"]
        entropy = result["mean_entropy_normalised"]
        name, share = max(predicted.items(), key=lambda each: each[1])
        # cracks are few of the pixels in the labels as well
        if share > _ONE_CLASS and 1 - share < (1 - source_share.get(name, 0.0)) / _TIMES_FEWER:
            return f"{100 * share:.1f} % of the pixels are predicted as one class"
        before = self._previous
        current = result["label_free"][CRITERION]
        if before is not None and current < before and entropy < _NO_ENTROPY:
            falls = f"label-free score '{CRITERION}' falls ({before:.4f} to {current:.4f})"
            return f"entropy is {entropy:.4f} of log C while the {falls}"
        return _swelling(predicted, source_share)

    def table(self, last_step: int, last_miou: float | None) -> dict[str, Document]:
        """Last, selected and best side by side: step, mIoU and whether target labels chose it."""
        rows = {"last": {"step": last_step, "miou": last_miou}, **self._rows}
        return {
            name: {
                "step": row["step"],
                "miou": row["miou"],
                "chosen_by": chosen_by(name),
                "used_target_labels": name == "best",
            }
            for name, row in rows.items()
        }

    def state(self) -> Document:
        """Return the state for a checkpoint."""
        return {"chosen": dict(self._rows), "current": self._previous}

    def restore(self, state: Any) -> None:
        """Continue from a :meth:`state`.

        Raises:
            InputError: anything else is given.
        """
        # torch, which the names of checkpoints do without
        from dem_apps.runtime.checkpoint import fitting

        with fitting("--resume: the checkpoint's 'choice'"):
            self._rows = dict(state["chosen"])
            self._previous = state["current"]


def _swelling(predicted: Shares, source_share: Shares) -> str | None:
    """Return a sentence if rare classes of the source's labels fill many predicted pixels."""
    swollen = {
        name: share
        for name, share in predicted.items()
        if share >= _SWOLLEN and share > _TIMES * source_share.get(name, 0.0)
    }
    if not source_share or sum(swollen.values()) < _SWOLLEN_TOGETHER:
        return None
    examples = ", ".join(f"{name} {100 * share:.2g} %" for name, share in swollen.items())
    return f"rare classes swell: {examples} of the pixels, over {_TIMES:g} times their share of source labels"
