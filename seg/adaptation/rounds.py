"""An adapter that is watched: evidence before and during the adaptation, and the best state that there was."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import NotFiniteError
from dem_apps.test_time_methods.network import find_logits
from dem_apps.test_time_methods.normalisation import batch_norms
from seg.adaptation.decision import Verdict, decide, decide_with_labels, worth
from seg.adaptation.evidence import Evidence, Forward, gathered
from seg.adaptation.labelled import LabelScore
from seg.models.adaptive_batch_norm import re_estimated

#: The score of a network on labelled images.
Scorer = Callable[[Forward], LabelScore]


@dataclass(frozen=True)
class Probe:
    """The images that evidence is taken on, and statistics of batch norm.

    Args:
        batches: (B, 3, H, W) each, as the network takes them.
        multiple: sides of images are multiples of this.
    """

    batches: Sequence[Tensor]
    multiple: int = 1

    def look(self, forward: Forward) -> Evidence:
        """The evidence of a network."""
        return gathered(forward, self.batches, self.multiple)


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

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "step": self.step,
            "evidence": self.evidence and self.evidence.document(),
            "verdict": asdict(self.verdict),
            "score": self.score and asdict(self.score),
        }

    @classmethod
    def of_document(cls, document: dict[str, Any]) -> Check:
        """What :meth:`document` made."""
        evidence, score = document["evidence"], document["score"]
        return cls(
            document["step"], evidence and Evidence.of_document(evidence), Verdict(**document["verdict"]),
            score and LabelScore(**score),
        )  # fmt: skip


def plain_forward(network: nn.Module) -> Forward:
    """A network in ``eval()`` mode as a function from images to logits."""
    return lambda images: find_logits(network(images))


def as_it_would_be_used(adapter: TestTimeAdapter, probe: Probe) -> nn.Module:
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


def looked_at(step: int, probe: Probe, forward: Forward, before: Evidence, score: Scorer | None) -> Check:
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


class Rounds:
    """What an adaptation comes to, batch by batch.

    Args:
        adapter: of any method.
        probe: images of the folder that is adapted to.
        before: the evidence of the network as it was.
        score: of a network on labelled images beside that of the network as it was, where there are any.
    """

    def __init__(self, adapter: TestTimeAdapter, probe: Probe, before: Evidence, score: Scorer | None = None) -> None:
        self.adapter, self.probe, self.before, self.score = adapter, probe, before, score
        self.step = 0
        self.checks: list[Check] = []
        self.best: dict[str, Tensor] | None = None
        self.best_step: int | None = None
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
        """Look at the network as it is now, and keep it if it is the best so far; a bad one ends the adaptation."""
        candidate = as_it_would_be_used(self.adapter, self.probe)
        check = looked_at(self.step, self.probe, plain_forward(candidate), self.before, self.score)
        self.checks.append(check)
        if check.verdict.adapt and self._worth(check) >= max(map(self._worth, self.accepted), default=0.0):
            self.best = {name: value.clone() for name, value in candidate.state_dict().items()}
            self.best_step = self.step
        if not check.verdict.adapt and self.step:
            self.stopped = f"after batch {self.step} {check.verdict.reason}"
        return check

    @property
    def accepted(self) -> list[Check]:
        """The looks at networks that may be used."""
        return [check for check in self.checks if check.verdict.adapt]

    def _worth(self, check: Check) -> float:
        """Of an accepted network, higher is better."""
        if check.score is not None:
            return check.score.after
        assert check.evidence is not None  # for the type checker: without evidence nothing is accepted
        return worth(self.before, check.evidence)

    def state_dict(self) -> dict[str, Any]:
        """What an exact continuation needs; the network as it was is not in it."""
        return {
            "adapter": self.adapter.state_dict(), "step": self.step, "best": self.best, "best_step": self.best_step,
            "checks": [check.document() for check in self.checks], "stopped": self.stopped,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.adapter.load_state_dict(state["adapter"])
        self.step, self.stopped = state["step"], state["stopped"]
        self.best, self.best_step = state["best"], state["best_step"]
        self.checks = [Check.of_document(document) for document in state["checks"]]
