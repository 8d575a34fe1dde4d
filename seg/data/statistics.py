"""Passes over all files of a data set.

They give pixels of each class, moments of each band and batches for statistics.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from dem_apps.errors import InputError
from dem_apps.runtime.files import cache_dir, whole_file
from dem_apps.runtime.progress import track
from seg.data.datasets import SegmentationDataset
from seg.data.files import Item
from seg.data.labels import IGNORE_INDEX, Ids, id_tables
from seg.data.pixel_format import Counts, Floats, PixelFormat
from seg.data.read_images import read_image

#: Number of images of a batch for statistics.
#: Statistics must not depend on the training's batch size or processes.
IMAGES = 8
Result = TypeVar("Result")


def each_file(
    function: Callable[[Item], Result], files: Sequence[Item], workers: int, title: str
) -> Iterator[Result]:
    """Yield ``function`` of each file or index, in order, with progress.

    ``workers`` is the number of processes, 0 for this one alone.
    """
    workers = min(workers, len(files))
    if not workers:
        yield from track(map(function, files), len(files), title)
        return
    with ProcessPoolExecutor(workers) as pool:
        # a chunk carries the function, which may hold a list of all files, once
        results = pool.map(function, files, chunksize=max(1, len(files) // (8 * workers)))
        yield from track(results, len(files), title)


def class_pixels(dataset: SegmentationDataset, workers: int = 0) -> Counts:
    """Count the pixels of each class in each image's label at the training size.

    The counts are cached by the content of the labels, the sizes and the classes: 25,000 labels
    take minutes.

    Returns:
        (N, C + 1) pixels of each class and, last, ignored ones.
    """
    files = [
        (str(image), image.stat().st_size, _digest(label or image))
        for image, label in dataset.files
    ]
    table = id_tables(dataset.classes, dataset.layout.ids)[0].tolist()
    counted = repr((files, dataset.size, dataset.classes, table))
    place = cache_dir() / "class_pixels" / f"{hashlib.sha256(counted.encode()).hexdigest()}.npy"
    if place.is_file():
        return np.asarray(np.load(place))
    count = functools.partial(_count, dataset)
    pixels = np.array(
        list(each_file(count, range(len(dataset)), workers, "counting the pixels of each class"))
    )
    with suppress(OSError, InputError):  # no space or no right to write there
        place.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(place) as temporary:
            np.save(temporary, pixels)
    return pixels


def measured_format(files: Sequence[Path], wanted: PixelFormat, workers: int = 0) -> PixelFormat:
    """Return the format with mean and deviation of the pixels of these images that hold data."""
    moments = functools.partial(_moments, wanted)
    each = each_file(moments, files, workers, "measuring the bands")
    count, total, squares = functools.reduce(np.add, each)
    if not count.all():
        raise InputError(f"{files[0].parent}: no pixel of {len(files)} training images holds data")
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
    std[std <= 1e-7 * np.abs(mean)] = 1.0  # a constant band has no deviation
    measured_on = f"{len(files):,} labelled training images"
    return replace(
        wanted, mean=tuple(mean.tolist()), std=tuple(std.tolist()), measured_on=measured_on
    )


def spread_batches(
    read: Callable[[int], Tensor],
    count: int,
    device: torch.device,
    process: tuple[int, int] = (0, 1),
) -> Iterator[Tensor]:
    """Yield batches of normalised images of one size on the device, each image once.

    Batch k of n has the images k, k + n, …, so that frames of one drive are in different batches.

    Args:
        read: gives image i.
        count: number of images.
        device: where the batches lie.
        process: (rank, number).

    Yields:
        Images, (B, 3, H, W).
    """
    number = -(-count // IMAGES)
    rank, processes = process
    for first in range(rank, number, processes):
        by_size: dict[tuple[int, ...], list[Tensor]] = {}
        for image in map(read, range(first, count, number)):
            by_size.setdefault(tuple(image.shape), []).append(image)
        for _, images in sorted(by_size.items()):
            yield torch.stack(images).to(device)


def counts_of(label: Ids, classes: int) -> Counts:
    """Count the pixels of each class in train ids, (H, W).

    Returns:
        (C + 1,) pixels of each class and, last, ignored ones.
    """
    counts = np.bincount(label.ravel(), minlength=256)
    return np.append(counts[:classes], counts[IGNORE_INDEX])


def _digest(file: Path) -> str:
    """Return the content of a file in short.

    Times and sizes stay where a tool keeps them.
    """
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _count(dataset: SegmentationDataset, index: int) -> Counts:
    return counts_of(dataset.label(index), len(dataset.classes))


def _moments(wanted: PixelFormat, file: Path) -> Floats:
    """Return number of pixels, sum, and sum of squares of one image, (3, B)."""
    image = read_image(file, wanted)
    result = np.zeros((3, wanted.bands))
    pixels = image.values if image.valid is None else image.values[image.valid]
    for band in range(wanted.bands):
        values = pixels[..., band].astype(np.float64)
        values = values[np.isfinite(values)]
        result[:, band] = values.size, values.sum(), np.square(values).sum()
    return result
