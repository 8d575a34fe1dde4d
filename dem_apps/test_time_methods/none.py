"""The unadapted network, the control of every other method."""

from __future__ import annotations

import torch
from torch import Tensor

from dem_apps.test_time_methods.learner import Learner
from dem_apps.test_time_methods.method import Method


class Unadapted(Method):
    """Predict with stored statistics and the first weights; nothing learns."""

    parameters = None
    batch_norm = "stored"

    @torch.no_grad()
    def step(self, learner: Learner, images: Tensor, mask: Tensor | None) -> Tensor:
        """The network's logits."""
        return learner.logits(images)
