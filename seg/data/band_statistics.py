"""Mean and deviation of every band over the training images: what normalises images that are no 8-bit RGB.

One pass over the files at their own resolution, kept in the cache. Of a pair only the labelled images are measured: one
normalisation serves both domains, as one network does, and what the target's differs by is what is adapted to.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dem_apps.errors import InputError
from dem_apps.runtime.files import cache_dir, read_json, write_atomically
from seg.data.image_pixels import read_pixels
from seg.data.parallel_map import in_order
from seg.data.pixel_format import PixelFormat


def measured_format(
    files: Sequence[Path], bands: int, dtype: str, shown: tuple[int, int, int], workers: int = 0
) -> PixelFormat:
    """The format of images with so many bands, with the mean and deviation of the pixels that hold data.

    A band that has one value everywhere is divided by 1. The same for any number of workers.

    Args:
        files: the training images.
        bands: B.
        dtype: numpy's name of their numbers.
        shown: see :class:`PixelFormat`.
        workers: processes that read, the first time.

    Raises:
        InputError: an image that cannot be read or is of another kind, or no pixel that holds data.
    """
    kept = cache_dir() / "band_statistics" / f"{_key(files, bands)}.json"
    sums = _read(kept, bands)
    if sums is None:
        unmeasured = PixelFormat(bands, dtype, (0.0,) * bands, (1.0,) * bands, shown)
        each = in_order(functools.partial(_moments, files, unmeasured), len(files), workers, "measuring the bands")
        sums = functools.reduce(_joined, each)
        _keep(kept, sums)
    count, mean, deviations = sums[0, 0], sums[1], sums[2]
    if count == 0:
        raise InputError(f"{files[0].parent}: no pixel of {len(files)} training images holds data")
    std = np.sqrt(deviations / count)
    std[std == 0] = 1.0
    return PixelFormat(
        bands, dtype, tuple(mean.tolist()), tuple(std.tolist()), shown, f"{len(files):,} labelled training images"
    )


def _moments(files: Sequence[Path], wanted: PixelFormat, index: int) -> NDArray[np.float64]:
    """(3, B) number of pixels, mean, and sum of squared deviations of one image."""
    image = read_pixels(files[index], wanted)
    result = np.zeros((3, wanted.bands))
    for band in range(wanted.bands):
        values = image.values[..., band]
        values = (values if image.valid is None else values[image.valid]).astype(np.float64)
        if values.size:
            mean = values.mean()
            result[:, band] = values.size, mean, np.square(values - mean).sum()
    return result


def _joined(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of two sets of pixels together; Chan et al., 1979."""
    count = first[0] + second[0]
    apart = second[1] - first[1]
    share = second[0] / np.maximum(count, 1)
    return np.stack([count, first[1] + apart * share, first[2] + second[2] + apart**2 * first[0] * share])


def _key(files: Sequence[Path], bands: int) -> str:
    digest = hashlib.sha256(str(bands).encode())
    for file in files:
        found = file.stat()
        digest.update(repr((str(file.resolve()), found.st_size, found.st_mtime_ns, found.st_ctime_ns)).encode())
    return digest.hexdigest()[:20]


def _read(file: Path, bands: int) -> NDArray[np.float64] | None:
    """What is kept; None where there is nothing, or nothing whole."""
    if not file.is_file():
        return None
    try:
        document: Any = read_json(file)
        sums = np.array(document, np.float64)
    except (InputError, TypeError, ValueError):
        return None
    return sums if sums.shape == (3, bands) and all(map(math.isfinite, sums.ravel())) else None


def _keep(file: Path, sums: NDArray[np.float64]) -> None:
    """A training can do without: what cannot be written is worth a warning."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(sums.tolist()).encode())
    except (InputError, OSError) as error:
        warnings.warn(f"{file}: cannot be written ({error}), so the next start measures again", stacklevel=2)
