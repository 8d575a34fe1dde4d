"""DeYO (Lee et al., *Entropy is not Enough for Test-Time Adaptation: From the Perspective of Disentangled Factors*,
ICLR 2024)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import fold, unfold

from dem_apps.entropy import probabilities
from dem_apps.errors import number
from dem_apps.test_time_methods.learner import Learner
from dem_apps.test_time_methods.method import (
    Method,
    check_dense,
    number_or_none,
    resized,
)
from dem_apps.test_time_methods.selection import Units, margin, units


class DeYO(Method):
    """Tent on predictions that depend on shape: shuffling patches must lower the predicted class's probability.

    Kept are predictions with entropy below τ_Ent and a pseudo-label probability difference, PLPD, above τ_PLPD (Eq. 8):
    the predicted class's probability, less that with the image's patches shuffled (Eq. 6). An element is weighed by
    exp(E₀ − H) + exp(PLPD) (Eq. 10). Only images with an element below τ_Ent are run a second time.

    The paper has classifiers only. With logits (B, C, H, W) both probabilities are of the same place of the image.

    Args:
        entropy_margin: τ_Ent in nats; None is 0.5 log C.
        weight_margin: E₀ of the weights, in nats; None is 0.4 log C, too.
        plpd_above: τ_PLPD, from −1 to 1; the paper has 0.2 or 0.3.
        patches: patches per row and per column. An image that does not divide by it is resized to one that does and
            back.
    """

    def __init__(
        self,
        entropy_margin: float | None = None,
        weight_margin: float | None = None,
        plpd_above: float = 0.2,
        patches: int = 4,
    ) -> None:
        self.entropy_margin = number_or_none("entropy_margin", entropy_margin)
        self.weight_margin = number_or_none("weight_margin", weight_margin)
        self.plpd_above = number("plpd_above", plpd_above, -1.0, 1.0)
        self.patches = int(number("patches", patches, 1))

    def learn(self, learner: Learner, images: Tensor, logits: Tensor, counted: Tensor) -> None:
        """A forward of the shuffled images without gradient, and one backward, if anything is kept."""
        judged = units(logits, counted)
        selected = judged.below(margin(self.entropy_margin, 0.5, judged))
        if not selected.any():
            return
        plpd = self._plpd(learner, images, logits, judged, selected)
        selected = selected & (plpd > self.plpd_above)
        if selected.any():
            e0 = margin(self.weight_margin, 0.4, judged)
            weights = (e0 - judged.entropy).exp() + plpd.exp()
            learner.descend(learner.loss(logits, selected, weights))

    @torch.no_grad()
    def _plpd(
        self, learner: Learner, images: Tensor, logits: Tensor, judged: Units, selected: Tensor
    ) -> Tensor:
        """The probability differences of the judged units; 0 in images of which nothing is kept."""
        chosen = selected.reshape(len(selected), -1).any(1)
        p = probabilities(logits.detach()[chosen], 1)
        shuffled = probabilities(
            learner.logits(self.shuffled(images[chosen], learner.generator)), 1
        )
        label = p.argmax(1, keepdim=True)
        plpd = torch.zeros_like(judged.entropy)
        plpd[chosen] = (p.gather(1, label) - shuffled.gather(1, label))[:, 0]
        return plpd

    def shuffled(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return images (B, C, H, W) with the patches of each in a random order."""
        check_dense("deyo", images)
        n = self.patches
        patch = tuple(max(side // n, 1) for side in images.shape[2:])
        size = tuple(side * n for side in patch)
        fitting = resized(images, size)
        order = torch.stack(
            [torch.randperm(n * n, generator=generator, device="cpu") for _ in images]
        )
        patches = unfold(fitting, patch, stride=patch)  # (B, C · h · w, n²)
        order = order.to(images.device)[:, None].expand_as(patches)
        mixed = fold(patches.gather(2, order), size, patch, stride=patch)
        return resized(mixed, images.shape[2:])
