"""Own data: ``images/train/…`` and ``labels/train/…`` (or ``val``), or ``images`` and ``labels`` for both.

``train/images/…`` and ``train/labels/…`` are read alike, and the other names of :data:`IMAGE_FOLDERS` and
:data:`LABEL_FOLDERS`. A folder that holds images itself, or in ``train`` and ``val``, needs none of them: it is read
as unlabelled, but for labels beside the images.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from dem_apps.errors import InputError
from seg.data.files import (
    IMAGE_FOLDERS,
    IMAGE_SUFFIXES,
    LABEL_FOLDERS,
    LABEL_SUFFIXES,
    find_labels,
    image_files,
    left_out,
    visible_files,
)
from seg.data.layouts.layout import Layout, Pairs

#: Names of the folder of a split, in any case and with a year behind, in order of preference.
SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "test", "testing")}


def split_folders(images: Path) -> dict[str, str]:
    """Return the name of each split's folder below ``images``; empty where none is known."""
    plain = {re.sub(r"[-_]?(19|20)\d\d$", "", name).lower(): name for name in _folders(images)}
    folders: dict[str, str] = {}
    for split, known in SPLITS.items():
        for name in known:
            if name in plain:
                folders.setdefault(split, plain[name])
    return folders


def _folders(path: Path) -> list[str]:
    return sorted(below.name for below in path.iterdir() if below.is_dir()) if path.is_dir() else []


def about_splits(root: Path, split: str) -> str | None:
    """Return a sentence about the folders of splits, or None.

    It says that no folder is known as a split, or that a test split is scored.
    """
    images = _images_of(root)
    if _place(root, split) != root or not images.is_dir():
        images = root
    splits = split_folders(images)
    folders = _folders(images)
    name = splits.get(split, "")
    if name.lower().startswith("test"):
        return f"{images}: has no validation images, and those in {name} are scored"
    if splits or not folders:
        return None
    return (
        f"{images}: none of its folders, {', '.join(folders)}, is a split (train, val, …), so all are for training and "
        "for scores"
    )


def _place(root: Path, split: str) -> Path:
    """Return where ``images`` and ``labels`` lie: the root, or the split's folder if splits come first."""
    names = split_folders(root)
    first = any(_images_of(root / name).is_dir() for name in names.values())
    return root / names.get(split, split) if first and not _images_of(root).is_dir() else root


def _images_of(place: Path) -> Path:
    """Return the folder of images in a place, whatever its name; ``images`` where there is none."""
    return next(iter(_known(place, IMAGE_FOLDERS)), place / IMAGE_FOLDERS[0])


def _labels_of(place: Path) -> Path:
    """Return the folder of labels in a place, the first with a label image; ``labels`` where there is none."""
    found = _known(place, LABEL_FOLDERS) or [place / LABEL_FOLDERS[0]]
    return found[0] if len(found) == 1 else next(filter(_holds_labels, found), found[0])


def _holds_labels(folder: Path) -> bool:
    return any(file.suffix.lower() in LABEL_SUFFIXES for file in visible_files(folder))


def _known(place: Path, names: Sequence[str]) -> list[Path]:
    """Return the folders of these names, in their order, in any case."""
    plain = {name.lower(): name for name in _folders(place)}
    return [place / plain[name] for name in names if name in plain]


def _split_of(images: Path, labels: Path, split: str) -> tuple[Path, Path]:
    """Return the folders of a split below the given folders of images and labels.

    The given folders themselves are returned where no split is known.
    """
    splits = split_folders(images)
    if not splits:
        return images, labels
    name = splits.get(split, split)
    below = {folder.lower(): folder for folder in _folders(labels)}
    label_name = below.get(name.lower()) or split_folders(labels).get(split, name)
    return images / name, labels / label_name


def _holds_images(root: Path) -> bool:
    return root.is_dir() and any(file.suffix.lower() in IMAGE_SUFFIXES for file in root.iterdir())


def _lies_flat(root: Path) -> bool:
    """Return whether images lie in the root or in a split's folder itself."""
    return any(map(_holds_images, [root, *(root / name for name in split_folders(root).values())]))


def _pairs(root: Path, split: str) -> Pairs:
    place = _place(root, split)
    images = _images_of(place)
    labels = _labels_of(place)
    if not images.is_dir() and not labels.is_dir() and _lies_flat(root):
        images = root  # unlabelled images, or labels beside them
    images, labels = _split_of(images, labels, split)
    if not images.is_dir():
        raise InputError(f"{root}: has no folder {images.relative_to(root)}")
    files = image_files(images)
    if not files:
        suffixes = ", ".join(IMAGE_SUFFIXES)
        raise InputError(f"{images}: holds no images ({suffixes}){left_out([images])}")
    names = [file.relative_to(images) for file in files]
    label_of = find_labels(labels, names, images)
    if not labels.is_dir():
        beside = find_labels(images, names, images)
        label_of |= {image: label for image, label in beside.items() if label.is_file()}
    return [(images / image, label) for image, label in label_of.items()]


FOLDERS = Layout(_pairs)
