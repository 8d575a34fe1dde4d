"""``python -m seg.data cache``: writes the resized copies that training reads instead of decoding PNG files."""

from __future__ import annotations

import shutil
from pathlib import Path

from dem_apps.errors import InputError
from dem_apps.runtime.files import cache_dir
from seg.data.datasets import SegmentationDataset
from seg.data.image_io import upright_size
from seg.data.parallel_map import in_order

# what a file takes beyond its pixels: its header, and the rest of its last block
_BYTES_PER_FILE = 4096


def fill_cache(splits: dict[str, SegmentationDataset], workers: int = 0) -> None:
    """Copy every file of the splits that has no good copy yet; what an interrupted call has copied is kept.

    Args:
        splits: title → data set.
        workers: processes that decode and write.

    Raises:
        InputError: too little space on the disk, found before anything is written; a file that cannot be read.
    """
    # by copy, not by sample: target images may be in two splits, with labels and without
    bytes_of: dict[Path, int] = {}
    for dataset in splits.values():
        for index in range(len(dataset)):
            bytes_of |= {dataset.copies.path(file): size for file, size in _bytes_needed(dataset, index).items()}
    needed = sum(bytes_of.values())
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror}); name another in DEM_APPS_CACHE") from error
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"{folder}: the copies take {_text(needed)} more and {_text(free)} are free; "
            "free some space or name another folder in DEM_APPS_CACHE"
        )
    print(f"{_text(needed)} to write, {_text(free)} free in {folder}", flush=True)
    for title, dataset in splits.items():
        for _ in in_order(dataset.write_copies, len(dataset), workers, f"copying {title}"):
            pass
        print(f"{title}: {len(dataset):,} images in {dataset.copies.folder}", flush=True)


def _text(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"


def _bytes_needed(dataset: SegmentationDataset, index: int) -> dict[Path, int]:
    missing = dataset.missing_copies(index)
    if not missing:
        return {}
    image_file = dataset.files[index][0]
    width, height = dataset.size or upright_size(image_file)
    return {file: width * height * (3 if file == image_file else 1) + _BYTES_PER_FILE for file in missing}
