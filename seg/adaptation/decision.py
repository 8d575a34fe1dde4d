"""Whether an adapted network may take the place of the one that it was, told without a label.

The thresholds were chosen by ``benchmarks/adapt_decision.py`` on half of its corruptions; docs/adaptation.md says how
often the answer is right on the other half. Entropy says little: it falls in good adaptations and in bad ones, and a
network that has collapsed is certain, and steady under every view. What tells them apart is how steady the classes are
that the network *began* with, a lost one counting 0, and how many classes there are. A network that began with few has
nothing to compare with.
"""

from __future__ import annotations

from dataclasses import dataclass

from seg.adaptation.evidence import Evidence, stability_on
from seg.adaptation.labelled import LabelScore

#: An adapted network's stability has to be at least this share of what it was. Stability moves with mIoU (rank
#: correlation 0.9 over the benchmark), and by a few per cent between sets of images without any adaptation.
LEAST_STABILITY = 0.95
#: Its effective number of classes likewise: small classes drown in larger ones before stability says so.
LEAST_CLASSES = 0.93
#: With so many times the effective number of classes, the network had lost classes before: what little it predicted was
#: as steady as a constant is, so that nothing is compared with it.
REGAINED_CLASSES = 2.0
#: Its mean entropy likewise: below, it is certain of nearly everything, right or wrong.
LEAST_ENTROPY = 0.2


@dataclass(frozen=True)
class Verdict:
    """On an adapted network.

    Args:
        adapt: whether it may be used.
        reason: why, as a clause whose subject is the network.
    """

    adapt: bool
    reason: str


def decide(before: Evidence, after: Evidence) -> Verdict:
    """The answer from evidence alone, both on the same images.

    Args:
        before: of the network as it was.
        after: of the adapted one.
    """
    classes = f"an effective number of {before.effective_classes:.1f} classes before and {after.effective_classes:.1f}"
    old, new = stability_on(before, before), stability_on(after, before)
    steady = f"stability {old:.2f} before and {new:.2f} after"
    if after.effective_classes < LEAST_CLASSES * before.effective_classes:
        return Verdict(False, f"it predicts fewer classes ({classes} after)")
    if after.effective_classes >= REGAINED_CLASSES * before.effective_classes:
        return Verdict(True, f"it predicts classes again that were lost ({classes} after)")
    if new < LEAST_STABILITY * old:
        return Verdict(False, f"its classes hold less when an image is mirrored or made smaller ({steady})")
    if after.entropy < LEAST_ENTROPY * before.entropy:
        return Verdict(
            False, f"it is certain of all (mean entropy {before.entropy:.3f} before, {after.entropy:.3f} after)"
        )
    return Verdict(True, f"its classes hold when an image is mirrored or made smaller ({steady}), and none are lost")


def decide_with_labels(label_free: Verdict, score: LabelScore) -> Verdict:
    """The labels decide where the interval of the gain tells it from 0, and the evidence without them elsewhere.

    Args:
        label_free: of :func:`decide`.
        score: on labelled images.
    """
    if score.high is not None and score.high < 0:
        return Verdict(False, f"it scores lower ({score.sentence})")
    if score.low is not None and score.low > 0:
        return Verdict(True, f"it scores higher ({score.sentence})")
    return label_free


def worth(before: Evidence, after: Evidence) -> float:
    """What the best of several acceptable networks has most of."""
    return stability_on(after, before)
