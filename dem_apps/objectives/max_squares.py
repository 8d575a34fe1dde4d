"""The maximum squares loss (Chen, Xue, Cai: Domain Adaptation for Semantic Segmentation with Maximum Squares Loss).

Source: ICCV 2019, arXiv 1909.13589. Its image-wise class weighting is the nearest published relative of
``reduction="balanced"``, with ``balance=0.2`` (:func:`dem_apps.reduction.class_weights`).
"""

from __future__ import annotations

from torch import Tensor

from dem_apps.entropy import Mask, probabilities
from dem_apps.objective import EntropyObjective
from dem_apps.reduction import Batch


def maximum_squares(logits: Tensor, dim: int = -1, class_mask: Mask = None) -> Tensor:
    """−½ Σ pᵢ², from −1/2 for a sure prediction to −1/(2C) for a uniform one.

    Its gradient grows linearly with the probability, so certain elements dominate less than under the entropy.

    >>> import torch
    >>> maximum_squares(torch.tensor([1.0, 3.0]).log())  # p = (1/4, 3/4): −(1/16 + 9/16)/2
    tensor(-0.3125)
    """
    return -0.5 * probabilities(logits, dim, class_mask=class_mask).square().sum(dim)


class MaxSquares(EntropyObjective):
    """The maximum squares loss; −½ of the prediction's collision probability, and no logarithm.

    >>> import torch
    >>> MaxSquares(num_classes=2)(torch.tensor([[1.0, 3.0]]).log())
    tensor(-0.3125)
    """

    def values(self, logits: Tensor, dim: int, class_mask: Mask, batch: Batch) -> Tensor:
        """Return :func:`maximum_squares` of the logits."""
        return maximum_squares(logits, dim, class_mask)
