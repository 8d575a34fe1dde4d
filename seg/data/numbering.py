"""Tells which numbering label images are in, and which of their values are classes.

Files of one name hold different ids: converters overwrite Cityscapes' label ids (0 to 33) by train
ids (0 to 18, 255) or by colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dem_apps.errors import InputError
from seg.data.files import evenly
from seg.data.label_map import label_map_of
from seg.data.labels import (
    CITYSCAPES_CLASSES,
    CITYSCAPES_COLORS,
    CITYSCAPES_IDS,
    IGNORE_INDEX,
    ClassSet,
    Color,
    load_classes,
)
from seg.data.layouts.layout import OWN_IDS, Layout
from seg.data.pixel_format import Counts
from seg.data.read_labels import LabelPixels, label_colors, label_pixels

#: Largest number of ids, or colours, that are proposed as classes.
_MOST_VALUES = 40
#: Number of labels of a data set that are looked at.
_LABELS = 16
#: Least step between grey levels; ids lie closer together.
_GREY_STEP = 16
#: Least share of the pixels for 255 to be a class.
#: Largest share for a value to be one of a smoothed edge.
_MANY, _FEW = 0.3, 0.03
#: Share of the pixels by which more must mean a class in another numbering.
#: Labels are then read in that.
_GAIN = 0.2
#: Ids of masks in black and white; others have 0 and 1 for the same.
BLACK_WHITE = (0, 255)
_NAMES = set(CITYSCAPES_CLASSES.names)
#: id → class name by numbering; some converters write 19 where others write 255.
_NUMBERINGS = {
    "label ids": CITYSCAPES_IDS,
    "train ids": {**dict(enumerate(CITYSCAPES_CLASSES.names)), 19: "unlabeled"},
    "colours": CITYSCAPES_IDS,
}


@dataclass(frozen=True)
class Held:
    """Values that label images hold."""

    file: Path  #: the label image with the most values
    pixels: Counts  #: (256,) pixels of each id; zeros where there are none
    colors: frozenset[Color] = frozenset()  #: colours of labels that are pictures


def look(file: Path, layout: Layout = OWN_IDS) -> Held:
    """Return the values that a label image holds, read as the layout says.

    A damaged one holds none.
    """
    try:
        return held_in(file, label_pixels(file, CITYSCAPES_CLASSES, layout))
    except InputError:
        colors = list[Color]()
        with suppress(InputError):
            colors = label_colors(file, _MOST_VALUES)
        return Held(file, np.zeros(256, np.int64), frozenset(colors))


def held_in(file: Path, label: LabelPixels) -> Held:
    """Count the ids of a label image in the pixels that hold any."""
    return Held(file, np.bincount(label.held.ravel(), minlength=256))


def together(labels: Sequence[Held]) -> Held:
    """Join the values of several label images."""
    most = max(labels, key=lambda label: len(label.colors) + np.count_nonzero(label.pixels))
    colors = frozenset[Color]().union(*(label.colors for label in labels))
    return Held(most.file, np.sum([label.pixels for label in labels], axis=0), colors)


def as_numbered(
    files: Sequence[Path], classes: ClassSet, layout: Layout
) -> tuple[Layout, list[str]]:
    """Return the layout with the numbering that label images hold, and notes.

    There is a note where the numbering is not the layout's own. Pictures in other colours than
    Cityscapes' are read by the class set, or by the label map beside them.
    """
    if layout.ids is None and not classes.by_color:
        label_map = label_map_of(files[0])
        if label_map is not None:
            return _mapped(label_map, classes, layout)
    held = together([look(file, layout) for file in evenly(files, _LABELS)])
    if layout.ids is None and _zero_one(held, classes):
        return replace(layout, ids=dict(enumerate(classes.names))), [
            f"the labels, such as {held.file}, hold 0 and 1 for the classes' 0 and 255"
        ]
    name = _cityscapes_numbering(held, classes, layout)
    if name is None:
        if held.colors and not held.pixels.any():
            layout = replace(layout, ids=None, read_ids=None)
        return layout, []
    painted = CITYSCAPES_COLORS if name == "colours" else None
    numbered = replace(layout, ids=_NUMBERINGS[name], read_ids=None, painted=painted)
    if numbered == layout:
        return layout, []
    return numbered, [
        f"the labels, such as {held.file}, hold Cityscapes' {name} and are read so; if they mean something else, "
        "layout folders and a file for --classes say what"
    ]


def _zero_one(held: Held, classes: ClassSet) -> bool:
    """Return whether labels hold 0 and 1 where the classes are black and white."""
    return classes.ids == BLACK_WHITE and bool(held.pixels[1]) and not held.pixels[2:].any()


def _cityscapes_numbering(held: Held, classes: ClassSet, layout: Layout) -> str | None:
    """Return the numbering of Cityscapes' classes that labels hold.

    None is returned if the classes are others, or have colours.
    """
    if classes.by_color or not _NAMES.issuperset(classes.names):
        return None
    if layout.ids is not None:
        return numbering(held, layout.ids)
    ignored = {each: CITYSCAPES_IDS.get(each, "") for each in classes.ignored}
    return numbering(held, ignored | classes.numbering)


def _mapped(label_map: Path, classes: ClassSet, layout: Layout) -> tuple[Layout, list[str]]:
    """Return the layout of masks in the colours of a label map, and a note.

    The label map's names are the classes' names.

    Raises:
        InputError: a class that the label map lacks.
    """
    mapped = load_classes(str(label_map))
    if other := set(classes.names) - set(mapped.names):
        raise InputError(
            f"{label_map}: has no label {', '.join(sorted(other))}; --classes {label_map} takes its labels as classes"
        )
    numbered = replace(layout, ids=dict(enumerate(mapped.names)), painted=mapped)
    return numbered, [f"the labels are read by the colours of {label_map}"]


def numbering(held: Held, names: Mapping[int, str] | None) -> str | None:
    """Return the numbering of Cityscapes' classes that labels hold.

    Small ids are in every numbering. An id that is unknown in the labels' own numbering speaks for
    another one. So do many more pixels that mean a class, together with 255 or a sky of
    the id 10.

    Args:
        held: the labels' values.
        names: id → class name of the labels' own numbering; None where nothing names it.

    Returns:
        ``label ids``, ``train ids`` or ``colours``; None for the labels' own.
    """
    told = _told(held)
    pixels = held.pixels
    ids = set(np.flatnonzero(pixels[:IGNORE_INDEX]).tolist())
    if told or not ids:
        return told
    if names is not None:
        return _by_pixels(pixels, ids, names)
    evaluated = len(ids & set(CITYSCAPES_CLASSES.ids))
    like_label_ids = evaluated > 1 and 2 * len(ids) <= 3 * evaluated
    return "label ids" if like_label_ids and ids <= CITYSCAPES_IDS.keys() else None


def _by_pixels(pixels: Counts, ids: set[int], names: Mapping[int, str]) -> str | None:
    """Return the numbering in which more of the pixels mean a class than in the labels' own.

    None is returned for their own.
    """
    if 2 * len(_NAMES & set(names.values())) <= len(_NAMES):
        return None
    evidence = pixels[IGNORE_INDEX] > 0 or 10 in ids
    for other in ("label ids", "train ids"):
        gain = _meant(pixels, _NUMBERINGS[other]) - _meant(pixels, names)
        better = gain > _GAIN and evidence
        if not ids <= names.keys():
            better = gain > 0
        if better and ids <= _NUMBERINGS[other].keys():
            return other
    return None


def _meant(pixels: Counts, names: Mapping[int, str]) -> float:
    """Return the share of the pixels, without 255, that mean one of Cityscapes' classes."""
    meant = [pixels[label_id] for label_id, name in names.items() if name in _NAMES]
    return float(sum(meant) / pixels[:IGNORE_INDEX].sum())


def _told(held: Held) -> str | None:
    """Return the numbering that colours or the file name tell, or None."""
    evaluated = set(CITYSCAPES_CLASSES.colors)
    known = evaluated | set(CITYSCAPES_COLORS.ignored_colors)
    if len(held.colors & evaluated) > 1 and held.colors <= known:
        return "colours"
    return "train ids" if held.file.stem.endswith("_labelTrainIds") else None


def class_values(pixels: Counts, number: int | None = None) -> list[int] | None:
    """Return the ids of labels that are classes.

    255 is one where the number of classes says so, where it has many pixels, and among grey levels
    such as 0, 127, 255.

    Args:
        pixels: (256,) pixels of each id.
        number: how many classes are given, if any.

    Returns:
        The ids. None where the values are too many, or come from smoothed edges: such values are
        rare, lie below a common value and are larger than ids are.
    """
    values = np.flatnonzero(pixels)
    common = np.flatnonzero(pixels > _FEW * pixels.sum())
    rare = np.setdiff1d(values[values > _MOST_VALUES], common)
    if len(values) > _MOST_VALUES or 2 <= len(common) <= (rare < common[-1]).sum():
        return None
    with_white = values.tolist()
    ids = values[values != IGNORE_INDEX].tolist()
    if number in (len(with_white), len(ids)):
        return with_white if number == len(with_white) else ids
    grey = np.diff(values).min(initial=IGNORE_INDEX) >= _GREY_STEP
    return with_white if grey or pixels[IGNORE_INDEX] >= _MANY * pixels.sum() else ids


def smoothed_edges(held: Held) -> str | None:
    """Return a sentence about labels that are no masks or were smoothed, None about others.

    Such labels hold more values than masks do, or several rare ones between common ones.
    """
    holding = f"hold {np.count_nonzero(held.pixels)} values"
    if len(held.colors) > _MOST_VALUES:
        holding = f"are pictures in more than {_MOST_VALUES} colours"
    elif class_values(held.pixels) is not None:
        return None
    return (
        f"the labels {holding}: no masks, or some that were smoothed, resized or saved as JPEG, such as {held.file}; "
        "save one value per class, as PNG, or name each in a file for --classes"
    )
