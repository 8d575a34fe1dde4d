"""What some methods need of the images that the network was trained for: their colours, and which weights matter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dem_apps.test_time_methods.lab import LabTransfer, lab_statistics
from seg.adaptation.evidence import Forward
from seg.models.preprocessing import Preprocessing


def colours_of_source(batches: Sequence[Tensor], preprocessing: Preprocessing) -> Forward:
    """The function that gives (B, 3, h, w) images, as the network takes them, the source's mean and deviation in Lab.

    Args:
        batches: images of the source, likewise.
        preprocessing: what has been done to both.
    """
    mean, std = preprocessing.mean, preprocessing.std
    statistics = lab_statistics((_rgb(batch, preprocessing) for batch in batches), mean, std)
    transfer = LabTransfer(**statistics, mean=mean, std=std)

    @torch.no_grad()
    def recoloured(images: Tensor) -> Tensor:
        return _rgb(transfer.transferred(_rgb(images, preprocessing)), preprocessing)

    return recoloured


def _rgb(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """RGB of the network's order, and back. Mean and deviation are the channels' own in either."""
    return images.flip(1) if preprocessing.order == "bgr" else images
