"""What labels hold against what the classes say: the same sentences in every command, and what none can score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dem_apps.errors import InputError
from seg.data import rasters
from seg.data.labels import IGNORE_INDEX, ClassSet, id_tables
from seg.data.read import label_ids, read_header, refuse_unknown, turned_upright

#: Labels, or pixels of labels, that are looked at before a training; more only until they hold two classes.
_LABELS, _PIXELS = 64, 1 << 27
_SHOWN = 5


def look_at_labels(
    title: str,
    files: Sequence[tuple[Path, Path]],
    classes: ClassSet,
    numbering: Mapping[int, str] | None = None,
    read_ids: Callable[[Path], NDArray[np.uint8]] | None = None,
) -> list[str]:
    """Warnings about labels, called ``title``, of (image, label) files; of many files some are looked at.

    Raises InputError: a damaged label, an id of no class, labels that hold fewer than two classes.
    """
    pixels, number = 0, min(_LABELS, len(files))
    held: list[frozenset[int]] = []
    turned, contradicting = list[str | None](), list[str | None]()
    spread = [place * len(files) // number for place in range(number)]
    for place in (*spread, *sorted(set(range(len(files))) - set(spread))):
        if (len(held) >= number or pixels > _PIXELS) and not faults(held, classes, numbering)[0]:
            break
        image, label = files[place]
        ids = label_ids(label, classes, read_ids)
        refuse_unknown(label, ids, classes, numbering)
        own, contradiction = declared(label, ids, classes)
        held.append(own)
        turned.append(turned_upright(image, (ids.shape[1], ids.shape[0])))
        contradicting.append(contradiction)
        pixels += ids.size
    errors, warnings, notes = faults(held, classes, numbering)
    if errors:
        raise InputError("; ".join([f"{title}: {errors[0]}", *warnings]))
    for each in (turned, contradicting):
        lines = [line for line in each if line is not None]
        warnings += [f"{len(lines):,} files, such as {lines[0]}"] if len(lines) > 1 else lines
    return [f"warning: {title}: {line}" for line in warnings] + [f"note: {title}: {line}" for line in notes]


def faults(
    held: Sequence[frozenset[int]], classes: ClassSet, numbering: Mapping[int, str] | None = None
) -> tuple[list[str], list[str], list[str]]:
    """Errors, warnings and notes about labels with these ids, a set each; an error is of labels that are of no use."""
    table = id_tables(classes, numbering)[0]
    found = {int(table[label_id]) for ids in held for label_id in ids} - {IGNORE_INDEX}
    absent = [name for train_id, name in enumerate(classes.names) if train_id not in found]
    errors, warnings, notes = list[str](), list[str](), list[str]()
    if len(found) < 2:
        one = f"one class alone, '{classes.names[found.pop()]}'" if found else "no class"
        errors.append(f"{len(held):,} labels hold {one}, of which nothing can be learnt or scored")
    number = sum(IGNORE_INDEX in ids for ids in held)
    unsaid = numbering is None and not classes.by_color and IGNORE_INDEX not in (*classes.ids, *classes.ignored)
    if absent and number and unsaid:
        warnings.append(
            f"255 is in {number:,} of {len(held):,} labels and ignored, since --classes does not name it, and "
            f"'{absent[0]}' is in none; if 255 is a class, give that class a row with id: 255 in a file, else list 255 "
            "there under ignored"
        )
    elif absent:
        names = ", ".join(f"'{name}'" for name in absent[:_SHOWN]) + (", …" if len(absent) > _SHOWN else "")
        notes.append(f"no pixel of {len(held):,} labels is {names}")
    return errors, warnings, notes


def declared(label: Path, ids: NDArray[np.uint8], classes: ClassSet) -> tuple[frozenset[int], str | None]:
    """The ids of a label without what a raster calls no data, and a sentence where that is the id of a class."""
    held = frozenset(np.flatnonzero(np.bincount(ids.ravel(), minlength=256)).tolist())
    nodata = read_header(label).nodata if rasters.readable(label) and not classes.by_color else None
    if nodata is None:
        return held, None
    if nodata not in classes.ids:
        return held - {IGNORE_INDEX}, None
    name = f"'{classes.names[classes.ids.index(int(nodata))]}'"
    return held, f"{label}: {int(nodata)} is the id of {name} and the file calls it no data; it is counted as {name}"
