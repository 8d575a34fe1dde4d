"""An entropy term beside the core's: Shannon's entropy with a coefficient that follows a target.

The rule is that of Skywork-OR1 (arXiv 2505.22312), as TRL's GRPO has it. After a minibatch the coefficient rises by a
step where the policy's entropy was below the target, else falls by one. The term acts only while the entropy is at or
below the target.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dem_apps.entropy import forbidden_classes, shannon_entropy
from dem_apps.errors import InputError
from dem_apps.objective import EntropyObjective
from dem_apps.reduction import Batch

#: Change of the coefficient in a minibatch, up or down, and its largest value; the smallest is 0.
STEP, MOST = 0.05, 100.0


class AdaptiveEntropy(EntropyObjective):
    """w · H, where ``ent_coef`` is what w is multiplied by: the first coefficient, and the unit of the others.

    The buffer ``multiplier`` is w, 1 at first; it is in ``state_dict`` and moves in ``train()`` mode. ``target`` is the
    entropy to hold, as a share of log C; of masked actions C counts the allowed ones, as a mean over the elements.
    """

    multiplier: Tensor

    def __init__(self, num_classes: int, target: float = 0.3, **others: Any) -> None:
        super().__init__(num_classes, **others)
        if not 0.0 < target < 1.0:
            raise InputError(f"target: expected a share of log C between 0 and 1, got {target!r}")
        self.share = target
        self.register_buffer("multiplier", torch.ones(()))

    def values(self, logits: Tensor, dim: int, class_mask: Tensor | None, batch: Batch) -> Tensor:
        """The entropy of each element."""
        return shannon_entropy(logits, dim, class_mask)

    def forward(
        self, logits: Tensor, dim: int = 1, mask: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """The weighted mean, after which w moves if an element counts; with another reduction that one."""
        entropy: Tensor = super().forward(logits, dim, mask, *args, **kwargs)
        target = self.share * _most_possible(logits.detach(), dim, mask, *args, **kwargs)
        if not math.isfinite(target):
            return entropy
        weight, now = self.multiplier.item(), float(entropy.detach().mean())
        if self.training:
            moved = weight + (STEP if now < target else -STEP)
            self.multiplier.fill_(min(max(moved, 0.0), MOST))
        return entropy * (weight if now <= target else 0.0)

    def reset(self) -> None:
        """w = 1."""
        self.multiplier.fill_(1.0)


def _most_possible(
    logits: Tensor,
    dim: int,
    mask: Tensor | None,
    class_mask: Tensor | None = None,
    reduction: str = "mean",
) -> float:
    """The mean of log(allowed classes) over the elements that count; NaN where none does."""
    forbidden = forbidden_classes(logits, dim)
    allowed = (~(forbidden if class_mask is None else forbidden | class_mask)).sum(dim)
    counted = allowed > 0 if mask is None else mask & (allowed > 0)
    return allowed[counted].double().log().mean().item()
