"""EATA, ETA with a Fisher penalty (Niu et al., *Efficient Test-Time Model Adaptation without Forgetting*, 2022)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dem_apps.errors import InputError, number
from dem_apps.test_time_methods.eta import ETA
from dem_apps.test_time_methods.learner import Learner
from dem_apps.test_time_methods.method import check_images


class EATA(ETA):
    """ETA plus β Σ ω (θ − θ₀)², where ω is the Fisher information of each parameter on source images (Eq. 8, Eq. 9).

    ω is the mean over the batches of the squared gradient of the cross-entropy with the network's own predictions, as
    in the authors' code; it is computed when the adapter is made. It needs no labels.

    Args:
        source_images: batches of preprocessed images of the training's kind, without labels; some 2000 images in the
            paper. ``()`` is for none: then this is ETA, unless a state with ω is loaded.
        fisher_weight: β; 2000 in the authors' code, 1 with Adam on CIFAR-10.
        filter_by, entropy_margin, similarity: as of :class:`dem_apps.test_time_methods.eta.ETA`.
    """

    def __init__(
        self,
        source_images: Iterable[Tensor] | None = None,
        fisher_weight: float = 2000.0,
        filter_by: str = "element",
        entropy_margin: float | None = None,
        similarity: float | None = None,
    ) -> None:
        super().__init__(filter_by, entropy_margin, similarity)
        if source_images is None:
            raise InputError(
                "method 'eata': it needs source_images=, batches of images of the kind it was trained on, to know "
                "which weights matter there; without any use 'eta', which is the rest of it"
            )
        self.fisher_weight = number("fisher_weight", fisher_weight, 0.0)
        self.fisher: dict[str, Tensor] = {}
        self._source_images: Iterable[Tensor] = source_images

    def begin(self, learner: Learner) -> None:
        """Compute ω."""
        batches, given = 0, self._source_images
        if isinstance(given, Tensor):
            raise InputError("source_images: expected batches of images, got one tensor; pass a list with it inside")
        for images in given:
            check_images("source_images", images)
            if not len(images):
                continue
            batches += 1
            with learner.network.step():
                logits = learner.logits(images)
                learner.backward(nn.functional.cross_entropy(logits, logits.detach().argmax(1)))
            for name, weight in learner.network.weights.items():
                square = torch.zeros_like(weight) if weight.grad is None else weight.grad.square()
                self.fisher[name] = self.fisher[name] + square if name in self.fisher else square
        if not batches and given != ():
            raise InputError("source_images: there is no image in it (drop_last=True may drop all); () is for none")
        self._source_images = ()
        self.fisher = {name: total / batches for name, total in self.fisher.items()}
        learner.reset()

    def penalty(self, learner: Learner) -> Tensor | float:
        """β Σ ω (θ − θ₀)²."""
        weights, start = learner.network.weights, learner.network.start
        parts = [(omega * (weights[name] - start[name]).square()).sum() for name, omega in self.fisher.items()]
        return self.fisher_weight * torch.stack(parts).sum() if parts else 0.0

    def state_dict(self) -> dict[str, Any]:
        """The moving average and ω."""
        return {**super().state_dict(), "fisher": self.fisher}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        super().load_state_dict(state)
        self.fisher = state["fisher"]
