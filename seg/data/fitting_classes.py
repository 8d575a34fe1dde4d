"""Which classes the labels that were found would fit: the file that ``seg.data check`` proposes."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

import yaml

from seg.data.labels import CITYSCAPES_CLASSES, IGNORE_INDEX, ClassSet

#: Ids, or colours, that are listed as classes at most.
MOST_IDS = 40
#: Of masks in shades of grey: black, grey, white.
_SHADES = frozenset({0, 128, IGNORE_INDEX})
#: A table that names such an id, and not even half of those below, numbers shades and not classes.
_LEAST_SHADE = 64
Color = tuple[int, int, int]


def white_is_ignored(held: Collection[int], classes: ClassSet) -> bool:
    """Whether white pixels of masks in shades of grey are ignored although nobody has said so.

    That is where 255 is in the labels and not in the table, and either nothing but black and grey is beside it, or the
    table's ids are shades. Tables such as Cityscapes' or ADE20K's have ids that follow each other.

    Args:
        held: ids in all labels.
        classes: of the table.
    """
    if IGNORE_INDEX not in held or IGNORE_INDEX in (*classes.ids, *classes.ignored):
        return False
    named = {*classes.ids, *classes.ignored}
    shades = max(named) >= _LEAST_SHADE and 2 * len(named) < max(named)
    return shades or (len(held) > 1 and _SHADES.issuperset(held))


def fitting_classes(
    held: Collection[int], no_data: Collection[int], colors: Collection[Color], classes: ClassSet, unfit: bool
) -> str | None:
    """A file of classes for labels whose ids are not in the table, as of masks in black and white or in colours.

    Args:
        held: ids in all labels.
        no_data: numbers in labels that their files call no data.
        colors: of labels that are pictures.
        classes: that were asked for; their names are used where there are as many as ids or colours.
        unfit: whether the table and the ids do not fit.
    """
    if len(colors) > MOST_IDS:
        return (
            f"the labels are pictures in more than {MOST_IDS} colours: no masks, or some that were smoothed, "
            "resized or saved as JPEG; save one colour per class, as PNG"
        )
    if len(colors) > 1:
        rows = [f"color: {list(color)}" for color in sorted(colors)]
        return (
            f"the labels are pictures in {len(colors)} colours; {_reads_them(classes, len(rows))} (--classes "
            "FILE; a colour that nothing counts goes to a list 'ignored' instead):\n\n"
            f"labels: colors\nclasses:\n{_rows(rows, classes)}"
        )
    ids = sorted(held)
    if not unfit or len(ids) > MOST_IDS:
        return None
    # beside two shades 255 is white, beside many ids it is what nothing counts
    mask = _SHADES.issuperset(ids)
    rows = [f"id: {label_id}" for label_id in ids if mask or label_id != IGNORE_INDEX]
    if len(rows) < 2:
        return None
    listed = ", ".join(map(str, ids))
    beside = f", and {', '.join(map(str, sorted(no_data)))} as no data, which is ignored" if no_data else ""
    return (
        f"the labels hold the ids {listed}{beside}; {_reads_them(classes, len(rows))} (--classes FILE):\n\n"
        f"classes:\n{_rows(rows, classes)}"
    )


def _names(classes: ClassSet, number: int) -> list[str] | None:
    """Those that were given, where they are so many."""
    return list(classes.names) if classes is not CITYSCAPES_CLASSES and len(classes) == number else None


def _reads_them(classes: ClassSet, number: int) -> str:
    if _names(classes, number) is None:
        return "with names of yours this file reads them"
    return "this file reads them, if your names are in this order"


def _rows(rows: list[str], classes: ClassSet) -> str:
    names = _names(classes, len(rows)) or [f"class {place}" for place in range(len(rows))]
    return "".join(f"- {{name: {_quoted(name)}, {row}}}\n" for name, row in zip(names, rows, strict=True))


def _quoted(name: str) -> str:
    """A name as YAML has it: ``no`` alone would be false."""
    plain = re.fullmatch(r"[^\W\d][\w -]*", name) and isinstance(yaml.safe_load(name), str)
    return name if plain else json.dumps(name, ensure_ascii=False)
