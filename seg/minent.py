"""The adaptation step on target images: an entropy objective on each head's upsampled logits (MinEnt).

Source: Vu et al., ADVENT, CVPR 2019 (MinEnt), with the objective exchangeable. Main and auxiliary head are two
predictors, so each has an objective, and a class table, of its own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dem_apps import build_objective

#: Objectives in nats that ADVENT's weights expect as a share of log C. AdaDEM is not divided: it is no entropy.
_DIVIDED_BY_LOG_C = ("entropy", "cadf", "dem")


class MinEnt(nn.Module):
    """Objective values on target predictions, weighted per head.

    Args:
        loss: name of the objective, or ``none``: target images pass the network and nothing is added to the loss.
        num_classes: C.
        weights: weight per head, such as ``{"main": 0.001, "aux": 0.0002}``.
        reduction: ``mean``, ``balanced`` or ``sum`` over pixels.
        options: of the objective.
    """

    def __init__(
        self, loss: str, num_classes: int, weights: dict[str, float], reduction: str, options: dict[str, Any]
    ) -> None:
        super().__init__()
        self.weights = weights
        self.reduction = reduction
        self.scale = 1.0 / math.log(num_classes) if loss in _DIVIDED_BY_LOG_C else 1.0
        self.entropy = build_objective("entropy", num_classes)
        self.objectives = nn.ModuleDict()
        if loss != "none":
            self.objectives.update({head: build_objective(loss, num_classes, **options) for head in weights})

    def forward(self, logits: dict[str, Tensor], size: tuple[int, int]) -> tuple[Tensor | None, dict[str, float]]:
        """The weighted loss of a target batch, or None if there is none, and values to log.

        Args:
            logits: the network's output, (B, C, h, w) per head.
            size: (H, W) that logits are upsampled to before the softmax.
        """
        main = upsampled(logits["main"], size)
        values = {"target/entropy": float(self.entropy(main.detach(), dim=1))}
        if not self.objectives:
            return None, values
        total = main.new_zeros(())
        for head, objective in self.objectives.items():
            value = self.scale * objective(
                main if head == "main" else upsampled(logits[head], size), dim=1, reduction=self.reduction
            )
            total = total + self.weights[head] * value
            values[f"target/objective_{head}"] = float(value.detach())
        return total, values


def upsampled(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, C, h, w) → (B, C, H, W), bilinear with corners aligned, as ADVENT does; in float32."""
    return F.interpolate(logits.float(), size=size, mode="bilinear", align_corners=True)


def supervised_loss(
    logits: dict[str, Tensor], label: Tensor, weights: dict[str, float], ignore_index: int
) -> tuple[Tensor, dict[str, float]]:
    """Weighted cross-entropy of both heads on labelled images, and values to log.

    Args:
        logits: (B, C, h, w) per head.
        label: (B, H, W) train ids, with ``ignore_index`` where nothing counts.
        weights: weight per head.
        ignore_index: the label that counts nowhere.
    """
    size = (label.shape[1], label.shape[2])
    losses = {
        head: F.cross_entropy(upsampled(logits[head], size), label, ignore_index=ignore_index) for head in weights
    }
    total = torch.stack([weights[head] * loss for head, loss in losses.items()]).sum()
    return total, {f"source/cross_entropy_{head}": float(loss.detach()) for head, loss in losses.items()}
