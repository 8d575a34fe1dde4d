"""How many pixels of each class every image shows: one pass over the labels, kept in the cache."""

from __future__ import annotations

import functools
import hashlib
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dem_apps.errors import InputError
from dem_apps.runtime.files import cache_dir, whole_file
from seg.data.datasets import SegmentationDataset
from seg.data.image_io import cut
from seg.data.labels import IGNORE_INDEX
from seg.data.parallel_map import in_order


def class_pixels(dataset: SegmentationDataset, workers: int = 0) -> NDArray[np.int64]:
    """(N, C + 1) pixels of each class and, last, ignored ones, in each image's label at the training size.

    The first call reads every label and keeps the counts under ``cache_dir()/class_pixels``. They are used as long as
    the files' names, sizes and times of change, the training size and the classes are the same.

    Args:
        dataset: a labelled one.
        workers: processes that read.

    Raises:
        InputError: a label that cannot be read.
    """
    file = cache_dir() / "class_pixels" / f"{cut(dataset.root.name)}-{_key(dataset)}.npz"
    shape = (len(dataset), len(dataset.classes) + 1)
    kept = _read(file, shape)
    if kept is not None:
        return kept
    count = functools.partial(_count, dataset)
    pixels = np.array(list(in_order(count, len(dataset), workers, "counting the pixels of each class")))
    _keep(file, pixels)
    return pixels


def _key(dataset: SegmentationDataset) -> str:
    """A digest of everything that the counts depend on."""
    digest = hashlib.sha256(repr((str(dataset.root.resolve()), dataset.size, len(dataset.classes))).encode())
    digest.update(dataset.train_ids.tobytes() + dataset.known_ids.tobytes())
    for image, label in dataset.files:
        for file in (image, label):
            if file is not None:
                found = file.stat()
                name = file.relative_to(dataset.root).as_posix()
                digest.update(repr((name, found.st_size, found.st_mtime_ns, found.st_ctime_ns)).encode())
    return digest.hexdigest()[:20]


def _read(file: Path, shape: tuple[int, int]) -> NDArray[np.int64] | None:
    """What is kept; None where there is nothing, or nothing whole."""
    try:
        with np.load(file, allow_pickle=False) as content:
            pixels: NDArray[np.int64] = content["pixels"]
    except (OSError, EOFError, ValueError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error):
        return None
    return pixels if pixels.shape == shape and pixels.dtype == np.int64 else None


def _keep(file: Path, pixels: NDArray[np.int64]) -> None:
    """A training can do without: what cannot be written is worth a warning."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as temporary:
            np.savez_compressed(temporary, pixels=pixels)
    except (OSError, InputError) as error:
        warnings.warn(f"{file}: cannot be written ({error}), so the next start counts again", stacklevel=2)


def _count(dataset: SegmentationDataset, index: int) -> NDArray[np.int64]:
    counts = np.bincount(dataset.label(index).ravel(), minlength=256).astype(np.int64)
    return np.append(counts[: len(dataset.classes)], counts[IGNORE_INDEX])
