"""Finds the images of a folder and their labels, and names what is written about an image."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dem_apps.errors import InputError

#: Most pixels of a side that an image may be resized to.
LARGEST_SIDE = 1 << 15
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".gif")
#: Formats that keep every number, in order of preference.
LABEL_SUFFIXES = (".png", ".tif", ".tiff")
#: Endings of a label's name behind its image's, in order of preference.
_LABEL_ENDINGS = ("", "_mask", "_label", "_labels")


def find_images(source: Path, flag: str = "--images") -> list[Path]:
    """Image files below a folder in sorted order, see :func:`image_files`; of a file, itself."""
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise InputError(f"{flag}: {source} is no folder and no image")
    files = image_files(source)
    if not files:
        raise InputError(f"{flag}: {source} and its subfolders hold no image ({' '.join(IMAGE_SUFFIXES)})")
    return files


def image_files(folder: Path, suffixes: Sequence[str] = IMAGE_SUFFIXES) -> list[Path]:
    """Files with such a suffix, in any case, below a folder and the folders that it links to, in sorted order.

    Hidden ones are left out (macOS writes ``._0.png`` beside 0.png), and a folder that is reached twice counts once.
    """
    found: list[Path] = []
    visited: set[str] = set()
    for path, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(path)
        folders[:] = [] if real in visited else sorted(name for name in folders if name[0] != ".")
        if real not in visited:
            found += [Path(path, name) for name in names if name[0] != "." and Path(name).suffix.lower() in suffixes]
        visited.add(real)
    return sorted(found)


def find_labels(folder: Path, images: Sequence[Path]) -> dict[Path, Path]:
    """The label image of each image, by the image's path below its own folder.

    A label is a PNG or TIFF with its image's path and stem, or with ``_mask``, ``_label`` or ``_labels`` behind it.
    Where there is none, it is the PNG that it would be, which does not exist. Two images with one label are an error.
    """
    present: dict[str, Path] = {}
    for file in sorted(image_files(folder, LABEL_SUFFIXES), key=lambda file: LABEL_SUFFIXES.index(file.suffix.lower())):
        present.setdefault(str(file.relative_to(folder).with_suffix("")), file)
    labels: dict[Path, Path] = {}
    owners: dict[Path, Path] = {}
    for image in images:
        stem = str(image.with_suffix(""))
        found = [present[stem + ending] for ending in _LABEL_ENDINGS if stem + ending in present]
        labels[image] = found[0] if found else folder / image.with_suffix(".png")
        if found and owners.setdefault(found[0], image) != image:
            raise InputError(f"{image}: shares the label {found[0]} with {owners[found[0]]}; give each its own name")
    return labels


def output_names(images: Sequence[Path]) -> list[Path]:
    """Relative paths without suffix, no two alike even where case does not count: a.png and a.jpg keep their suffix."""
    shared = Counter(str(image.with_suffix("")).lower() for image in images)
    names = []
    for image in images:
        name = image.with_suffix("")
        if shared[str(name).lower()] > 1:
            name = image.with_name(f"{image.stem}_{image.suffix[1:]}")
        names.append(str(name))
    return [Path(name) for name in distinct(names)]


def flat_names(images: Sequence[str]) -> list[str]:
    """Names for one folder with a file ``NAME.png`` and a folder ``NAME`` of each image of a data set.

    A name is the stem, or the path where another image has the stem: ``val/a/0.png`` is ``val_a_0``. No two are alike,
    even where case does not count.
    """
    shared = Counter(Path(image).stem.lower() for image in images)
    chosen = []
    for image in images:
        stem, path = Path(image).stem, str(Path(image).with_suffix("")).replace("/", "_")
        chosen.append(path if shared[stem.lower()] > 1 else stem)
    # the folder of 0.png.jpg would be the file of 0.jpg
    chosen = [f"{name[:-4]}_png" if name.lower().endswith(".png") else name for name in chosen]
    return distinct(chosen)


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with ``_2``, ``_3``, … behind repeated ones; case does not count."""
    taken: set[str] = set()
    result = []
    for name in names:
        candidate, number = name, 1
        while candidate.lower() in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate.lower())
        result.append(candidate)
    return result
