"""Which files of a data set belong to a split: what its layout finds, less those left out, or a share of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from dem_apps.errors import InputError
from seg.data.layouts import LAYOUTS
from seg.data.layouts.find import fitting_layouts
from seg.data.layouts.layout import Pairs


def split_files(root: Path, layout: str, split: str, exclude: Sequence[str], part: tuple[float, float]) -> Pairs:
    """The images of a split and the paths of their labels, in order.

    Args:
        root: the folder that the data set was unpacked to.
        layout: a key of :data:`LAYOUTS`.
        split: ``train`` or ``val``.
        exclude: images to leave out, each as its path below the root, its file name or its stem.
        part: share of the images, (from, to) of a fixed shuffle; (0, 0.2) and (0.2, 1) have no image in common.

    Raises:
        InputError: the folders hold no images of that layout, or none is left.
    """
    return _part(_without(_pairs(root, layout, split), exclude, root), part, root)


def check_labels_exist(pairs: Pairs) -> None:
    """Raise an InputError that names the first image whose label is missing, and how many there are."""
    missing = [(image, label) for image, label in pairs if not label.is_file()]
    if missing:
        image, label = missing[0]
        raise InputError(f"{image}: its label {label} is missing ({len(missing)} of {len(pairs)} have none)")


def _without(pairs: Pairs, exclude: Sequence[str], root: Path) -> Pairs:
    names = set(exclude)
    kept = [
        (image, label)
        for image, label in pairs
        if names.isdisjoint((image.relative_to(root).as_posix(), image.name, image.stem))
    ]
    if not kept:
        raise InputError(f"{root}: every image is excluded; take some names out of 'exclude'")
    return kept


def _pairs(root: Path, layout: str, split: str) -> Pairs:
    """Those of the layout; where it finds none, the error names the layouts that do."""
    try:
        return LAYOUTS[layout].pairs(root, split)
    except InputError as error:
        fitting = fitting_layouts(root, split)  # this one is not among them
        if not fitting:
            raise
        raise InputError(
            f"{error}; it looks like layout {' or '.join(fitting)}: give --source.layout or --target.layout"
        ) from error


def _part(pairs: Pairs, part: tuple[float, float], root: Path) -> Pairs:
    """The share of a shuffle that depends on the files' names alone, back in file order."""
    if part == (0.0, 1.0):
        return pairs
    # by a hash and not by a random generator, whose stream may change with its library
    order = sorted(pairs, key=lambda pair: hashlib.sha256(pair[0].relative_to(root).as_posix().encode()).digest())
    chosen = order[round(part[0] * len(order)) : round(part[1] * len(order))]
    if not chosen:
        raise InputError(f"{root}: the part {part[0]:g} to {part[1]:g} of {len(order)} images is none at all")
    return sorted(chosen)
