"""The classes that labels hold, where the ones that were given do not fit, or none were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml

from dem_apps.errors import InputError
from seg.data.datasets import SegmentationDataset
from seg.data.files import evenly
from seg.data.labels import IGNORE_INDEX, ClassSet, named_classes
from seg.data.numbering import (
    BLACK_WHITE,
    Held,
    class_values,
    look,
    numbering,
    smoothed_edges,
    together,
)
from seg.data.statistics import each_file

#: Number of labels that tell whether the classes are Cityscapes'.
#: They spare a look at the others.
_FEW = 32


@dataclass(frozen=True)
class FoundClasses:
    """Classes that labels hold."""

    classes: ClassSet
    note: str = ""  #: how the labels are read
    file: str = ""  #: the class file, and how to use it; empty where the classes were known


def found_classes(
    datasets: Sequence[SegmentationDataset], named: ClassSet | None = None, workers: int = 0
) -> FoundClasses | None:
    """Return the classes of all labels of data sets, or None where the given ones fit.

    Classes have the names that were given where there are as many. None is returned as well where
    the labels are in a numbering of Cityscapes.

    Raises:
        InputError: labels that are no masks.
    """
    files = [label for each in datasets for _, label in each.files if label is not None]
    if not files or (
        named is None and numbering(together([look(file) for file in evenly(files, _FEW)]), None)
    ):
        return None
    looks = [*each_file(look, files, workers, "looking at the labels")]
    held = together(looks)
    classes = _classes_of(held, named)
    if _black_and_white(datasets, looks):
        classes = replace(_named(named, 2), ids=BLACK_WHITE)
    return None if classes is None else _described(classes, held)


def _black_and_white(datasets: Sequence[SegmentationDataset], looks: Sequence[Held]) -> bool:
    """Return whether the labels below one root hold 0 and 255, and those below another 0 and 1."""
    roots = (each.root for each in datasets for _, label in each.files if label is not None)
    by_root: dict[Path, list[Held]] = {}
    for root, held in zip(roots, looks, strict=True):
        by_root.setdefault(root, []).append(held)
    parts = map(together, by_root.values())
    return {tuple(class_values(part.pixels) or ()) for part in parts} == {BLACK_WHITE, (0, 1)}


def _described(classes: ClassSet, held: Held) -> FoundClasses:
    """Say how labels are read, and write the class file that reads them."""
    holding = _holding(held, classes)
    note = (
        f"classes  {holding}: taken as {len(classes)} classes, since no --classes names them"
        "; python -m seg.data check writes the file to name them in"
    )
    text = yaml.safe_dump(
        classes.document(), sort_keys=False, allow_unicode=True, default_flow_style=None
    )
    file = f"{holding}; this file, with your names in this order, reads them (--classes FILE)"
    if 0 in classes.ids and not classes.by_color:
        file += "; if 0 means unlabelled, delete its row and list 0 under ignored"
    return FoundClasses(classes, note, f"{file}:\n\n{text}")


def _classes_of(held: Held, named: ClassSet | None) -> ClassSet | None:
    """Return the classes that labels hold.

    None is returned where the given classes have their ids, or where there are fewer than two.

    Raises:
        InputError: labels that are no masks.
    """
    if (refused := smoothed_edges(held)) is not None:
        raise InputError(refused)
    if len(held.colors) > 1:
        colors = tuple(sorted(held.colors))
        return replace(_named(named, len(colors)), colors=colors, by_color=True)
    ids = class_values(held.pixels, None if named is None else len(named)) or []
    if len(ids) < 2 or (named is not None and {*named.ids, *named.ignored} >= set(ids)):
        return None
    return replace(_named(named, len(ids)), ids=tuple(ids))


def _named(named: ClassSet | None, number: int) -> ClassSet:
    """Return so many classes, with the given names where there are as many."""
    return named_classes(number if named is None or len(named) != number else named.names)


def _holding(held: Held, classes: ClassSet) -> str:
    """Describe in words what the labels hold.

    Where they hold the id 255, the text says whether it is a class, so that it is never left out
    silently.
    """
    if classes.by_color:
        return f"the labels are pictures in {len(classes)} colours"
    holding = f"the labels hold the ids {', '.join(map(str, np.flatnonzero(held.pixels)))}"
    if white := held.pixels[IGNORE_INDEX]:
        counts = "counts as a class" if IGNORE_INDEX in classes.ids else "is ignored"
        holding += f" (255 is in {white / held.pixels.sum():.1%} of the pixels and {counts})"
    return holding
