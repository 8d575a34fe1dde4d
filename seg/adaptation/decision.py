"""Label-free acceptance test for an adapted network, and the score that decides where there are labels.

The thresholds were chosen by ``benchmarks/adapt_decision.py`` on half of its corruptions; docs/adaptation.md says how
often the answer is right on the other half. Entropy says little: it falls in good adaptations and in bad ones, and a
network that has collapsed is certain, and steady under every view. What tells them apart is how steady the classes are
that the network *began* with, a lost one counting 0, and how many classes there are. A network that began with few has
nothing to compare with.

Shapes: C classes, N labelled images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dem_apps.report.intervals import LEVEL
from seg.adaptation.evidence import Evidence

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
_RESAMPLES = 2000


@dataclass(frozen=True)
class Verdict:
    """On an adapted network.

    Args:
        adapt: whether it may be used.
        reason: why, as a clause whose subject is the network.
    """

    adapt: bool
    reason: str


@dataclass(frozen=True)
class LabelScore:
    """mIoU over the labelled images, 0 to 1.

    Args:
        images: N.
        before: of the network as it was.
        after: of the adapted one.
        low: lower end of the interval of ``after - before``; None for a single image.
        high: upper end.
    """

    images: int
    before: float
    after: float
    low: float | None
    high: float | None

    @property
    def gain(self) -> float:
        """after - before."""
        return self.after - self.before

    @property
    def sentence(self) -> str:
        """Both scores and the interval of their difference."""
        ends = "no interval of one image"
        if self.low is not None and self.high is not None:
            ends = f"{LEVEL:.0%} interval {100 * self.low:+.1f} to {100 * self.high:+.1f}"
        images = f"{self.images} labelled image{'s' * (self.images > 1)}"
        return (
            f"on {images} mIoU goes from {100 * self.before:.1f} to {100 * self.after:.1f} % "
            f"({100 * self.gain:+.1f}; {ends})"
        )


def decide(before: Evidence, after: Evidence) -> Verdict:
    """The answer from evidence alone, both on the same images.

    Args:
        before: of the network as it was.
        after: of the adapted one.
    """
    classes = f"an effective number of {before.effective_classes:.1f} classes before and {after.effective_classes:.1f}"
    old, new = before.stability_on(before), after.stability_on(before)
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
    """The labels decide where the interval of the gain excludes 0; elsewhere :func:`decide`'s verdict stands."""
    if score.high is not None and score.high < 0:
        return Verdict(False, f"it scores lower ({score.sentence})")
    if score.low is not None and score.low > 0:
        return Verdict(True, f"it scores higher ({score.sentence})")
    return label_free


def label_score(before: Sequence[NDArray[np.int64]], after: Sequence[NDArray[np.int64]]) -> LabelScore:
    """Scores over all images, and the bootstrap's interval of their difference over images (percentiles).

    Args:
        before: N tables (C, C) of pixels by label and prediction.
        after: of the same images.
    """
    tables = np.stack([np.stack(before), np.stack(after)])
    count = tables.shape[1]
    first, second = (mean_iou(tables[side].sum(0)) for side in (0, 1))
    if count < 2:
        return LabelScore(count, first, second, None, None)
    generator = np.random.default_rng(0)
    gains = []
    for _ in range(_RESAMPLES):
        weights = np.bincount(generator.integers(count, size=count), minlength=count)
        old, new = (np.tensordot(weights, tables[side], 1) for side in (0, 1))
        gains.append(mean_iou(new) - mean_iou(old))
    low, high = np.quantile(gains, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return LabelScore(count, first, second, float(low), float(high))


def mean_iou(confusion: NDArray[np.int64]) -> float:
    """Of a (C, C) table, over the classes that labels or predictions contain; 0 where nothing is labelled."""
    hits = np.diag(confusion)
    union = confusion.sum(0) + confusion.sum(1) - hits
    there = union > 0
    return float((hits[there] / union[there]).mean()) if there.any() else 0.0
