"""Own data: ``images/train/…`` and ``labels/train/…`` (or ``val``), or ``images`` and ``labels`` for both.

``train/images/…`` and ``train/labels/…`` are read alike, and ``masks`` or ``annotations`` in place of ``labels``. A
folder that holds images itself needs none of them: it is read as unlabelled, but for labels beside the images.
"""

from __future__ import annotations

import re
from pathlib import Path

from dem_apps.errors import InputError
from seg.data.files import IMAGE_SUFFIXES, find_labels, image_files, left_out
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
    images = root / "images" if _place(root, split) == root else root
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
    first = any((root / name / "images").is_dir() for name in names.values())
    return root / names.get(split, split) if first and not (root / "images").is_dir() else root


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


def _pairs(root: Path, split: str) -> Pairs:
    place = _place(root, split)
    images = place / "images"
    labels = place / "labels"
    others = (place / name for name in ("masks", "annotations"))
    labels = next(filter(Path.is_dir, [labels, *others]), labels)
    if not images.is_dir() and not labels.is_dir() and _holds_images(root):
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
