"""MinEnt: an entropy objective on the target predictions (Vu et al., ADVENT, CVPR 2019)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seg.methods.head_objectives import HeadObjectives
from seg.methods.method import Method
from seg.methods.optimization import MicroBatch, Values, valid_pixels
from seg.models.network import Predictor

#: Policies under which target images move no statistics.
_OWN_STATISTICS = ("source", "frozen")


class MinEnt(Method):
    """The objective on target; without one (control) its images move batch norm statistics, if the policy lets them."""

    def __init__(self, network: Predictor, num_classes: int, make_objectives: Callable[[], HeadObjectives]) -> None:
        super().__init__(network, num_classes, make_objectives)
        self.objectives = make_objectives().to(network.accelerator.device)
        self.modules = {"minent": self.objectives}

    def target_loss(self, batch: MicroBatch) -> tuple[Tensor | None, Values]:
        """See :meth:`HeadObjectives.forward`."""
        if not self.objectives.objectives and self.network.batch_norm in _OWN_STATISTICS:
            return None, {}
        valid = valid_pixels(batch.target, self.network.accelerator.device)
        with torch.set_grad_enabled(bool(self.objectives.objectives)):
            logits = self.network(batch.target["image"], "target")
        loss: Tensor | None
        loss, values = self.objectives(logits, valid)
        return loss, values
