"""What a layout of a data set is.

A label image holds one id per pixel in the numbering of its data set. It is read as indices, never through a colour
conversion: GTA5's labels are palette images, and their colours are for people.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dem_apps.errors import InputError, nearest
from seg.data.image_io import read_index_image
from seg.data.labels import IGNORE_INDEX, ClassSet

Pairs = list[tuple[Path, Path]]


@dataclass(frozen=True)
class Layout:
    """One way of keeping a data set.

    Args:
        pairs: (root, split) → (image, label) files in order; split is ``train`` or ``val``. The labels need not exist.
        ids: the data set's own numbering, id → class name; None where labels use the class set's ids.
        read_ids: label file → (H, W) uint8 ids.
        known_bad: stems of images that the data set was published with although they are bad.
    """

    pairs: Callable[[Path, str], Pairs]
    ids: dict[int, str] | None = None
    read_ids: Callable[[Path], NDArray[np.uint8]] = read_index_image
    known_bad: tuple[str, ...] = ()

    def train_ids(self, classes: ClassSet) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Look-up tables, (256,) each: id → train id, and whether the id is known at all.

        What the data set has and the class set does not is ignored; 255 always is.

        Raises:
            InputError: a class that the data set does not have, which would never be learnt or scored.
        """
        table = np.full(256, IGNORE_INDEX, np.uint8)
        known = np.zeros(256, np.bool_)
        known[IGNORE_INDEX] = True
        if self.ids is None:
            known[[*classes.ids, *classes.ignored]] = True
            table[list(classes.ids)] = np.arange(len(classes), dtype=np.uint8)
            return table, known
        known[list(self.ids)] = True
        id_of = {name: label_id for label_id, name in self.ids.items()}
        for train_id, name in enumerate(classes.names):
            if name not in id_of:
                raise InputError(
                    f"--classes: '{name}' is no class of this layout{nearest(name, id_of)} "
                    f"(its classes: {', '.join(id_of)})"
                )
            table[id_of[name]] = train_id
        return table, known


def listed(folder: Path, pattern: str, root: Path, layout: str) -> list[Path]:
    """The files of a folder that match a pattern, in order, without hidden ones: macOS writes ``._0.png`` beside 0.png.

    Raises:
        InputError: no such folder below the root, as the layout has it, or no such file in it.
    """
    if not folder.is_dir():
        raise InputError(f"{root}: has no folder {folder.relative_to(root)}, as a data set in {layout} layout would")
    found = sorted(folder.glob(pattern))
    files = [file for file in found if not any(part[0] == "." for part in file.relative_to(folder).parts)]
    if not files:
        raise InputError(f"{folder}: holds no images that match {pattern}")
    return files
