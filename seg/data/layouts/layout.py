"""The description of a layout of a data set.

Labels are read as indices, never through a colour conversion: GTA5's are palette images with
colours for people.
"""

from __future__ import annotations

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
    for ending in ("_labelIds", *_OTHER_KINDS):
        kind = [(image, _of_kind(label, ending)) for image, label in pairs]
        if any(label.is_file() for _, label in kind):
            return kind
    return pairs


def _of_kind(label: Path, ending: str) -> Path:
    stem = label.stem.removesuffix("_labelIds")
    return label if ending == "_labelIds" else label.with_stem(f"{stem}{ending}")


#: Layout of labels that belong to no data set; their ids are the class set's.
OWN_IDS = Layout(lambda _root, _split: [])


def listed(folder: Path, pattern: str, root: Path, layout: str) -> list[Path]:
    """Return the images below a folder that match a pattern such as ``*/*_rgb.png``.

    The pattern is of their paths below the folder.

    Raises:
        InputError: no such folder, or no image that matches.
    """
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
