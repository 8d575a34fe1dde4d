"""Labels that the classes do not fit: the same sentences in every command, and labels of which nothing is scored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dem_apps.errors import InputError
from seg.data.files import evenly, find_labels
from seg.data.labels import IGNORE_INDEX, ClassSet, Ids, id_tables
from seg.data.layouts.layout import OWN_IDS, Layout
from seg.data.numbering import Held, as_numbered, held_in, look, smoothed_edges, together
from seg.data.read_images import read_header
from seg.data.read_labels import label_pixels, refuse_other_ground, refuse_unknown, train_ids

#: Labels that are looked at before a training; all where these hold a single class.
_LABELS = 64
#: Files with the same problem get a line each up to this number, and one line together beyond it; so do classes.
_MOST_ALIKE, _MOST_NAMES = 3, 5
_PATH = re.compile(r"[^:;,()]*/[^:;,()]*")


@dataclass
class FileReport:
    """Findings in one image and its label."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: least and largest number of each band; None of 8-bit RGB
    ranges: list[tuple[float, float]] | None = None
    #: (C + 1,) pixels of each class and ignored ones; None without a label
    counts: NDArray[np.int64] | None = None
    #: what its label holds, without what the file calls no data, where the classes fit it
    held: Held | None = None


def look_at_labels(
    title: str, files: Sequence[tuple[Path, Path]], classes: ClassSet, layout: Layout = OWN_IDS
) -> list[str]:
    """Warnings and notes about labels, of which some are looked at, and all where these hold a single class.

    Args:
        title: what the labels are called.
        files: (image, label) of each.
        classes: the classes that the labels are to hold.
        layout: says how labels are read.

    Raises:
        InputError: a damaged label, an id of no class, labels that hold fewer than two classes.
    """
    reports = list[FileReport]()
    for some in (evenly(files, _LABELS), files):
        reports = [FileReport() for _ in some]
        for report, (image, label) in zip(reports, some, strict=True):
            if check_label(report, image, label, classes, layout) is None:
                raise InputError(report.errors[0])
        if len(_classes_in(reports, classes, layout)) > 1:
            break
    check_classes(reports, classes, layout)
    if refused := [error for report in reports for error in report.errors]:
        raise InputError(f"{title}: {refused[0]}")
    return list(lines(reports, title))


def labels_of(
    folder: Path, images: Sequence[Path], root: Path, classes: ClassSet
) -> tuple[dict[Path, Path], Layout, list[str]]:
    """The label images in ``--labels`` by image, a path below ``root``, their numbering, and notes about them.

    Raises InputError: no label of any image, or labels of which no score can be computed.
    """
    places = find_labels(folder, images, root)
    files = {image: file for image, file in places.items() if file.is_file()}
    if not files:
        raise InputError(
            f"--labels: {folder} has no label of any image; that of {images[0]} would be {places[images[0]]}"
        )
    layout, notes = as_numbered(list(files.values()), classes, OWN_IDS)
    pairs = [(root / image, file) for image, file in files.items()]
    about = [f"note: --labels: {note}" for note in notes]
    return files, layout, about + look_at_labels("--labels", pairs, classes, layout)


def check_label(
    report: FileReport, image: Path, label: Path, classes: ClassSet, layout: Layout = OWN_IDS
) -> Ids | None:
    """The train ids of an image's label; adds what is to be said of them to a report. None after an error."""
    try:
        read = label_pixels(label, classes, layout)
        refuse_other_ground(label, read, image)
        ids, valid = read.ids, read.valid
        refuse_unknown(label, ids if valid is None else ids[valid], classes, layout)
    except InputError as error:
        report.errors.append(smoothed_edges(look(label, layout)) or str(error))
        return None
    report.held = held_in(label, read)
    _compare_sizes(report, image, label, ids)
    return train_ids(ids, valid, classes, layout)


def _compare_sizes(report: FileReport, image: Path, label: Path, ids: Ids) -> None:
    try:
        width, height = read_header(image).size
    except InputError:
        return  # which is said where the image is read
    if ids.shape != (height, width):
        report.warnings.append(
            f"{label}: the label is {ids.shape[1]}x{ids.shape[0]} pixels, its image {width}x{height}"
        )


def check_classes(
    reports: Sequence[FileReport], classes: ClassSet, layout: Layout = OWN_IDS
) -> bool:
    """Adds what all labels say together to the first report; whether the classes do not seem to fit."""
    held = [report.held for report in reports if report.held is not None]
    if not held:
        return False
    report, found, said = reports[0], _classes_in(reports, classes, layout), list[str]()
    absent = [f"'{name}'" for train_id, name in enumerate(classes.names) if train_id not in found]
    if absent and (white := _unnamed_white(held, classes, layout)):
        said = [
            f"255 is in {white:,} of {len(held):,} labels and ignored, since --classes does not name it, and "
            f"{absent[0]} is in none; if 255 is a class, give that class a row with id: 255 in a file, else list 255 "
            "there under ignored"
        ]
    elif absent:
        more = ", …" * (len(absent) > _MOST_NAMES)
        report.notes.append(
            f"no pixel of {len(held):,} labels is {', '.join(absent[:_MOST_NAMES])}{more}"
        )
    if len(found) > 1:
        report.warnings += said
        return bool(said)
    one = f"one class alone, '{classes.names[found.pop()]}'" if found else "no class"
    sentence = f"{len(held):,} labels hold {one}, of which nothing can be learnt or scored"
    report.errors.append("; ".join([sentence, *said]))
    return bool(said)


def _unnamed_white(held: Sequence[Held], classes: ClassSet, layout: Layout) -> int:
    """The number of labels with 255, where nothing says whether it is a class."""
    if layout.ids is not None or classes.by_color:
        return 0
    if IGNORE_INDEX in (*classes.ids, *classes.ignored):
        return 0
    return sum(each.pixels[IGNORE_INDEX] > 0 for each in held)


def lines(reports: Iterable[FileReport], title: str) -> Iterator[str]:
    """A line for each problem; one line for many files with the same problem."""
    groups: dict[tuple[str, str], list[str]] = {}
    for report in reports:
        kinds = {"error": report.errors, "warning": report.warnings, "note": report.notes}
        for kind, sentences in kinds.items():
            for sentence in sentences:
                groups.setdefault((kind, _PATH.sub("…", sentence)), []).append(sentence)
    for (kind, _), alike in groups.items():
        many = len(alike) > _MOST_ALIKE
        for line in [f"{len(alike):,} files, such as {alike[0]}"] if many else alike:
            yield f"{kind}: {title}: {line}"


def _classes_in(reports: Sequence[FileReport], classes: ClassSet, layout: Layout) -> set[int]:
    """The train ids of the classes that labels hold."""
    held = [report.held for report in reports if report.held is not None]
    if not held:
        return set()
    train_ids_held = id_tables(classes, layout.ids)[0][together(held).pixels > 0]
    return set(train_ids_held.tolist()) - {IGNORE_INDEX}
