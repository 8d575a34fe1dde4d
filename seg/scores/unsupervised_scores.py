"""Label-free scores of predictions, to select a checkpoint by; higher is better for each.

A network that predicts one class everywhere is certain, and all its pixels are alike: ``entropy`` and ``snd`` are high,
``im`` is not, and ``largest_class_share`` shows the collapse.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dem_apps.entropy import probabilities, shannon_entropy
from dem_apps.reduction import sums_in

#: Temperature of Soft Neighborhood Density, as published.
_TEMPERATURE = 0.05
#: Pixels per image that are compared; the public code of the paper takes 100 at random.
_MOST_POINTS = 1000


class LabelFreeScores:
    """Accumulates what :meth:`result` reports.

    ``sums`` is the whole state, (2C + 4,) float64; the sum of several processes' is that of all their pixels.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.sums = torch.zeros(2 * num_classes + 4, dtype=torch.float64)

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
        density = torch.stack([neighbourhood_density(image.flatten(1).T) for image in p]).sum(dtype=wide)
        pixels, images = p[:, 0].numel(), p.shape[0]
        counts = marginal.new_tensor([pixels, images])
        self.sums += torch.cat([marginal, predicted, counts, entropy.view(1), density.view(1)]).cpu()

    def predicted_shares(self) -> list[float]:
        """(C,) share of the pixels predicted as each class, all 0 without any image."""
        _, predicted, (pixels, *_) = self.sums.split([self.num_classes] * 2 + [4])
        shares: list[float] = (predicted / pixels.clamp_min(1)).tolist()
        return shares

    def result(self) -> dict[str, float]:
        """The scores by name, all 0 without any image.

        - ``entropy``: minus the mean Shannon entropy of a pixel, divided by log C; −1 to 0.
        - ``im``: information maximisation, the entropy of the mean prediction minus the mean entropy, divided by
          log C; 0 to 1.
        - ``snd``: :func:`neighbourhood_density`, mean over images; nats.
        - ``largest_class_share``: the share of pixels in the largest predicted class; no criterion.
        """
        marginal, predicted, (pixels, images, entropy, density) = self.sums.split([self.num_classes] * 2 + [4])
        pixels = pixels.clamp_min(1)
        p = marginal / pixels
        scale = math.log(self.num_classes)
        return {
            "entropy": -float(entropy / pixels) / scale,
            "im": float(torch.special.entr(p).sum() - entropy / pixels) / scale,
            "snd": float(density / images.clamp_min(1)),
            "largest_class_share": float(predicted.max() / pixels),
        }


def _at_size(valid: Tensor, logits: Tensor) -> Tensor:
    """(B, H, W) → (B, h, w) of logits, each as the nearest."""
    resized = torch.nn.functional.interpolate(valid[:, None].float(), size=logits.shape[2:], mode="nearest-exact")
    return resized[:, 0].bool().to(logits.device)


def neighbourhood_density(p: Tensor) -> Tensor:
    """Soft Neighborhood Density: the mean entropy of the soft assignment of each point to the others.

    Source: Saito et al., *Tune it the Right Way*, ICCV 2021 (features: softmax outputs at length 1; similarities over
    the temperature 0.05, a softmax over all other points). ``p``: (N, C) probabilities of one image's pixels, of which
    at most 1000 count. In nats, 0 to log(N − 1): high where each point has many others with the same prediction.

    >>> neighbourhood_density(torch.tensor([[0.9, 0.1]] * 5))  # five alike: log 4
    tensor(1.3863)
    """
    points = len(p)
    if points < 3:
        return p.new_zeros(())
    if points > _MOST_POINTS:
        p = p[torch.linspace(0, points - 1, _MOST_POINTS, device=p.device).round().long()]
    features = torch.nn.functional.normalize(p.float())
    # no similarity is above 1, so every exponential is between e⁻²⁰ and 1
    similarities = (features @ features.T - 1.0) / _TEMPERATURE
    weights = similarities.exp().fill_diagonal_(0.0)
    totals = weights.sum(1)
    return (totals.log() - weights.mul_(similarities).sum(1) / totals).mean()
