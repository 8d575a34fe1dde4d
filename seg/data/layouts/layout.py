"""The description of a layout of a data set.

Labels are read as indices, never through a colour conversion: GTA5's are palette images with
colours for people.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dem_apps.errors import InputError
from seg.data.files import image_files

if TYPE_CHECKING:
    from seg.data.labels import ClassSet, Ids

Pairs = list[tuple[Path, Path]]
#: Endings of the labels of Cityscapes and its converters in place of ``_labelIds``.
_OTHER_KINDS = ("_labelTrainIds", "_color", "_labelColor")


@dataclass(frozen=True)
class Layout:
    """Places of the images and labels of a data set, and the meaning of its ids."""

    #: (root, split) → (image, label) files in order; split is ``train`` or ``val``. The labels need not exist.
    pairs: Callable[[Path, str], Pairs]
    #: The data set's own numbering, id → class name; None where labels use the class set's ids.
    ids: dict[int, str] | None = None
    #: Label file → (H, W) uint8 ids; None where labels are images with a palette or in grey.
    read_ids: Callable[[Path], Ids] | None = None
    #: Classes of labels that are pictures in the classes' colours; ``ids`` names their ids.
    painted: ClassSet | None = None


def with_other_kinds(pairs: Pairs) -> Pairs:
    """Return the pairs, with labels of another kind where none of the given ones exists.

    The other kinds are train ids and colours, in files beside them.
    """
    kinds = itertools.chain([pairs], (_of_kind(pairs, ending) for ending in _OTHER_KINDS))
    return next((kind for kind in kinds if any(label.is_file() for _, label in kind)), pairs)


def _of_kind(pairs: Pairs, ending: str) -> Pairs:
    return [
        (image, label.with_stem(label.stem.removesuffix("_labelIds") + ending))
        for image, label in pairs
    ]


#: Layout of labels that belong to no data set; their ids are the class set's.
OWN_IDS = Layout(lambda _root, _split: [])


def listed(root: Path, name: str, pattern: str) -> list[Path]:
    """Return the images below the folder ``name`` of a root that match a pattern such as ``*/*_rgb.png``.

    The pattern is of their paths below that folder.

    Raises:
        InputError: no such folder, or no image that matches.
    """
    folder = root / name
    if not folder.is_dir():
        raise InputError(f"{root}: has no folder {name}")
    depth = len(folder.parts) + pattern.count("/") + 1
    files = [
        file for file in image_files(folder) if len(file.parts) == depth and file.match(pattern)
    ]
    if not files:
        raise InputError(f"{folder}: holds no images that match {pattern}")
    return files
