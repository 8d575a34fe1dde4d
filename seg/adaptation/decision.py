"""Label-free acceptance test for an adapted network, the score that decides with labels, and its monitor.

docs/adaptation.md says how the thresholds were chosen. Entropy alone does not decide: it falls in good and in bad
adaptations, and a collapsed network is certain and stable under every view. What decides is how many classes are
predicted, and how stable the classes are that the network predicted before the adaptation, a lost one counting 0.

Shapes: C classes, N labelled images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

import numpy as np

from dem_apps.errors import NotFiniteError
from dem_apps.report.intervals import mean_interval
from dem_apps.test_time_methods.copies import Values
from seg.adaptation.settings import Options
from seg.data.pixel_format import Counts
from seg.scores.evidence import Evidence, Forward, Probe
from seg.scores.segmentation_scores import Tables
from seg.trained.adaptive_batch_norm import best_share

#: The score of a network on labelled images.
Scorer = Callable[[Forward], "LabelScore"]

#: Least stability score after / before.
LEAST_SCORE = 0.95
#: Least effective number of classes after / before: small classes are lost before stability shows it.
LEAST_CLASSES = 0.9
#: Record of the shares that this rule takes without labels, on networks and folders that had no part in its choice
#: (``benchmarks/adapt_rules.py``): their number, how many lost more than 0.5 mIoU, and the sum of all gains over the
#: sum of all losses.
RECORD = (92, 9, 19)
#: Least effective number of classes after / before that shows a collapse of the unadapted network.
#: A collapsed network is constant and so stable, and nothing else is compared with it.
REGAINED_CLASSES = 2.0
#: Least mean entropy after / before; below, the network is certain of nearly everything.
LEAST_ENTROPY = 0.3
#: Fewest labelled images on which a gain is promised.
LEAST_LABELLED = 4


@dataclass(frozen=True)
class Verdict:
    """The decision on an adapted network, and its reason.

    The reason is a clause with the network as its subject.
    """

    adapt: bool
    reason: str


@dataclass(frozen=True)
class LabelScore:
    """mIoU over N labelled images, 0 to 1, and the CI of ``after - before``.

    The CI is None for a single image.
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
    def short(self) -> str:
        """Both scores, their difference and its 95 % CI."""
        interval = ""
        if self.low is not None and self.high is not None:
            interval = f" [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"
        return (
            f"mIoU {100 * self.before:.1f} → {100 * self.after:.1f} %, "
            f"{100 * self.gain:+.1f}{interval}"
        )

    @property
    def sentence(self) -> str:
        """The same with the number of images."""
        return f"on {self.images} labelled image{'s' * (self.images > 1)} {self.short}"


@dataclass(frozen=True)
class Check:
    """A look at the adapted network."""

    step: int  #: batches that it had learnt from
    evidence: Evidence | None  #: None where its output was not finite
    verdict: Verdict  #: whether it is accepted in place of the unadapted network
    score: LabelScore | None = None  #: on labelled images, where there are any
    #: objective, average and rate of a step
    learning: Options | None = None


def decide(before: Evidence, after: Evidence) -> Verdict:
    """The label-free verdict on an adapted network; both on the same images."""
    ratio = after.effective_classes / before.effective_classes
    numbers = _in_words(before, after)
    harm = ""
    merit = "its predictions are stable under mirroring and resizing, and no class is lost"
    if ratio < LEAST_CLASSES:
        harm = "it predicts fewer classes"
    elif ratio >= REGAINED_CLASSES:
        merit = "it predicts lost classes again"
    elif after.stability_score(before) < LEAST_SCORE * before.stability_score(before):
        harm = "its predictions are less stable under mirroring and resizing, or of fewer classes"
    elif after.entropy < LEAST_ENTROPY * before.entropy:
        harm = "it is certain everywhere"
    if harm:
        return Verdict(False, f"signs of harm: {harm} ({numbers})")
    return Verdict(True, f"no sign of harm: {merit} ({numbers})")


def _in_words(before: Evidence, after: Evidence) -> str:
    return (
        f"stability {before.stability_on(before):.2f} → {after.stability_on(before):.2f}, "
        f"effective number of classes {before.effective_classes:.1f} → "
        f"{after.effective_classes:.1f}, mean entropy {before.entropy:.3f} → {after.entropy:.3f}"
    )


class ShareChoice(NamedTuple):
    """A share of the images' statistics that two halves of them choose."""

    share: float
    by_halves: list[float]  #: the share that each half would choose by itself


def choose_share(halves: Sequence[Sequence[Evidence]]) -> ShareChoice:
    """Choose the share with the highest stability score, averaged over both halves.

    Args:
        halves: the evidence of each half at each of :data:`SHARES`.
    """
    scores = [[look.stability_score(looks[0]) for look in looks] for looks in halves]
    share = best_share([fmean(pair) for pair in zip(*scores, strict=True)])
    return ShareChoice(share, [best_share(each) for each in scores])


def decide_with_labels(label_free: Verdict, score: LabelScore) -> Verdict:
    """The labels decide where the CI of the gain excludes 0; elsewhere the label-free verdict stands.

    Fewer images than :data:`LEAST_LABELLED` can refuse an adaptation and not promise a gain.
    """
    if score.high is not None and score.high < 0:
        return Verdict(False, f"measured: it scores lower ({score.sentence})")
    if score.images >= LEAST_LABELLED and score.low is not None and score.low > 0:
        return Verdict(True, f"measured: it scores higher ({score.sentence})")
    return label_free


def label_score(before: Tables, after: Tables) -> LabelScore:
    """Score two networks on the same labelled images.

    The CI of the difference is Student's t over the jackknife's pseudo-values, each of which leaves one image out
    (Tukey, 1958). Percentiles of a bootstrap over so few images are too narrow.

    Args:
        before: N confusion matrices (C, C), one for each image.
        after: N confusion matrices of the other network.
    """
    old = np.stack(before)
    new = np.stack(after)
    count = len(before)
    first = mean_iou(old.sum(0))
    second = mean_iou(new.sum(0))
    without = [mean_iou(new.sum(0) - new[i]) - mean_iou(old.sum(0) - old[i]) for i in range(count)]
    values = count * (second - first) - (count - 1) * np.asarray(without)
    interval = mean_interval(values.tolist())
    return LabelScore(count, first, second, interval.low, interval.high)


def mean_iou(confusion: Counts) -> float:
    """mIoU of a confusion matrix (C, C) over the classes that labels or predictions contain; 0 without any."""
    hits = np.diag(confusion)
    union = confusion.sum(0) + confusion.sum(1) - hits
    present = union > 0
    return float((hits[present] / union[present]).mean()) if present.any() else 0.0


@dataclass
class AcceptanceMonitor:
    """Keeps the best accepted state of an adapted network; the first rejected one ends learning."""

    probe: Probe
    before: Evidence  #: of the unadapted network
    score: Scorer | None  #: of a network on labelled images, where there are any
    accept: bool  #: the user's word, which decides unless the output is not finite
    share: float | None = None  #: of the images' batch norm statistics, where they are taken once
    planned: int = 0  #: batches to learn from
    batches: int = 0  #: learnt from so far
    #: tables (C, C) of the labelled images by the unadapted network, where there are any
    baseline: Tables = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)  #: the looks so far
    used: Check | None = None  #: the look whose network is used; None for the unadapted one
    best: Values | None = None  #: weights of that network
    kept_before: tuple[int, ...] = ()  #: images whose prediction from before stays
    stopped: str = ""  #: why learning has ended early, as a clause; empty otherwise
    #: the share that each half of the images chooses by itself; empty where evidence did not choose it
    share_by_halves: list[float] = field(default_factory=list)

    def check(
        self,
        forward: Forward,
        state: Values | None = None,
        learning: Options | None = None,
        evidence: Evidence | None = None,
    ) -> bool:
        """Look at a network, and record the look.

        Args:
            forward: the network.
            state: its weights.
            learning: objective and rate of a step.
            evidence: on the probe, where it is known.

        Returns:
            Whether the network is accepted.
        """
        score = None
        try:
            evidence = evidence or self.probe.look(forward)
            score = None if self.score is None else self.score(forward)
            verdict = self._verdict(evidence, score, learning is not None)
        except NotFiniteError:
            verdict = Verdict(False, "its output is not finite")
        check = Check(self.batches, evidence, verdict, score, learning)
        self.checks.append(check)
        if not verdict.adapt:
            if self.batches:
                self.stopped = f"after batch {self.batches} {verdict.reason}"
        elif self.accept or self.used is None or self._worth(check) >= self._worth(self.used):
            self.used = check
            self.best = state
        return verdict.adapt

    def _verdict(self, evidence: Evidence, score: LabelScore | None, of_step: bool) -> Verdict:
        """Return the verdict of the labels where they are clear, else the label-free one.

        Labels alone decide on a step. With ``accept`` every verdict accepts.
        """
        if of_step and score is not None:
            verdict = Verdict(False, f"the step does not score clearly higher ({score.sentence})")
        elif self.share_by_halves and not self.batches:
            # the choice is the test: one more beside it keeps less and harms as often
            verdict = Verdict(
                True,
                "no sign of harm: of all shares it has the highest score of stability and number of classes "
                f"({_in_words(self.before, evidence)})",
            )
        else:
            verdict = decide(self.before, evidence)
        if score is not None:
            verdict = decide_with_labels(verdict, score)
        if self.accept and not verdict.adapt:
            return Verdict(True, f"--accept takes it, although {verdict.reason}")
        return verdict

    def _worth(self, check: Check) -> float:
        """The mIoU of an accepted look, or the stability score where there are no labels."""
        assert check.evidence is not None
        if check.score is not None:
            return check.score.after
        return check.evidence.stability_score(self.before)
