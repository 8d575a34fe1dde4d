"""What is wrong with a network, before anything is written: one sentence each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dem_apps.errors import InputError
from dem_apps.runtime.safe_io import first_words
from dem_apps.test_time_methods.network import find_logits
from seg.data.labels import ClassSet, load_classes, named_classes
from seg.models.trained import TrainedNetwork


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


def check_network(trained: TrainedNetwork, image: Tensor) -> None:
    """Refuse weights that are no use and an output that is no logits.

    Args:
        trained: on its device.
        image: (3, h, w), the first one.

    Raises:
        InputError: NaN in the weights or in the prediction, an image that it cannot take, probabilities.
    """
    for name, value in trained.network.state_dict().items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise InputError(f"--model: {trained.spec} holds NaN or infinity in '{name}'; save the network again")
    try:
        with torch.no_grad():
            logits = find_logits(trained.network(image[None]))
    except torch.OutOfMemoryError:
        raise
    except (AssertionError, IndexError, TypeError, RuntimeError, ValueError) as error:
        channels, height, width = image.shape
        raise InputError(
            f"--model: {trained.spec} cannot take the first image, which it sees as {width} × {height} with {channels} "
            f"channels ({first_words(error, 200)}); it has to take RGB, and --size W,H another size"
        ) from error
    _check_logits(logits, trained)


def _check_logits(logits: Any, trained: TrainedNetwork) -> None:
    if not isinstance(logits, Tensor) or logits.ndim != 4 or logits.shape[1] != trained.num_classes:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(
            f"--model: {trained.spec} gives {shape}; expected logits (B, {trained.num_classes}, height, width)"
        )
    if not bool(logits.isfinite().all()):
        raise InputError(f"--model: {trained.spec} predicts NaN or infinity on the first image; its weights are no use")
    total = logits.float().sum(1)
    if bool((logits >= 0).all()) and torch.allclose(total, torch.ones_like(total), atol=1e-3):
        raise InputError(
            f"--model: the output of {trained.spec} sums to one over the classes, so it is probabilities and not "
            "logits; take the softmax out of the network"
        )
