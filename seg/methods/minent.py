"""MinEnt: an entropy objective on the target predictions of every head (Vu et al., ADVENT, CVPR 2019).

The objective is exchangeable. Main and auxiliary head are two predictors, so each has an objective, and class
marginals, of its own.
"""

from __future__ import annotations

import math

from torch import nn

from dem_apps import build_objective
from dem_apps.entropy import Mask
from dem_apps.objectives import objective_class
from dem_apps.runtime.documents import Settings
from seg.methods.method import Method
from seg.methods.optimization import Loss, MicroBatch, weighted_sum
from seg.methods.settings import Weights
from seg.models.network import HeadLogits


class HeadObjectives(nn.Module):
    """Objective values on target predictions, weighted per head.

    Weights are such as ``{"main": 0.001, "aux": 0.0002}``. With the loss ``none`` nothing is added.
    ``options`` go to :func:`dem_apps.build_objective`.
    """

    def __init__(
        self,
        loss: str,
        num_classes: int,
        weights: Weights,
        reduction: str,
        options: Settings,
    ) -> None:
        super().__init__()
        self.weights = weights
        self.reduction = reduction
        self.scale = 1.0
        self.entropy = build_objective("entropy", num_classes)
        self.objectives = nn.ModuleDict()
        if loss != "none":
            if objective_class(loss).divided_by_log_c:
                self.scale = 1.0 / math.log(num_classes)
            for head in weights:
                self.objectives[head] = build_objective(loss, num_classes, **options)

    def forward(self, logits: HeadLogits, mask: Mask = None) -> Loss:
        """Return the weighted loss and values to log.

        Args:
            logits: (B, C, H, W) per head.
            mask: (B, H, W), the pixels that count; None for all.

        Returns:
            The loss, or None without an objective, and the values.
        """
        values = {"target/entropy": self.entropy(logits["main"].detach(), dim=1, mask=mask)}
        losses = {
            head: self.scale * objective(logits[head], dim=1, mask=mask, reduction=self.reduction)
            for head, objective in self.objectives.items()
        }
        if not losses:
            return None, values
        total, of_heads = weighted_sum(losses, self.weights, "target/objective")
        return total, values | of_heads


class MinEnt(Method):
    """An objective on the target predictions of every head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.modules["minent"] = self.objectives

    def target_loss(self, batch: MicroBatch) -> Loss:
        """See :meth:`HeadObjectives.forward`."""
        logits = self.network(batch.target["image"], "target")
        loss: Loss = self.objectives(logits, batch.target.get("valid"))
        return loss
