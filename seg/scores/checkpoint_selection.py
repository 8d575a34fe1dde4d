"""Checkpoint selection: which checkpoints are kept besides the last, and when a run looks collapsed."""

from __future__ import annotations

from typing import Any

from dem_apps.runtime.load_state import required

#: The checkpoints that are kept besides the last: selected without and with target labels.
_KEPT = ("selected", "best")
#: Predictions in one class beyond this share, or a mean entropy below this share of log C, are a collapse.
_ONE_CLASS, _NO_ENTROPY = 0.95, 0.01
#: A class that once had this share of the predictions, and now has this part of it, is being lost.
_ONCE, _LEFT = 0.001, 0.25


class CheckpointSelector:
    """Remembers the checkpoint that an unsupervised score selects, and the best one by target labels.

    Args:
        criterion: a key of the scores of :mod:`seg.scores.unsupervised_scores`; higher is better.
    """

    def __init__(self, criterion: str) -> None:
        self.criterion = criterion
        self._kept: dict[str, dict[str, Any]] = {}
        self._previous: float | None = None
        self._current: float | None = None
        #: By class the largest share of the predictions that it had.
        self._largest: dict[str, float] = {}

    def update(self, step: int, result: dict[str, Any]) -> list[str]:
        """Which checkpoints the scores of a step improve on: ``selected``, ``best``; the latter needs target labels."""
        self._previous, self._current = self._current, result["label_free"][self.criterion]
        for name, share in result["predicted_share"].items():
            self._largest[name] = max(share, self._largest.get(name, 0.0))
        scores = {"selected": self._current, "best": result["miou"]}
        improved = [
            name
            for name, score in scores.items()
            if score is not None and (name not in self._kept or score > self._kept[name]["score"])
        ]
        for name in improved:
            self._kept[name] = {"step": step, "score": scores[name], "miou": result["miou"]}
        return improved

    def alarm(self, result: dict[str, Any]) -> str | None:
        """A sentence when predictions collapse: into one class, into certainty as the score falls, or class by class.

        A class is being lost where it has less than a quarter of the largest share of the predictions that it had in
        this training, and that was 0.1 % or more: training on one's own predictions forgets rare classes first.
        """
        share = result["label_free"]["largest_class_share"]
        if share > _ONE_CLASS:
            return f"{100 * share:.1f} % of the pixels are predicted as one class"
        falls = self._previous is not None and self._current is not None and self._current < self._previous
        if falls and result["mean_entropy_normalised"] < _NO_ENTROPY:
            return (
                f"entropy is {result['mean_entropy_normalised']:.4f} of log C while the label-free score "
                f"'{self.criterion}' falls ({self._previous:.4f} to {self._current:.4f})"
            )
        shares = result["predicted_share"]
        lost = [name for name, most in self._largest.items() if most >= _ONCE and shares[name] < _LEFT * most]
        if lost:
            examples = ", ".join(
                f"{name} {100 * self._largest[name]:.2g} to {100 * shares[name]:.2g} %" for name in lost
            )
            return f"classes are being lost from the predictions ({examples} of the pixels)"
        return None

    def table(self, last_step: int, last_miou: float | None) -> dict[str, dict[str, Any]]:
        """Last, selected and best side by side: step, mIoU and whether target labels chose it."""
        rows: dict[str, dict[str, Any]] = {
            "last": {"step": last_step, "miou": last_miou, "chosen_by": "end of training"}
        }
        by = {"selected": f"label-free score {self.criterion}", "best": "target labels"}
        for name, kept in self._kept.items():
            rows[name] = {"step": kept["step"], "miou": kept["miou"], "chosen_by": by[name]}
        for name, row in rows.items():
            row["used_target_labels"] = name == "best"
        return rows

    def state(self) -> dict[str, Any]:
        """For a checkpoint, whose key ``choice`` is that of the runs so far."""
        return {"chosen": dict(self._kept), "current": self._current, "largest_shares": dict(self._largest)}

    def restore(self, state: Any) -> None:
        """Continue where :meth:`state` was taken.

        Raises:
            InputError: something else.
        """
        where = "--resume: the checkpoint's 'choice'"
        required(state, where, chosen=dict, current=(float, int, type(None)))
        for name in _KEPT:
            if name in state["chosen"]:
                # a target without labels has no mIoU, and a checkpoint that was selected without one
                miou = (float, int, type(None))
                required(state["chosen"][name], f"{where}, {name}", step=int, score=(float, int), miou=miou)
        self._kept = {name: state["chosen"][name] for name in _KEPT if name in state["chosen"]}
        self._current = state["current"]
        # runs from before it was remembered have none
        shares = state.get("largest_shares", {})
        required({"shares": shares}, where, shares=dict)
        for share in shares.values():
            required({"share": share}, f"{where}, largest_shares", share=(float, int))
        self._largest = dict(shares)
