"""Adaptation with early stopping and rollback: evidence before and while it learns, and the best state seen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import NotFiniteError
from dem_apps.test_time_methods.network import find_logits
from dem_apps.test_time_methods.normalisation import batch_norms
from seg.adaptation.decision import LabelScore, Verdict, decide, decide_with_labels
from seg.adaptation.evidence import Evidence, Forward, Probe
from seg.models.adaptive_batch_norm import re_estimated

#: The score of a network on labelled images.
Scorer = Callable[[Forward], LabelScore]


@dataclass(frozen=True)
class Check:
    """A look at the adapted network.

    Args:
        step: batches that it had learnt from.
        evidence: None where its output was not finite.
        verdict: whether it may be used in place of the network as it was.
        score: on labelled images, where there are any.
    """

    step: int
    evidence: Evidence | None
    verdict: Verdict
    score: LabelScore | None = None


def plain_forward(network: nn.Module) -> Forward:
    """A network in ``eval()`` mode as a function from images to logits."""
    return lambda images: find_logits(network(images))


def deployed_copy(adapter: TestTimeAdapter, probe: Probe) -> nn.Module:
    """A copy of the adapted network in ``eval()`` mode, with stored statistics that fit its weights.

    Where adapting normalises by the batch, the stored statistics are still those of other images and other weights; so
    they are re-estimated (:func:`seg.models.adaptive_batch_norm.re_estimated`), and the copy predicts one image as well
    as many, in whatever order, and so do the weights that are saved of it.
    """
    network = adapter.predictor
    with torch.no_grad():
        if adapter.batch_norm != "stored" and any(layer.running_mean is not None for layer in batch_norms(network)):
            network = re_estimated(network, probe.batches)
        return copy.deepcopy(network).eval()


def assess(step: int, probe: Probe, forward: Forward, before: Evidence, score: Scorer | None) -> Check:
    """The evidence of a network after so many batches, and the verdict on it; labels decide where they can."""
    try:
        evidence = probe.look(forward)
    except NotFiniteError:
        return Check(step, None, Verdict(False, "its output is not finite"))
    verdict = decide(before, evidence)
    if score is None:
        return Check(step, evidence, verdict)
    found = score(forward)
    return Check(step, evidence, decide_with_labels(verdict, found), found)


class WatchedAdapter:
    """An adapter whose network is looked at now and then; the best acceptable state is kept, a bad one ends it.

    Args:
        adapter: of any method.
        probe: images of the folder that is adapted to.
        before: the evidence of the network as it was.
        score: of a network on labelled images beside that of the network as it was, where there are any.

    Attributes:
        step: batches that it has learnt from.
        checks: the looks so far.
        best: weights of the best acceptable state, or None.
        best_check: the look that they were kept at.
        stopped: why learning has ended early, as half a sentence; empty otherwise.
    """

    def __init__(self, adapter: TestTimeAdapter, probe: Probe, before: Evidence, score: Scorer | None = None) -> None:
        self.adapter, self.probe, self.before, self.score = adapter, probe, before, score
        self.step = 0
        self.checks: list[Check] = []
        self.best: dict[str, Tensor] | None = None
        self.best_check: Check | None = None
        self.stopped = ""

    def learn(self, images: Tensor, valid: Tensor | None = None) -> Tensor | None:
        """Adapt to a batch; its prediction, or None where the loss was not finite, after which nothing is learnt.

        Nothing is learnt of pixels for which ``valid``, (B, H, W), is False.
        """
        try:
            logits = self.adapter(images, valid)
        except NotFiniteError:
            self.stopped = f"the loss was not finite at batch {self.step + 1}"
            return None
        self.step += 1
        return logits

    def check(self) -> Check:
        """Look at the network as it is now."""
        candidate = deployed_copy(self.adapter, self.probe)
        check = assess(self.step, self.probe, plain_forward(candidate), self.before, self.score)
        self.checks.append(check)
        if check.verdict.adapt:
            if self.best_check is None or self._worth(check) >= self._worth(self.best_check):
                self.best = {name: value.clone() for name, value in candidate.state_dict().items()}
                self.best_check = check
        elif self.step:
            self.stopped = f"after batch {self.step} {check.verdict.reason}"
        return check

    def _worth(self, check: Check) -> float:
        """What the best of several acceptable states has most of: mIoU, or stability where there are no labels."""
        if check.score is not None:
            return check.score.after
        return 0.0 if check.evidence is None else check.evidence.stability_on(self.before)
