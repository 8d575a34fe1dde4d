"""TPT (Shu et al., *Test-Time Prompt Tuning for Zero-Shot Generalization in Vision-Language Models*, NeurIPS 2022)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dem_apps.entropy import Mask, probabilities, shannon_entropy
from dem_apps.errors import number
from dem_apps.test_time_methods.learner import Learner
from dem_apps.test_time_methods.method import Method, check_dense, fitted_mask, resized

#: The least share of the image's area in a crop, as torchvision's RandomResizedCrop draws it.
_LEAST_AREA = 0.08
#: Of a view of dense logits: by how much contrast and brightness change, in deviations.
_COLOUR = 0.2


class TPT(Method):
    """The objective of the mean prediction over an image's most certain views (Eq. 3).

    Published is one image a call, with ``episodic=True`` and ``predict="after"``: each image is predicted by weights
    that have learnt from it alone. What learns is the prompt, by ``parameters``; scales and shifts make it MEMO (Zhang
    et al., NeurIPS 2022) with chosen views. Only these take gradients, by a second forward. With batch norm,
    ``batch_norm="stored"``: on ImageNet photographs a single one's own statistics cost accuracy (docs/test_time.md).

    The views of a classifier are the image, and random crops, mirrored or not. Those of dense logits have to lie on
    each other: the image, mirrored or not, with other contrast and brightness.

    Args:
        views: of an image, itself among them; 64.
        kept: the share of the views, those of the lowest mean entropy, that counts; at least one does.
    """

    def __init__(self, views: int = 64, kept: float = 0.1) -> None:
        self.views = int(number("views", views, 1))
        self.kept = number("kept", kept, 0.0, 1.0)

    def step(self, learner: Learner, images: Tensor, mask: Mask) -> Tensor:
        """A forward of each image's views, one and a backward of the kept; the logits of the images as they are."""
        check_dense("tpt", images)
        with torch.no_grad():
            plain = learner.logits(images)
        counted = fitted_mask(mask, images, plain)
        if not counted.any():
            return plain
        means, starting = [], learner.starting
        for index, image in enumerate(images):
            views, mirrored = self.drawn(image, learner.generator, dense=plain.ndim == 4)
            with torch.no_grad():
                logits = _aligned(learner.logits(views), mirrored)
            own = counted[index].expand(len(views), *counted.shape[1:])
            if starting:  # a single image has many views
                learner.start(logits, own, index > 0)
            best = self.best(logits, own)
            means.append(log_mean(_aligned(learner.logits(views[best]), mirrored[best])))
        learner.descend(learner.loss(torch.stack(means), counted))
        return plain

    def best(self, logits: Tensor, counted: Tensor) -> Tensor:
        """The indices of the most certain of (N, C, …) views, by the elements that count."""
        entropy = shannon_entropy(logits, 1).where(counted, 0.0)
        ranked = entropy.reshape(len(logits), -1).mean(1).argsort()
        return ranked[: max(1, int(self.kept * len(logits)))]

    def drawn(
        self, image: Tensor, generator: torch.Generator, dense: bool
    ) -> tuple[Tensor, Tensor]:
        """(N, C, H, W) views of an image, the first as it is, and which are mirrored, (N,)."""
        draws = torch.rand(self.views, 4, generator=generator, device="cpu")
        mirrored = draws[:, 0] < 0.5
        mirrored[0] = False
        mirrored = mirrored.to(image.device)
        views = [image]
        for _, area, across, down in draws[1:].tolist():
            view = _recoloured(image, across, down) if dense else _crop(image, area, across, down)
            views.append(view)
        return _aligned(torch.stack(views), mirrored), mirrored


def log_mean(logits: Tensor) -> Tensor:
    """The log of the mean probabilities, (C, …), of (N, C, …) views."""
    p = probabilities(logits, 1).mean(0)
    return torch.where(p > 0, p.clamp_min(torch.finfo(p.dtype).tiny).log(), -torch.inf)


def _aligned(views: Tensor, mirrored: Tensor) -> Tensor:
    """Mirror those of (N, C, H, W) views that are mirrored; (N, C) logits have no place."""
    if views.ndim != 4:
        return views
    return torch.where(mirrored[:, None, None, None], views.flip(3), views)


def _crop(image: Tensor, area: float, across: float, down: float) -> Tensor:
    """A part of the image's shape, at its size; each number from 0 to 1."""
    height, width = image.shape[1:]
    side = math.sqrt(_LEAST_AREA + (1.0 - _LEAST_AREA) * area)
    rows, columns = max(1, round(side * height)), max(1, round(side * width))
    top, left = round(down * (height - rows)), round(across * (width - columns))
    part = image[None, :, top : top + rows, left : left + columns]
    return resized(part, (height, width))[0]


def _recoloured(image: Tensor, contrast: float, brightness: float) -> Tensor:
    """Other contrast and brightness of a normalised image."""
    return image * (1 + _COLOUR * (2 * contrast - 1)) + _COLOUR * (2 * brightness - 1)
