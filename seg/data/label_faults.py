"""Labels that the classes do not fit: the same sentences in every command, and labels of which nothing is scored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dem_apps.errors import InputError
from seg.data import rasters
from seg.data.files import evenly, find_labels
from seg.data.labels import IGNORE_INDEX, LABELS, ClassSet, Color, Ids, id_tables
from seg.data.layouts.layout import OWN_IDS, Layout
from seg.data.pixel_format import SIDEWAYS
from seg.data.read import label_colors, label_ids, palette_of, refuse_unknown
from seg.data.read_images import read_header

#: Most ids, or colours, that are proposed as classes.
MOST_IDS = 40
#: Labels, and pixels of labels, that are looked at before a training; more only until they hold two classes.
_LABELS, _PIXELS = 64, 1 << 27
#: Files with the same problem get a line each up to this number, and one line together beyond it; so do classes.
_MOST_ALIKE, _MOST_NAMES = 3, 5
#: By how much of it an image's and its label's width over height may differ.
_SHAPE = 0.05
_PATH = re.compile(r"[^:;,()]*/[^:;,()]*")


@dataclass
class FileReport:
    """Findings in one image and its label."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    size: tuple[int, int] | None = None  #: (width, height) of the image, where it could be read
    counts: NDArray[np.int64] | None = None  #: (C + 1,) pixels of each class and ignored ones; None without a label
    label: Path | None = None  #: its label image, where that could be read
    held: frozenset[int] = frozenset()  #: all ids of its label, without what the file calls no data
    unfit: bool = False  #: whether some of them are not in the table
    cityscapes: bool = False  #: whether its label's name or palette is that of Cityscapes' label ids
    colors: frozenset[Color] = frozenset()  #: of its label, where that is a picture and cannot be read as ids


def look_at_labels(
    title: str, files: Sequence[tuple[Path, Path]], classes: ClassSet, layout: Layout = OWN_IDS
) -> list[str]:
    """Warnings and notes about labels, called ``title``, of (image, label) files; of many files some are looked at.

    Raises InputError: a damaged label, an id of no class, labels that hold fewer than two classes.
    """
    reports, found = list[FileReport](), set[int]()
    pixels, spread = 0, evenly(range(len(files)), _LABELS)
    for place in (*spread, *sorted(set(range(len(files))) - set(spread))):
        if (len(reports) >= len(spread) or pixels > _PIXELS) and len(found) > 1:
            break
        reports.append(FileReport())
        ids = check_label(reports[-1], *files[place], classes, layout)
        if ids is None:
            raise InputError(reports[-1].errors[0])
        found |= _classes_of(reports[-1:], classes, layout)
        pixels += ids.size
    check_classes(reports, classes, layout)
    if refused := [error for report in reports for error in report.errors]:
        raise InputError(f"{title}: {refused[0]}")
    return list(lines(reports, title))


def labels_of(
    folder: Path, images: Sequence[Path], root: Path, classes: ClassSet
) -> tuple[dict[Path, Path], list[str]]:
    """The label images in ``--labels`` by image, a path below ``root``, of those that have one; and notes about them.

    Raises InputError: no label of any image, or labels of which no score can be computed.
    """
    places = find_labels(folder, images, root)
    files = {image: file for image, file in places.items() if file.is_file()}
    if not files:
        raise InputError(
            f"--labels: {folder} has no label of any image; that of {images[0]} would be {places[images[0]]}"
        )
    return files, look_at_labels("--labels", [(root / image, file) for image, file in files.items()], classes)


def check_label(
    report: FileReport, image: Path, label: Path, classes: ClassSet, layout: Layout = OWN_IDS
) -> Ids | None:
    """The train ids of an image's label, with what is to be said of them added to a report; None after an error."""
    try:
        ids, valid = label_ids(label, classes, layout, image)
        ground = rasters.other_ground(label, image)
    except InputError as error:
        report.errors.append(str(error))
        with suppress(InputError):
            report.colors = frozenset(label_colors(label, MOST_IDS))
        return None
    counted = ids if valid is None else ids[valid]
    report.held = frozenset(np.flatnonzero(np.bincount(counted.ravel(), minlength=256)).tolist())
    if not classes.by_color and (nodata := read_header(label).nodata) in classes.ids:
        name = f"'{classes.names[classes.ids.index(int(nodata or 0))]}'"
        said = f"{label}: {nodata:g} is the id of {name} and the file calls it no data; it is counted as {name}"
        report.warnings.append(said)
    report.label = label
    known = {each.color: each.id for each in LABELS}
    same = [label_id == known.get(color) for color, label_id in palette_of(label, report.held).items()]
    named = label.stem.endswith("_labelIds") or (len(same) > 1 and all(same))
    report.cityscapes = named and not classes.by_color
    if ground is not None:
        outside = f"; {(~valid).mean():.0%} of the image has no label" if valid is not None else ""
        report.notes.append(f"{label}: {ground}; it is read by the coordinates of both{outside}")
    _compare_shapes(report, image, label, (ids.shape[1], ids.shape[0]))
    try:
        refuse_unknown(label, counted.reshape(1, -1), classes, layout)
    except InputError as error:
        report.errors.append(str(error))
        report.unfit = True
        return None
    train_ids = id_tables(classes, layout.ids)[0][ids]
    return train_ids if valid is None else np.where(valid, train_ids, np.uint8(IGNORE_INDEX))


def _compare_shapes(report: FileReport, image: Path, label: Path, size: tuple[int, int]) -> None:
    """Adds a warning where a label, (width, height), is not turned as its image, or of another shape."""
    with suppress(InputError):  # of the image, which is said where it is read
        header = read_header(image)
        width, height = header.size
        fits = header.orientation in SIDEWAYS and (width - height) * (size[0] - size[1]) > 0
        if header.orientation not in (1, read_header(label).orientation) and not fits:
            report.warnings.append(
                f"{image}: is turned upright as its EXIF says (orientation {header.orientation}), and its label is "
                "read as it stands; if it was drawn on the pixels as they are stored, remove the orientation"
            )
        elif other_shape((width, height), size):
            report.warnings.append(
                f"{label}: the label is {size[0]}x{size[1]} pixels, its image {width}x{height}, which is another "
                "shape; it may be turned, or of another image"
            )


def other_shape(image: tuple[int, int], label: tuple[int, int]) -> bool:
    """Whether a label is no smaller or larger copy of its image, by (width, height) of both."""
    return abs(image[0] * label[1] - image[1] * label[0]) > _SHAPE * image[0] * label[1]


def check_classes(reports: Sequence[FileReport], classes: ClassSet, layout: Layout = OWN_IDS) -> bool:
    """Adds what all labels say together to the first report; whether the classes do not seem to fit."""
    fit = [report for report in reports if report.held and not report.unfit]
    if not fit:
        return False
    if layout.read_ids is None and not classes.by_color:
        _compare_palettes(fit)
    found = _classes_of(fit, classes, layout)
    absent = [f"'{name}'" for train_id, name in enumerate(classes.names) if train_id not in found]
    ignored = sum(IGNORE_INDEX in report.held for report in fit)
    unsaid = layout.ids is None and not classes.by_color and IGNORE_INDEX not in (*classes.ids, *classes.ignored)
    said: list[str] = []
    if absent and ignored and unsaid:
        said = [
            f"255 is in {ignored:,} of {len(fit):,} labels and ignored, since --classes does not name it, and "
            f"{absent[0]} is in none; if 255 is a class, give that class a row with id: 255 in a file, else list 255 "
            "there under ignored"
        ]
    elif absent:
        names = ", ".join(absent[:_MOST_NAMES]) + (", …" if len(absent) > _MOST_NAMES else "")
        fit[0].notes.append(f"no pixel of {len(fit):,} labels is {names}")
    if len(found) < 2:
        one = f"one class alone, '{classes.names[found.pop()]}'" if found else "no class"
        sentence = f"{len(fit):,} labels hold {one}, of which nothing can be learnt or scored"
        fit[0].errors.append("; ".join([sentence, *said]))
    else:
        fit[0].warnings += said
    return bool(said)


def _compare_palettes(reports: Sequence[FileReport]) -> None:
    """Adds an error where a colour has one id in a label's palette, and another in another's."""
    first: dict[Color, tuple[int, Path]] = {}
    for report in reports:
        if (label := report.label) is None:
            continue
        for color, label_id in palette_of(label, report.held).items():
            other, file = first.setdefault(color, (label_id, label))
            if other != label_id:
                report.errors.append(
                    f"{label}: the colour {list(color)} is id {label_id} in its palette and id {other} in that "
                    f"of {file}; where colours and not ids say the class, give classes with labels: colors"
                )
                return


def lines(reports: Iterable[FileReport], title: str) -> Iterator[str]:
    """A line for each problem; one line for many files with the same problem."""
    groups: dict[tuple[str, str], list[str]] = {}
    for report in reports:
        for kind, sentences in (("error", report.errors), ("warning", report.warnings), ("note", report.notes)):
            for sentence in sentences:
                groups.setdefault((kind, _PATH.sub("…", sentence)), []).append(sentence)
    for (kind, _), alike in groups.items():
        many = len(alike) > _MOST_ALIKE
        for line in [f"{len(alike):,} files, such as {alike[0]}"] if many else alike:
            yield f"{kind}: {title}: {line}"


def _classes_of(reports: Sequence[FileReport], classes: ClassSet, layout: Layout) -> set[int]:
    """The train ids of the classes in labels."""
    table = id_tables(classes, layout.ids)[0]
    return {int(table[label_id]) for report in reports for label_id in report.held} - {IGNORE_INDEX}
