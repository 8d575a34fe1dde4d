"""Tent (Wang et al., *Tent: Fully Test-Time Adaptation by Entropy Minimization*, ICLR 2021)."""

from __future__ import annotations

from torch import Tensor

from dem_apps.test_time_methods.learner import Learner
from dem_apps.test_time_methods.method import Method


class Tent(Method):
    """Each batch is predicted; then one step minimises the objective of its logits (Eq. 1, Sec. 3.2)."""

    def learn(self, learner: Learner, images: Tensor, logits: Tensor, counted: Tensor) -> None:
        """One backward."""
        learner.descend(learner.loss(logits, counted))
