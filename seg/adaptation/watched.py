"""Early stopping and rollback: the looks at a network while it is adapted, and the best accepted state."""

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
from seg.adaptation.evidence import Evidence, Forward, Probe
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


@dataclass
class Watch:
    """The looks at an adapted network: the best accepted state is kept, a rejected one ends learning."""

    probe: Probe
    before: Evidence  #: of the unadapted network
    score: Scorer | None = None  #: of a network on labelled images, where there are any
    accept: bool = False  #: the user's word, which decides unless the output is not finite
    share: float | None = None  #: of the images' batch norm statistics, where they are taken once
    planned: int = 0  #: batches to learn from
    batches: int = 0  #: learnt from so far
    checks: list[Check] = field(default_factory=list)  #: the looks so far
    used: Check | None = None  #: the look whose network is used; None for the unadapted one
    best: dict[str, Tensor] | None = None  #: weights of that network
    refused: dict[str, Tensor] | None = None  #: weights of the last state, where it was not accepted
    stopped: str = ""  #: why learning has ended early, as a clause; empty otherwise

    def check(self, forward: Forward, state: dict[str, Tensor] | None = None) -> bool:
        """Look at a network, whose weights are ``state``; whether it is accepted."""
        check = self._look(forward)
        self.checks.append(check)
        if not check.verdict.adapt:
            self.refused = None if check.evidence is None else state
            if self.batches:
                self.stopped = f"after batch {self.batches} {check.verdict.reason}"
        elif self.accept or self.used is None or self._worth(check) >= self._worth(self.used):
            self.used, self.best = check, state
        return check.verdict.adapt

    def _look(self, forward: Forward) -> Check:
        """The evidence of a network, and the verdict on it; clear scores on labels decide."""
        try:
            evidence = self.probe.look(forward)
        except NotFiniteError:
            return Check(self.batches, None, Verdict(False, "its output is not finite"))
        verdict, found = decide(self.before, evidence), None if self.score is None else self.score(forward)
        if found is not None:
            verdict = decide_with_labels(verdict, found)
        if self.accept and not verdict.adapt:
            verdict = Verdict(True, f"--accept takes it, although {verdict.reason}")
        return Check(self.batches, evidence, verdict, found)

    def _worth(self, check: Check) -> float:
        """The mIoU of an accepted look, or what its evidence is worth where there are no labels."""
        assert check.evidence is not None
        return check.evidence.worth_on(self.before) if check.score is None else check.score.after
