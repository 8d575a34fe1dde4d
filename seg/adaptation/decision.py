"""Whether an adapted network may take the place of the one that it was, told without a label."""

from __future__ import annotations

from dataclasses import dataclass

from seg.adaptation.evidence import Evidence, apart, stability_on
from seg.adaptation.labelled import LabelScore

#: placeholders
LEAST_STABILITY = 0.95
LEAST_CLASSES = 0.6
MOST_APART = 0.35


@dataclass(frozen=True)
class Verdict:
    """Args:
    adapt: whether the adapted network is used.
    reason: half a sentence, of which the network is the subject.
    """

    adapt: bool
    reason: str


def decide(before: Evidence, after: Evidence) -> Verdict:
    """The rule."""
    if after.effective_classes < LEAST_CLASSES * before.effective_classes:
        return Verdict(False, f"it predicts {after.effective_classes:.1f} classes instead of {before.effective_classes:.1f}")
    if apart(before.shares, after.shares) > MOST_APART:
        return Verdict(False, "moved")
    if stability_on(after, before) < LEAST_STABILITY * stability_on(before, before):
        return Verdict(False, "less stable")
    return Verdict(True, "ok")


def decide_with_labels(label_free: Verdict, score: LabelScore) -> Verdict:
    """The labels decide where the interval of the gain tells it from 0, and the evidence without them elsewhere."""
    if score.high is not None and score.high < 0:
        return Verdict(False, f"it scores lower ({score.sentence})")
    if score.low is not None and score.low > 0:
        return Verdict(True, f"it scores higher ({score.sentence})")
    return label_free


def worth(before: Evidence, after: Evidence) -> float:
    """By which the best of several acceptable states is chosen; higher is better."""
    return stability_on(after, before)
