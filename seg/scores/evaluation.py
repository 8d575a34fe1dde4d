"""Scores of a network on images, with labels or without.

Protocol: the image at the training size, logits upsampled to the label's own size or the image's (bilinear), argmax,
every pixel whose label is not ignored. Shapes: C classes, h × w feature resolution, H × W the label's size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dem_apps.errors import NotFiniteError
from dem_apps.reduction import summed_over_processes, world_size
from seg.data.datasets import Sample
from seg.data.labels import IGNORE_INDEX, ClassSet
from seg.data.pixel_format import resized_mask
from seg.models.network import upsampled
from seg.models.tiles import tiled_logits
from seg.scores.metrics import SegmentationScores, other_numbering
from seg.scores.unsupervised_scores import LabelFreeScores

OnSample = Callable[[int, Sample, Tensor], None]


class Samples(Protocol):
    """Images to score on."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Sample: ...


@torch.no_grad()
def evaluate(
    model: nn.Module, dataset: Samples, classes: ClassSet, device: torch.device, *,
    align_corners: bool = True, tile: int | None = None, on_sample: OnSample | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Those of ``SegmentationScores.result``, ``label_free`` of the plain prediction, and ``predicted_share`` by class.

    Of n processes each scores every n-th image, and all return the joined scores. ``tile`` is the side of tiles.
    ``on_sample`` gets (index, sample, logits (C, H, W)) of this process's images. Raises NotFiniteError: a prediction.
    """
    was_training = model.training
    model.eval()
    scores, label_free = SegmentationScores(classes.names, IGNORE_INDEX), LabelFreeScores(len(classes))
    rank = dist.get_rank() if world_size() > 1 else 0
    for index in range(rank, len(dataset), world_size()):
        sample = dataset[index]
        ignored = np.full(sample.image.shape[:2], IGNORE_INDEX, np.uint8)
        label = torch.from_numpy(ignored if sample.label is None else sample.label)
        size = (label.shape[0], label.shape[1])
        image = sample.normalised()[None].to(device)
        features = tiled_logits(lambda images: model(images)["main"], image, tile)
        if not features.isfinite().all():
            raise NotFiniteError(f"{sample.name}: the network's output is not finite; its weights are no use")
        valid = None if sample.valid is None else torch.from_numpy(resized_mask(sample.valid, size[::-1]))[None]
        label_free.update(features, valid)
        logits = upsampled(features, size, align_corners)
        scores.update(logits, label[None], valid)
        if on_sample is not None:
            on_sample(index, sample, logits[0])
    model.train(was_training)
    if world_size() > 1:
        # on the device, since not every backend reduces tensors of the CPU
        joined = summed_over_processes(scores.sums.to(device), label_free.sums.to(device))
        scores.sums, label_free.sums = (part.cpu() for part in joined)
    shares = dict(zip(classes.names, label_free.predicted_shares(), strict=True))
    numbering = other_numbering(scores.confusion.numpy(), classes.ids)
    noted = {} if numbering is None else {"numbering": numbering}
    return {**scores.result(), **noted, "label_free": label_free.result(), "predicted_share": shares}
