"""Passes over all files of a data set: pixels of each class, moments of each band, batches for statistics."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dem_apps.errors import InputError
from dem_apps.runtime.files import cache_dir, whole_file
from dem_apps.runtime.progress import track
from seg.data.datasets import SegmentationDataset
from seg.data.labels import IGNORE_INDEX
from seg.data.pixel_format import PixelFormat
from seg.data.read import read_image

#: Images of a batch for statistics; these must not depend on the training's batch size or number of processes.
IMAGES = 8
Result = TypeVar("Result")


def each_file(function: Callable[[int], Result], indices: Sequence[int], workers: int, title: str) -> Iterator[Result]:
    """``function`` of each index, in order, with progress; ``workers`` processes, 0 for this one alone."""
    workers = min(workers, len(indices))
    if not workers:
        yield from track(map(function, indices), len(indices), title)
        return
    with ProcessPoolExecutor(workers) as pool:
        # a chunk carries the function, which may hold a list of all files, once
        results = pool.map(function, indices, chunksize=max(1, len(indices) // (8 * workers)))
        yield from track(results, len(indices), title)


def class_pixels(dataset: SegmentationDataset, workers: int = 0) -> NDArray[np.int64]:
    """(N, C + 1) pixels of each class and, last, ignored ones, in each image's label at the training size.

    Kept in the cache folder until a file, the size or the classes change: data sets of 25,000 labels take minutes.
    """
    states = [(str(file), file.stat()) for pair in dataset.files for file in pair if file]
    files = [(name, state.st_size, state.st_mtime_ns) for name, state in states]
    counted = repr((files, dataset.size, dataset.classes, dataset.train_ids.tolist()))
    place = cache_dir() / "class_pixels" / f"{hashlib.sha256(counted.encode()).hexdigest()}.npy"
    if place.is_file():
        return np.asarray(np.load(place))
    count = functools.partial(_count, dataset)
    pixels = np.array(list(each_file(count, range(len(dataset)), workers, "counting the pixels of each class")))
    with suppress(OSError, InputError):  # no space or no right to write there
        place.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(place) as temporary:
            np.save(temporary, pixels)
    return pixels


def measured_format(files: Sequence[Path], wanted: PixelFormat, workers: int = 0) -> PixelFormat:
    """The format with the mean and deviation of the pixels of these images that hold data."""
    each = each_file(functools.partial(_moments, files, wanted), range(len(files)), workers, "measuring the bands")
    count, total, squares = functools.reduce(np.add, each)
    if count[0] == 0:
        raise InputError(f"{files[0].parent}: no pixel of {len(files)} training images holds data")
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
    std[std <= 1e-7 * np.abs(mean)] = 1.0  # of a band with one value everywhere
    measured_on = f"{len(files):,} labelled training images"
    return replace(wanted, mean=tuple(mean.tolist()), std=tuple(std.tolist()), measured_on=measured_on)


def spread_batches(
    read: Callable[[int], Tensor], count: int, device: torch.device, process: tuple[int, int] = (0, 1)
) -> Iterator[Tensor]:
    """Yields (B, 3, H, W) normalised images on the device, each once; ``read`` gives image i.

    Batch k of n has the images k, k + n, …: neighbours, often frames of one drive, are in different batches. Images of
    different sizes come apart. ``process`` is (rank, number).
    """
    number = -(-count // IMAGES)
    rank, processes = process
    for first in range(rank, number, processes):
        images = sorted(map(read, range(first, count, number)), key=lambda image: tuple(image.shape))
        for _, same in groupby(images, key=lambda image: tuple(image.shape)):
            yield torch.stack(list(same)).to(device)


def _count(dataset: SegmentationDataset, index: int) -> NDArray[np.int64]:
    counts = np.bincount(dataset.label(index).ravel(), minlength=256).astype(np.int64)
    return np.append(counts[: len(dataset.classes)], counts[IGNORE_INDEX])


def _moments(files: Sequence[Path], wanted: PixelFormat, index: int) -> NDArray[np.float64]:
    """(3, B) number of pixels, sum, and sum of squares of one image."""
    image, result = read_image(files[index], wanted), np.zeros((3, wanted.bands))
    for band in range(wanted.bands):
        values = image.values[..., band]
        values = (values if image.valid is None else values[image.valid]).astype(np.float64)
        result[:, band] = values.size, values.sum(), np.square(values).sum()
    return result
