"""What an adaptation needs to know of its network: how it normalises, its classes, and the colours of its source."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dem_apps.errors import InputError
from dem_apps.test_time_methods.lab import LabTransfer, lab_statistics
from dem_apps.test_time_methods.normalisation import NORMALISATIONS, batch_norms
from seg.adaptation.evidence import Forward
from seg.data.labels import ClassSet, load_classes, named_classes
from seg.models.trained import TrainedNetwork


def batch_norm_normalises(network: nn.Module) -> bool:
    """Whether most layers that normalise are batch norm with statistics; SegFormer has one, beside 30 of layer norm."""
    layers = [layer for layer in network.modules() if isinstance(layer, NORMALISATIONS)]
    kept = [layer for layer in batch_norms(network) if layer.running_mean is not None]
    return 2 * len(kept) > len(layers)


def classes_of(trained: TrainedNetwork, file: str | None) -> ClassSet:
    """The classes of a file, else the network's own, else numbers for names.

    Raises:
        InputError: the file has another number of classes than the network.
    """
    if file is None:
        return trained.classes or named_classes([f"class {index}" for index in range(trained.num_classes)])
    classes = load_classes(file)
    if len(classes) != trained.num_classes:
        raise InputError(
            f"--classes: {file} has {len(classes)} classes, and {trained.spec} predicts {trained.num_classes}; name "
            "those that it was trained with, in the order of its outputs"
        )
    return classes


def colours_of(batches: Sequence[Tensor], trained: TrainedNetwork) -> Forward:
    """A function that gives (B, 3, h, w) images the mean and deviation in Lab of the source's ``batches``.

    Raises:
        InputError: a network of other bands than RGB.
    """
    preprocessing = trained.preprocessing
    if not preprocessing.pixels.is_rgb:
        raise InputError(
            f"--method: lab knows the colours of 8-bit RGB, and {trained.spec} sees {preprocessing.pixels.described}; "
            "take another"
        )

    def rgb(images: Tensor) -> Tensor:
        """RGB of the network's order, and back. Mean and deviation are the channels' own in either."""
        return images.flip(1) if preprocessing.order == "bgr" else images

    mean, std = preprocessing.mean, preprocessing.std
    transfer = LabTransfer(**lab_statistics(map(rgb, batches), mean, std), mean=mean, std=std)

    @torch.no_grad()
    def recoloured(images: Tensor) -> Tensor:
        return rgb(transfer.transferred(rgb(images)))

    return recoloured
