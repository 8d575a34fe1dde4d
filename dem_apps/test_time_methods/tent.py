"""Tent (Wang et al., *Tent: Fully Test-Time Adaptation by Entropy Minimization*, ICLR 2021)."""

from __future__ import annotations

from torch import Tensor

from dem_apps.entropy import Mask
from dem_apps.test_time_methods.learner import Learner
from dem_apps.test_time_methods.method import Method, fitted_mask


class Tent(Method):
    """Each batch is predicted; then one step minimises the objective of its logits (Eq. 1, Sec. 3.2)."""

    def step(self, learner: Learner, images: Tensor, mask: Mask) -> Tensor:
        """One forward, and one backward unless the mask has no True."""
        logits = learner.logits(images)
        counted = fitted_mask(mask, images, logits)
        if counted.any():
            learner.descend(learner.loss(logits, counted))
        return logits
