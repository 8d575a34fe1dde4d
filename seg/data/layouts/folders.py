"""Anybody's own data: ``images/train/…`` and ``labels/train/…`` (or ``val``), or ``images`` and ``labels`` for both."""

from __future__ import annotations

from pathlib import Path

from dem_apps.errors import InputError
from seg.data.layouts.layout import Layout, Pairs, listed

_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
_LABEL_SUFFIXES = (".png", ".tif", ".tiff")
#: What some put behind the name of an image to name its label.
_ENDINGS = ("_mask", "_label", "_labels")


def _pairs(root: Path, split: str) -> Pairs:
    """Folders within are followed. A label is a PNG or TIFF with its image's path and stem, or ``_mask`` behind it."""
    images, labels = root / "images", root / "labels"
    if not labels.is_dir() and (root / "masks").is_dir():
        labels = root / "masks"
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
    names = [place.with_suffix(suffix) for suffix in _LABEL_SUFFIXES]
    names += [name.with_stem(name.stem + ending) for ending in _ENDINGS for name in names]
    return next((name for name in names if name.is_file()), names[0])


FOLDERS = Layout(_pairs)
