"""Label-free evidence for and against an adaptation.

Shapes: B images, C classes, h × w the logits' resolution, H × W the images'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dem_apps.entropy import Mask
from dem_apps.test_time_methods.network import find_logits, takes
from seg.models.network import finite
from seg.models.tiles import GRID
from seg.scores.segmentation_scores import (
    at_size,
    confusion,
    label_free_scores,
    label_free_sums,
    predicted_shares,
)

#: A network as a function from images (B, 3, H, W), as it takes them,
#: to logits (B, C, h, w).
Forward = Callable[[Tensor], Tensor]
#: Images (B, 3, H, W), and (B, H, W) bool where they hold data; None is everywhere.
MaskedBatch = tuple[Tensor, Mask]


def plain_forward(network: nn.Module) -> Forward:
    """A network in ``eval()`` mode as a function from images to logits."""
    return lambda images: find_logits(network(images))


#: The second size at which images are predicted, as a factor of each side.
SCALE = 0.75
#: Share of the pixels from which on a class counts in the stability.
LEAST_SHARE = 1e-3


@dataclass(frozen=True)
class Evidence:
    """Numbers of one network on one set of images."""

    images: int  #: number of images
    shares: Sequence[float]  #: (C,) share of the pixels predicted as each class
    entropy: float  #: mean Shannon entropy of a pixel / log C; 0 is certain
    #: (C,) IoU of the prediction with the ones of the mirrored image and of ``SCALE`` of its size,
    #: averaged; None for a class without pixels.
    stability: Sequence[float | None]

    @property
    def effective_classes(self) -> float:
        """Number of classes if all were equally frequent; 1 is a collapse.

        It is exp of the entropy of the shares.
        """
        return math.exp(-sum(share * math.log(share) for share in self.shares if share > 0))

    def stability_on(self, reference: Evidence) -> float:
        """Return the mean stability over the reference's classes.

        Classes with at least :data:`LEAST_SHARE` of its pixels count, a lost one as 0.
        """
        counted = [index for index, share in enumerate(reference.shares) if share >= LEAST_SHARE]
        return sum(self.stability[index] or 0.0 for index in counted) / max(len(counted), 1)

    def stability_score(self, reference: Evidence) -> float:
        """Return the square of :meth:`stability_on` times the effective number of classes.

        The better of two networks has the higher score. Stability alone is high where few classes
        are left, the number of classes where predictions are noise (docs/adaptation.md).
        """
        return self.stability_on(reference) ** 2 * self.effective_classes


@dataclass(frozen=True)
class Views:
    """One network's predictions of the images of a probe."""

    logits: Sequence[Tensor]  #: (B, C, h, w) of each batch, as the network returns them
    sums: Tensor  #: (N, 2C + 2), the :func:`label_free_sums` of each image
    agreements: Tensor  #: (N, V, C, C) pixels of each image by their class and by that of V views

    def evidence(self, images: slice = slice(None)) -> Evidence:
        """The evidence on some of the images, counted in the order of the batches."""
        by_image = self.sums[images]
        sums = by_image.sum(0)
        entropy = -label_free_scores(sums)["entropy"]
        stability = _stability(self.agreements[images].sum(0))
        return Evidence(len(by_image), tuple(predicted_shares(sums)), entropy, stability)


@dataclass(frozen=True)
class Probe:
    """The images that evidence, and statistics of batch norm, are taken on."""

    batches: Sequence[MaskedBatch]  #: as the network takes them; at least one
    multiple: int = 1  #: the network takes sides that are multiples of this
    #: whether the network takes smaller images; else the mirrored ones are the only view
    resizes: bool = True

    @classmethod
    def of(
        cls,
        network: nn.Module,
        batches: Sequence[MaskedBatch],
        multiple: int = 1,
    ) -> Probe:
        """Return a probe with views that a network takes.

        Sides of the smaller view are multiples of the grid on which encoders halve their features, as the looks are
        that chose the thresholds; views between add noise of their own. Small images keep the network's multiple.
        """
        grid = math.lcm(GRID, multiple)
        first = batches[0][0][:1]
        whole = cls(batches, grid if min(first.shape[2:]) > 2 * grid else multiple)
        smaller = whole._smaller(first)
        return replace(whole, resizes=smaller.shape != first.shape and takes(network, smaller))

    @torch.no_grad()
    def views(self, forward: Forward) -> Views:
        """Predict the images as they are, mirrored, and smaller, by three forwards.

        Args:
            forward: the network, in ``eval()`` mode.

        Raises:
            NotFiniteError: a prediction is NaN or infinite.
        """
        predicted = list[Tensor]()
        sums = list[Tensor]()
        agreements = list[Tensor]()
        for batch, valid in self.batches:
            logits = finite(forward(batch))
            others = [forward(batch.flip(3)).flip(3)]
            if self.resizes:
                others.append(forward(self._smaller(batch)))
            tables = [_agreements(logits, other, valid) for other in others]
            agreements.append(torch.stack(tables, 1))
            masks = () if valid is None else valid.split(1)
            for image, mask in zip_longest(logits.float().split(1), masks):
                sums.append(label_free_sums(image, mask))
            predicted.append(logits)
        return Views(predicted, torch.stack(sums), torch.cat(agreements))

    def look(self, forward: Forward) -> Evidence:
        """Return the evidence of a network on all images.

        See :meth:`views`.
        """
        return self.views(forward).evidence()

    def _smaller(self, batch: Tensor) -> Tensor:
        """The images at ``SCALE`` of their size, rounded to a multiple."""
        size = [
            max(self.multiple, round(SCALE * side / self.multiple) * self.multiple)
            for side in batch.shape[2:]
        ]
        return F.interpolate(batch, size=size, mode="bilinear", align_corners=False, antialias=True)


def _agreements(logits: Tensor, other: Tensor, valid: Mask) -> Tensor:
    """Count valid pixels by their class in two views.

    The other view is brought to the size of the first.

    Returns:
        (B, C, C) numbers of pixels.
    """
    size = logits.shape[2:]
    if other.shape[2:] != size:
        other = F.interpolate(other.float(), size=size, mode="bilinear", align_corners=False)
    images, classes = logits.shape[:2]
    firsts = torch.arange(0, images * classes, classes, device=logits.device)
    rows = logits.argmax(1) + firsts[:, None, None]
    columns = other.argmax(1)
    if valid is not None:
        counted = at_size(valid, size)
        rows = rows[counted]
        columns = columns[counted]
    tables = confusion(rows, columns, classes, images * classes).cpu().double()
    return tables.view(images, classes, classes)


def _stability(tables: Tensor) -> tuple[float | None, ...]:
    """Return the mean IoU of each class over V views from agreements (V, C, C).

    It is None for a class without pixels.
    """
    same = tables.diagonal(dim1=1, dim2=2)
    union = tables.sum(1) + tables.sum(2) - same
    iou = (same / union.clamp_min(1)).mean(0).tolist()
    predicted = (union > 0).any(0).tolist()
    return tuple(value if has else None for value, has in zip(iou, predicted, strict=True))
