"""Adaptation with early stopping and rollback: evidence before and during learning, and the best accepted state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import NotFiniteError
from dem_apps.test_time_methods.network import deep_copy
from dem_apps.test_time_methods.normalisation import tracking
from seg.adaptation.decision import LabelScore, Verdict, decide, decide_with_labels
from seg.adaptation.evidence import Evidence, Forward, Probe, plain_forward
from seg.models.adaptive_batch_norm import SHARES, re_estimated

#: The score of a network on labelled images.
Scorer = Callable[[Forward], LabelScore]


@dataclass(frozen=True)
class Check:
    """A look at the adapted network."""

    step: int  #: batches that it had learnt from
    evidence: Evidence | None  #: None where its output was not finite
    verdict: Verdict  #: whether it is accepted in place of the unadapted network
    score: LabelScore | None = None  #: on labelled images, where there are any


def deployed_copy(adapter: TestTimeAdapter, probe: Probe) -> nn.Module:
    """A copy of the adapted network in ``eval()`` mode, with stored statistics that fit its weights.

    Where adapting normalises by the batch, the stored statistics are those of other images and other weights. They are
    re-estimated on the probe's images, so that the copy predicts one image as it does many, in any order.
    """
    network = adapter.predictor
    with torch.no_grad():
        if adapter.batch_norm != "stored" and tracking(network):
            share = SHARES[1] if adapter.bn_alpha is None else adapter.bn_alpha
            network = re_estimated(network, probe.batches, share).network
        return deep_copy(network).eval()


def assess(
    step: int, probe: Probe, forward: Forward, before: Evidence, score: Scorer | None, accept: bool = False
) -> Check:
    """The evidence of a network after ``step`` batches, and the verdict on it; clear scores on labels decide.

    ``accept`` is the user's word, which decides unless the output is not finite.
    """
    try:
        evidence = probe.look(forward)
    except NotFiniteError:
        return Check(step, None, Verdict(False, "its output is not finite"))
    verdict, found = decide(before, evidence), None if score is None else score(forward)
    if found is not None:
        verdict = decide_with_labels(verdict, found)
    if accept and not verdict.adapt:
        verdict = Verdict(True, f"--accept takes it, although {verdict.reason}")
    return Check(step, evidence, verdict, found)


@dataclass
class WatchedAdapter:
    """An adapter whose network is checked at times. The best accepted state is kept, a rejected one ends learning."""

    adapter: TestTimeAdapter
    probe: Probe
    before: Evidence  #: of the unadapted network
    score: Scorer | None = None  #: of a network on labelled images, where there are any
    accept: bool = False
    step: int = 0  #: batches that it has learnt from
    checks: list[Check] = field(default_factory=list)  #: the looks so far
    best: dict[str, Tensor] | None = None  #: weights of the best accepted state
    best_check: Check | None = None  #: the look that they were kept at
    refused: dict[str, Tensor] | None = None  #: weights of the last state, where it was not accepted
    stopped: str = ""  #: why learning has ended early, as a clause; empty otherwise

    def learn(self, images: Tensor, valid: Tensor | None = None) -> Tensor | None:
        """Adapt to a batch, to the pixels where ``valid``, (B, H, W), is True; its prediction.

        None where the loss was not finite, which ends learning.
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
        check = assess(self.step, self.probe, plain_forward(candidate), self.before, self.score, self.accept)
        self.checks.append(check)
        if check.verdict.adapt:
            if self.accept or self.best_check is None or self._worth(check) >= self._worth(self.best_check):
                self.best, self.best_check = candidate.state_dict(), check
        else:
            self.refused = candidate.state_dict() if check.evidence is not None else None
            if self.step:
                self.stopped = f"after batch {self.step} {check.verdict.reason}"
        return check

    def _worth(self, check: Check) -> float:
        """The mIoU, or that of the evidence where there are no labels."""
        if check.score is not None:
            return check.score.after
        return 0.0 if check.evidence is None else check.evidence.worth_on(self.before)
