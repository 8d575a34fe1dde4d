"""ETA: Tent on reliable, non-redundant elements (Niu et al., *Efficient Test-Time Model Adaptation without Forgetting*,
ICML 2022, Sec. 4.1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dem_apps.errors import number, one_of
from dem_apps.test_time_methods.learner import Learner
from dem_apps.test_time_methods.method import Method, fitted_mask
from dem_apps.test_time_methods.selection import FILTER_BY, Units, margin, units

#: ε of the paper for ImageNet's 1000 classes; 0.4 for the ten of CIFAR-10.
_SIMILARITY_AT_1000 = 0.05


class ETA(Method):
    """Tent on predictions with entropy below E₀ that differ from the earlier ones, weighed by exp(E₀ − H).

    They differ where the cosine to the moving average of the predictions learnt from is below ε in magnitude (Eq. 5;
    from the second batch on). The average moves by a tenth of each batch's mean (Eq. 4).

    Args:
        filter_by: the judged unit, each ``element`` (a pixel) or each ``image`` by its pixels' mean entropy and mean
            prediction. Mean predictions of street scenes are all alike, so ``image`` learns from hardly any after the
            first batch.
        entropy_margin: E₀ in nats (Eq. 3); None is 0.4 log C. The paper's 0.4 log 1000 is above log C up to 15 classes.
        similarity: ε, from 0 to 1 (1 filters nothing); None is 0.05 √(1000 / C), at most 1: the cosine between a
            one-hot and a uniform prediction is 1 / √C, so a fixed 0.05 keeps nothing with few classes.
    """

    memory = ("mean_p",)

    def __init__(
        self, filter_by: str = "element", entropy_margin: float | None = None, similarity: float | None = None
    ) -> None:
        self.filter_by = one_of("filter_by", filter_by, FILTER_BY)
        self.entropy_margin = None if entropy_margin is None else number("entropy_margin", entropy_margin, 0.0)
        self.similarity = None if similarity is None else number("similarity", similarity, 0.0, 1.0)
        self.mean_p: Tensor | None = None

    def step(self, learner: Learner, images: Tensor, mask: Tensor | None) -> Tensor:
        """One forward, and one backward if anything is kept."""
        logits = learner.logits(images)
        judged = units(logits, fitted_mask(mask, images, logits), self.filter_by)
        e0 = margin(self.entropy_margin, 0.4, logits.shape[1])
        kept = self._kept(judged, e0)
        if bool(kept.any()):
            weights = judged.of_elements((e0 - judged.entropy).exp())
            loss = learner.loss(logits, judged.kept_elements(kept), weights)
            learner.descend(loss + self.penalty(learner))
            mean = judged.mean_p(kept)
            self.mean_p = mean if self.mean_p is None else 0.9 * self.mean_p + 0.1 * mean
        return logits

    def penalty(self, learner: Learner) -> Tensor | float:
        """Added to the loss."""
        return 0.0

    def _kept(self, judged: Units, e0: float) -> Tensor:
        reliable = judged.counted & (judged.entropy < e0)
        if self.mean_p is None:
            return reliable
        mean = self.mean_p.view(1, -1, *[1] * (judged.p.ndim - 2))
        cosine = torch.cosine_similarity(mean, judged.p, dim=1)
        most = self.similarity
        if most is None:
            most = min(1.0, _SIMILARITY_AT_1000 * math.sqrt(1000 / judged.p.shape[1]))
        return reliable if most == 1.0 else reliable & (cosine.abs() < most)
