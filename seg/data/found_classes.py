"""The classes that labels hold, where the ones that were given do not fit, or none were."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from dem_apps.errors import InputError
from seg.data.datasets import SegmentationDataset
from seg.data.label_faults import MOST_IDS, FileReport, check_label
from seg.data.labels import CITYSCAPES_CLASSES, CITYSCAPES_IDS, IGNORE_INDEX, ClassSet, Color, named_classes
from seg.data.statistics import each_file

#: Labels that are looked at first.
_FEW = 32


def found_classes(datasets: Sequence[SegmentationDataset], workers: int = 0) -> tuple[ClassSet, str] | None:
    """The classes of all labels of data sets without a numbering of their own, and a sentence about them.

    None where Cityscapes' fit, or where none can be told. Raises InputError: labels that are no masks.
    """
    files = [(image, label) for each in datasets for image, label in each.files if label is not None]
    look = functools.partial(_look, files)
    # a few first, so that Cityscapes' are not all looked at
    for indices in (range(0, len(files), -(-len(files) // _FEW) or 1), range(len(files))):
        reports = list(each_file(look, indices, workers, "looking which classes the labels hold"))
        unfit = other_ids(reports, CITYSCAPES_CLASSES) or any(report.unfit for report in reports)
        found = fitting_classes(reports, CITYSCAPES_CLASSES, unfit)
        if found is None:
            return None
        said = f"classes  {_holding(reports, found)}: taken as {len(found)} classes, since no --classes names them; "
        result = found, f"{said}python -m seg.data check writes the file to name them in"
    return result


def fitting_classes(reports: Sequence[FileReport], classes: ClassSet, unfit: bool) -> ClassSet | None:
    """The classes of labels that ``classes`` do not fit, with these names where their number fits; else None."""
    colors = sorted(frozenset[Color]().union(*(report.colors for report in reports)))
    if len(colors) > MOST_IDS:
        raise InputError(
            f"the labels are pictures in more than {MOST_IDS} colours: no masks, or some that were smoothed, "
            "resized or saved as JPEG; save one colour per class, as PNG"
        )
    if len(colors) > 1:
        return replace(_named(classes, len(colors)), colors=tuple(colors), by_color=True)
    held = frozenset[int]().union(*(report.held for report in reports))
    others = held - {IGNORE_INDEX}
    # 255 is a class where the number of names says so, or where there is at most one other id
    ids = sorted(held if len(held) == len(classes) or len(others) < 2 else others)
    return replace(_named(classes, len(ids)), ids=tuple(ids)) if unfit and 2 <= len(ids) <= MOST_IDS else None


def other_ids(reports: Sequence[FileReport], classes: ClassSet) -> bool:
    """Whether the classes are Cityscapes' and the labels are not, though other numberings lie within its 0 to 33.

    Cityscapes' labels hold two classes or more and few other ids, or are told by their palettes or file names.
    """
    held = frozenset[int]().union(*(report.held for report in reports)) - {IGNORE_INDEX}
    if classes is not CITYSCAPES_CLASSES or not held:
        return False
    evaluated = held & set(classes.ids)
    said = any(report.cityscapes for report in reports) and held <= CITYSCAPES_IDS.keys()
    return len(evaluated) < 2 or not (said or len(held - evaluated) <= len(evaluated) / 2)


def class_file(reports: Sequence[FileReport], classes: ClassSet, found: ClassSet) -> str:
    """The class file of the classes that were found, and how to use it."""
    key, values, head, hint = "id", list[Any](found.ids), dict[str, Any](), ""
    if found.by_color:
        key, values, head = "color", [list(color) for color in found.colors], {"labels": "colors"}
        hint = "; a colour that nothing counts goes to a list 'ignored' instead"
    rows = [{"name": name, key: value} for name, value in zip(found.names, values, strict=True)]
    text = yaml.safe_dump({**head, "classes": rows}, sort_keys=False, allow_unicode=True, default_flow_style=None)
    how = "with your names this file reads them"
    if found.names == classes.names:
        how = "this file reads them, if your names are in this order"
    return f"{_holding(reports, found)}; {how} (--classes FILE{hint}):\n\n{text}"


def _look(files: Sequence[tuple[Path, Path]], index: int) -> FileReport:
    report = FileReport()
    check_label(report, *files[index], CITYSCAPES_CLASSES)
    return report


def _holding(reports: Sequence[FileReport], found: ClassSet) -> str:
    held = sorted(frozenset[int]().union(*(report.held for report in reports)))
    what = f"are pictures in {len(found)} colours" if found.by_color else f"hold the ids {', '.join(map(str, held))}"
    return f"the labels {what}"


def _named(classes: ClassSet, number: int) -> ClassSet:
    """So many classes, with the given names where there are as many."""
    same = classes is not CITYSCAPES_CLASSES and len(classes) == number
    return named_classes(classes.names if same else number)
