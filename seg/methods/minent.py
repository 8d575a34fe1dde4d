"""Losses on the network's two heads: cross-entropy on source labels, an entropy objective on target (MinEnt).

Source: Vu et al., ADVENT, CVPR 2019 (MinEnt), with the objective exchangeable. Main and auxiliary head are two
predictors, so each has an objective, and class marginals, of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dem_apps import build_objective
from dem_apps.objectives import OBJECTIVES
from dem_apps.reduction import summed_over_processes, world_size


class MinEnt(nn.Module):
    """Objective values on target predictions, weighted per head.

    Args:
        loss: name of the objective, or ``none``: nothing is added to the loss.
        num_classes: C.
        weights: weight per head, such as ``{"main": 0.001, "aux": 0.0002}``.
        reduction: ``mean``, ``balanced`` or ``sum`` over pixels.
        options: of :func:`dem_apps.build_objective`.
    """

    def __init__(
        self, loss: str, num_classes: int, weights: Mapping[str, float], reduction: str, options: dict[str, Any]
    ) -> None:
        super().__init__()
        self.weights = dict(weights)
        self.reduction = reduction
        divided = loss != "none" and OBJECTIVES[loss].divided_by_log_c
        self.scale = 1.0 / math.log(num_classes) if divided else 1.0
        self.entropy = build_objective("entropy", num_classes)
        self.objectives = nn.ModuleDict()
        if loss != "none":
            self.objectives.update({head: build_objective(loss, num_classes, **options) for head in weights})

    def forward(self, logits: Mapping[str, Tensor]) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The weighted loss of a target batch, or None if there is none, and values to log.

        Args:
            logits: (B, C, H, W) per head, at the images' size.
        """
        values = {"target/entropy": self.entropy(logits["main"].detach(), dim=1)}
        if not self.objectives:
            return None, values
        losses = []
        for head, objective in self.objectives.items():
            value = self.scale * objective(logits[head], dim=1, reduction=self.reduction)
            losses.append(self.weights[head] * value)
            values[f"target/objective_{head}"] = value.detach()
        return torch.stack(losses).sum(), values


def upsampled(logits: Tensor, size: tuple[int, int], align_corners: bool = True) -> Tensor:
    """(B, C, h, w) → (B, C, H, W), bilinear, with corners aligned as ADVENT does unless told otherwise; in float32."""
    return F.interpolate(logits.float(), size=size, mode="bilinear", align_corners=align_corners)


def supervised_loss(
    logits: Mapping[str, Tensor], label: Tensor, weights: Mapping[str, float], ignore_index: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Weighted cross-entropy of both heads, the mean over labelled pixels, and values to log.

    Args:
        logits: (B, C, H, W) per head, at the labels' size.
        label: (B, H, W) train ids, with ``ignore_index`` where nothing counts.
        weights: weight per head.
        ignore_index: the label that counts nowhere.

    Returns:
        the loss; 0 where nothing is labelled. Labelled pixels of every process are counted, so that the mean of the
        processes' losses is the loss of the joined batch.
    """
    (labelled,) = summed_over_processes((label != ignore_index).sum().double())
    share = (world_size() / labelled.clamp_min(1)).float()
    # on a GPU torch adds up the pixels of an image in an order that differs from run to run, or refuses to
    reduction = "none" if torch.are_deterministic_algorithms_enabled() else "sum"
    losses = {
        head: share * F.cross_entropy(logits[head], label, ignore_index=ignore_index, reduction=reduction).sum()
        for head in weights
    }
    total = torch.stack([weights[head] * loss for head, loss in losses.items()]).sum()
    return total, {f"source/cross_entropy_{head}": loss.detach() for head, loss in losses.items()}
