"""Anybody's own data: ``images/train/…`` and ``labels/train/…`` (or ``val``), or ``images`` and ``labels`` for both."""

from __future__ import annotations

from pathlib import Path

from dem_apps.errors import InputError
from seg.data.layouts.layout import Layout, Pairs, listed

_SUFFIXES = (".png", ".jpg", ".jpeg")
#: What some put behind the name of an image to name its label.
_ENDINGS = ("_mask", "_label", "_labels")


def _pairs(root: Path, split: str) -> Pairs:
    """Folders within are followed. A label is a PNG with its image's path and stem, or with ``_mask`` behind it."""
    images, labels = root / "images", root / "labels"
    if any((images / name).is_dir() for name in ("train", "val")):
        images, labels = images / split, labels / split
    files = [file for file in listed(images, "**/*", root, "folders") if file.suffix.lower() in _SUFFIXES]
    if not files:
        raise InputError(f"{images}: holds no images ({', '.join(_SUFFIXES)})")
    pairs = [(file, _label(labels / file.relative_to(images))) for file in files]
    owners: dict[Path, Path] = {}
    for image, label in pairs:
        if label in owners:
            raise InputError(f"{image}: shares the label {label} with {owners[label].name}; give each its own name")
        owners[label] = image
    return pairs


def _label(place: Path) -> Path:
    label = place.with_suffix(".png")
    if label.is_file():
        return label
    return next((named for ending in _ENDINGS if (named := label.with_stem(label.stem + ending)).is_file()), label)


FOLDERS = Layout(_pairs)
