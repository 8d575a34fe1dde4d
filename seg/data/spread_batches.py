"""Batches of images for statistics over all of them: each image once, as it is, in an order of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

import torch
from torch import Tensor

#: Images per batch. Fixed, so that statistics do not depend on the training's batch size or number of processes.
IMAGES = 8


def spread_batches(
    read: Callable[[int], Tensor | None], count: int, device: torch.device, process: tuple[int, int] = (0, 1)
) -> Iterator[Tensor]:
    """Yields (B, 3, H, W) normalised images on the device, B at most ``IMAGES``.

    Batch k of n has the images k, k + n, k + 2n, …: neighbours, often frames of one drive, are in different batches,
    and no batch is left with the rest. Within it, images of different sizes come apart.

    Args:
        read: gives image i, (3, H, W) normalised, or None to leave it out.
        count: how many images there are.
        device: where the batches go.
        process: (rank, number of processes); together they yield every batch once.
    """
    number = -(-count // IMAGES)
    rank, processes = process
    for first in range(rank, number, processes):
        images = [image for index in range(first, count, number) if (image := read(index)) is not None]
        for _, same in groupby(sorted(images, key=_shape), key=_shape):
            yield torch.stack(list(same)).to(device)


def _shape(image: Tensor) -> tuple[int, ...]:
    return tuple(image.shape)
