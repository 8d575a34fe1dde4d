"""ETA, which is Tent on reliable, non-redundant elements, and EATA, with a Fisher penalty.

Source: Niu et al., *Efficient Test-Time Model Adaptation without Forgetting*, ICML 2022.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dem_apps.errors import InputError, number
from dem_apps.test_time_methods.copies import Values
from dem_apps.test_time_methods.learner import Learner
from dem_apps.test_time_methods.method import Method, checked_images, number_or_none
from dem_apps.test_time_methods.selection import Units, margin, units

#: ε of the paper for ImageNet's 1000 classes; 0.4 for the ten of CIFAR-10.
_SIMILARITY_AT_1000 = 0.05


class ETA(Method):
    """Tent on predictions with entropy below E₀ that differ from the earlier ones, weighed by exp(E₀ − H) (Sec. 4.1).

    They differ where the cosine to the moving average of the predictions learnt from is below ε in magnitude (Eq. 5;
    from the second batch on). The average moves by a tenth of each batch's mean (Eq. 4).

    Args:
        entropy_margin: E₀ in nats (Eq. 3); None is 0.4 log C. The paper's 0.4 log 1000 is above
            log C up to 15 classes.
        similarity: ε, from 0 to 1 (1 filters nothing); None is 0.05 √(1000 / C), at most 1: the cosine between a
            one-hot and a uniform prediction is 1 / √C, so a fixed 0.05 keeps nothing with few classes.
    """

    memory = ("mean_p",)

    def __init__(
        self,
        entropy_margin: float | None = None,
        similarity: float | None = None,
    ) -> None:
        self.entropy_margin = number_or_none("entropy_margin", entropy_margin)
        self.similarity = number_or_none("similarity", similarity, 1.0)
        self.mean_p: Tensor | None = None

    def learn(self, learner: Learner, images: Tensor, logits: Tensor, counted: Tensor) -> None:
        """One backward if anything is kept."""
        judged = units(logits, counted)
        e0 = margin(self.entropy_margin, 0.4, judged)
        selected = self._selected(judged, e0)
        if selected.any():
            loss = learner.loss(logits, selected, (e0 - judged.entropy).exp())
            learner.descend(loss + self.penalty(learner))
            mean = judged.mean_p(selected)
            self.mean_p = mean if self.mean_p is None else 0.9 * self.mean_p + 0.1 * mean

    def penalty(self, learner: Learner) -> Tensor | float:
        """Return the penalty that is added to the loss."""
        return 0.0

    def _selected(self, judged: Units, e0: float) -> Tensor:
        reliable = judged.below(e0)
        most = self.similarity
        if most is None:
            most = _SIMILARITY_AT_1000 * math.sqrt(1000 / judged.p.shape[1])
        if self.mean_p is None or most >= 1:
            return reliable
        mean = self.mean_p.view(1, -1, *[1] * (judged.p.ndim - 2))
        return reliable & (torch.cosine_similarity(mean, judged.p, dim=1).abs() < most)


class EATA(ETA):
    """ETA plus β Σ ω (θ − θ₀)², where ω is the Fisher information of each parameter on source images (Eq. 8, Eq. 9).

    ω is the mean over the batches of the squared gradient of the cross-entropy with the network's own predictions, as
    in the authors' code; it is computed when the adapter is made. It needs no labels.

    Args:
        source_images: batches of preprocessed images of the training's kind, without labels; some 2000 images in the
            paper. ``()`` is for none: then this is ETA, unless a state with ω is loaded.
        fisher_weight: β; 2000 in the authors' code, 1 with Adam on CIFAR-10.
        entropy_margin, similarity: see :class:`ETA`.
    """

    lasting = ("fisher",)

    def __init__(
        self,
        source_images: Iterable[Tensor] | None = None,
        fisher_weight: float = 2000.0,
        entropy_margin: float | None = None,
        similarity: float | None = None,
    ) -> None:
        super().__init__(entropy_margin, similarity)
        if source_images is None:
            raise InputError(
                "method 'eata': needs source_images=, batches of images like those of the network's training; "
                "without any, use 'eta', which has no Fisher penalty"
            )
        self.fisher_weight = number("fisher_weight", fisher_weight, 0.0)
        self.fisher: Values = {}
        self._source_images = source_images

    def begin(self, learner: Learner) -> None:
        """Compute ω."""
        if isinstance(self._source_images, Tensor):
            raise InputError(
                "source_images: expected batches of images, got one tensor; pass a list with it inside"
            )
        batches = 0
        for each in self._source_images:
            images = checked_images("source_images", each)
            batches += 1
            with learner.network.step():
                logits = learner.logits(images)
                learner.backward(nn.functional.cross_entropy(logits, logits.detach().argmax(1)))
            for name, weight in learner.network.weights.items():
                if weight.grad is not None:
                    self.fisher[name] = self.fisher.get(name, 0.0) + weight.grad.square()
        if not batches and self._source_images != ():
            raise InputError(
                "source_images: holds no image (drop_last=True may have dropped all); give () to adapt without any"
            )
        self._source_images = ()
        self.fisher = {name: total / batches for name, total in self.fisher.items()}
        learner.reset()

    def penalty(self, learner: Learner) -> Tensor | float:
        """β Σ ω (θ − θ₀)²."""
        weights, start = learner.network.weights, learner.network.start
        parts = [
            (omega * (weights[name] - start[name]).square()).sum()
            for name, omega in self.fisher.items()
        ]
        return self.fisher_weight * torch.stack(parts).sum() if parts else 0.0
