"""Scores of a network on images, with labels or without.

Protocol: the image at the training size, logits upsampled to the label's own size, or without a label to the training
size (bilinear), argmax, every pixel whose label is not ignored. Shapes: C classes, h × w feature resolution, H × W the
label's size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dem_apps.reduction import rank, summed_over_processes, world_size
from dem_apps.runtime.documents import Document
from seg.data.datasets import Sample, SegmentationDataset
from seg.data.labels import IGNORE_INDEX
from seg.data.pixel_format import resized_mask
from seg.models.network import finite, upsampled
from seg.models.tiles import TiledLogits
from seg.scores.evidence import Forward
from seg.scores.segmentation_scores import (
    SegmentationScores,
    label_free_scores,
    label_free_sums,
    other_numbering,
    predicted_shares,
)

OnSample = Callable[[int, Sample, Tensor], None]


@torch.no_grad()
def evaluate(
    forward: Forward,
    dataset: SegmentationDataset,
    device: torch.device,
    *,
    align_corners: bool = True,
    tile: int | None = None,
    on_sample: OnSample | None = None,
) -> Document:
    """Score a network on a data set.

    Each of n processes scores every n-th image, and all return the joined scores.

    Args:
        forward: the network, in ``eval()`` mode.
        dataset: images, with labels or without, and the classes of the outputs.
        device: of the network.
        align_corners: whether upsampling of the logits aligns corners.
        tile: side of tiles; None is the whole image.
        on_sample: gets (index, sample, logits (C, H, W)) of this process's images.

    Returns:
        The scores of ``SegmentationScores.result``, ``label_free`` of the plain prediction, and ``predicted_share`` by
        class.
    """
    classes = dataset.classes
    scores = SegmentationScores(classes.names)
    label_free = torch.zeros(2 * len(classes) + 2, dtype=torch.float64)
    for index in range(rank(), len(dataset), world_size()):
        sample = dataset[index]
        label = sample.label
        if label is None:
            label = np.full(sample.image.shape[:2], IGNORE_INDEX, np.uint8)
        features = _features(sample, forward, device, tile)
        mask = resized_mask(sample.valid, label.shape[::-1])
        valid = None if mask is None else torch.from_numpy(mask)[None]
        label_free += label_free_sums(features, valid)
        logits = upsampled(features, label.shape, align_corners)
        scores.update(logits, torch.from_numpy(label)[None], valid)
        if on_sample is not None:
            on_sample(index, sample, logits[0])
    if world_size() > 1:
        # on the device, since not every backend reduces tensors of the CPU
        joined = summed_over_processes(scores.sums.to(device), label_free.to(device))
        scores.sums, label_free = (part.cpu() for part in joined)
    shares = dict(zip(classes.names, predicted_shares(label_free), strict=True))
    result = scores.result() | {
        "label_free": label_free_scores(label_free),
        "predicted_share": shares,
    }
    numbering = other_numbering(scores.confusion.numpy(), classes.ids)
    return result if numbering is None else result | {"numbering": numbering}


def _features(sample: Sample, forward: Forward, device: torch.device, tile: int | None) -> Tensor:
    """Return the logits (1, C, h, w) of an image."""
    image = sample.normalised()[None].to(device)
    size = (image.shape[2], image.shape[3])
    tiles = TiledLogits(forward, size, lambda rows, columns: image[:, :, rows, columns], tile)
    return finite(tiles.whole(), sample.name)
