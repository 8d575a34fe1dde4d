"""The description of a layout of a data set.

Labels are read as indices, never through a colour conversion: GTA5's are palette images with colours for people.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dem_apps.errors import InputError
from seg.data.files import image_files

Pairs = list[tuple[Path, Path]]
#: Endings of the labels of Cityscapes and its converters in place of ``_labelIds``.
_OTHER_KINDS = ("_labelTrainIds", "_color", "_labelColor")


@dataclass(frozen=True)
class Layout:
    """Where the images and labels of a data set lie, and what its ids mean."""

    #: (root, split) → (image, label) files in order; split is ``train`` or ``val``. The labels need not exist.
    pairs: Callable[[Path, str], Pairs]
    #: The data set's own numbering, id → class name; None where labels use the class set's ids.
    ids: dict[int, str] | None = None
    #: Label file → (H, W) uint8 ids; None is :func:`seg.data.read.read_index_image`.
    read_ids: Callable[[Path], NDArray[np.uint8]] | None = None
    #: stems of images that the data set was published with although they are bad
    known_bad: tuple[str, ...] = ()


def with_other_kinds(pairs: Pairs) -> Pairs:
    """The same, or, where none of the labels exists, with those of train ids or colours beside them."""
    kinds = [pairs]
    for ending in _OTHER_KINDS:
        kinds.append(
            [
                (image, label.with_stem(label.stem.removesuffix("_labelIds") + ending))
                for image, label in pairs
            ]
        )
    return next((kind for kind in kinds if any(label.is_file() for _, label in kind)), pairs)


#: Of labels that belong to no data set: their ids are the class set's.
OWN_IDS = Layout(lambda _root, _split: [])


def listed(folder: Path, pattern: str, root: Path, layout: str) -> list[Path]:
    """The images below a folder whose path there matches a pattern such as ``*/*_rgb.png``."""
    if not folder.is_dir():
        raise InputError(
            f"{root}: has no folder {folder.relative_to(root)}, as a data set in {layout} layout would"
        )
    depth = len(folder.parts) + pattern.count("/") + 1
    files = [
        file for file in image_files(folder) if len(file.parts) == depth and file.match(pattern)
    ]
    if not files:
        raise InputError(f"{folder}: holds no images that match {pattern}")
    return files
