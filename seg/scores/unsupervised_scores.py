"""Label-free scores of predictions, to select a checkpoint by; higher is better for each.

A network that predicts one class everywhere is certain: ``entropy`` is high, ``im`` is not, and ``largest_class_share``
shows the collapse.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dem_apps.entropy import probabilities, shannon_entropy
from dem_apps.reduction import sums_in


class LabelFreeScores:
    """Accumulates what :meth:`result` reports.

    ``sums`` is the whole state, (2C + 2,) float64; the sum of several processes' is that of all their pixels.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.sums = torch.zeros(2 * num_classes + 2, dtype=torch.float64)

    def update(self, logits: Tensor, valid: Tensor | None = None) -> None:
        """Add the main head's logits (B, C, h, w), where ``valid``, (B, H, W) bool at any size, is True."""
        if valid is not None:
            for image, here in zip(logits, _at_size(valid, logits), strict=True):
                self.update(image[:, here][None, :, None])
            return
        logits = logits.detach().float()
        if not logits.numel():
            return
        p = probabilities(logits, 1)
        wide = sums_in(p)
        marginal = p.sum((0, 2, 3), dtype=wide)
        predicted = torch.bincount(logits.argmax(1).flatten(), minlength=self.num_classes)
        entropy = shannon_entropy(logits, 1).sum(dtype=wide)
        pixels = marginal.new_tensor([p[:, 0].numel()])
        self.sums += torch.cat([marginal, predicted, pixels, entropy.view(1)]).cpu()

    def predicted_shares(self) -> list[float]:
        """(C,) share of the pixels predicted as each class, all 0 without any image."""
        _, predicted, pixels, _ = self.sums.split([self.num_classes] * 2 + [1, 1])
        shares: list[float] = (predicted / pixels.clamp_min(1)).tolist()
        return shares

    def result(self) -> dict[str, float]:
        """The scores by name, all 0 without any image.

        - ``entropy``: minus the mean Shannon entropy of a pixel, divided by log C; −1 to 0.
        - ``im``: information maximisation, the entropy of the mean prediction minus the mean entropy, divided by
          log C; 0 to 1.
        - ``largest_class_share``: the share of pixels in the largest predicted class; no criterion.
        """
        marginal, predicted, pixels, entropy = self.sums.split([self.num_classes] * 2 + [1, 1])
        pixels = pixels.clamp_min(1)
        p = marginal / pixels
        scale = math.log(self.num_classes)
        return {
            "entropy": -float(entropy / pixels) / scale,
            "im": float(torch.special.entr(p).sum() - entropy / pixels) / scale,
            "largest_class_share": float(predicted.max() / pixels),
        }


def _at_size(valid: Tensor, logits: Tensor) -> Tensor:
    """(B, H, W) → (B, h, w) of logits, each as the nearest."""
    resized = torch.nn.functional.interpolate(valid[:, None].float(), size=logits.shape[2:], mode="nearest-exact")
    return resized[:, 0].bool().to(logits.device)
