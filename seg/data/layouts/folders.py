"""Own data: ``images/train/…`` and ``labels/train/…`` (or ``val``), or ``images`` and ``labels`` for both."""

from __future__ import annotations

from pathlib import Path

from dem_apps.errors import InputError
from seg.data.files import IMAGE_SUFFIXES, find_labels, image_files, left_out
from seg.data.layouts.layout import Layout, Pairs


def _pairs(root: Path, split: str) -> Pairs:
    images, labels = root / "images", root / "labels"
    if not labels.is_dir() and (root / "masks").is_dir():
        labels = root / "masks"
    if any((images / name).is_dir() for name in ("train", "val")):
        images, labels = images / split, labels / split
    if not images.is_dir():
        raise InputError(f"{root}: has no folder {images.relative_to(root)}, as a data set in folders layout would")
    files = image_files(images)
    if not files:
        raise InputError(f"{images}: holds no images ({', '.join(IMAGE_SUFFIXES)}){left_out([images])}")
    names = [file.relative_to(images) for file in files]
    label_of = find_labels(labels, names)
    beside = {} if labels.is_dir() else find_labels(images, names, images)
    label_of |= {image: file for image, file in beside.items() if file.is_file()}
    return [(images / image, label) for image, label in label_of.items()]


FOLDERS = Layout(_pairs)
