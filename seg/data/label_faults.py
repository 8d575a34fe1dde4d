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
from seg.data.labels import IGNORE_INDEX, ClassSet, Color, Ids, id_tables
from seg.data.layouts.layout import OWN_IDS, Layout
from seg.data.numbering import Held, as_numbered, held_in, look, smoothed_edges, together
from seg.data.pixel_format import SIDEWAYS
from seg.data.read import label_ids, refuse_unknown, train_ids
from seg.data.read_images import read_header

#: Labels that are looked at before a training; all where these hold a single class.
_LABELS = 64
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
    #: (C + 1,) pixels of each class and ignored ones; None without a label
    counts: NDArray[np.int64] | None = None
    #: what its label holds, without what the file calls no data, where the classes fit it
    held: Held | None = None


def look_at_labels(
    title: str, files: Sequence[tuple[Path, Path]], classes: ClassSet, layout: Layout = OWN_IDS
) -> list[str]:
    """Warnings and notes about labels, called ``title``, of (image, label) files; of many files some are looked at.

    Raises InputError: a damaged label, an id of no class, labels that hold fewer than two classes.
    """
    reports = list[FileReport]()
    for some in (evenly(files, _LABELS), files):
        reports = [FileReport() for _ in some]
        for report, (image, label) in zip(reports, some, strict=True):
            if check_label(report, image, label, classes, layout) is None:
                raise InputError(report.errors[0])
        if (
            len(_classes_in([report.held for report in reports if report.held], classes, layout))
            > 1
        ):
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
        ids, valid = label_ids(label, classes, layout)
        rasters.refuse_other_ground(label, image)
        refuse_unknown(label, ids if valid is None else ids[valid], classes, layout)
    except InputError as error:
        report.errors.append(smoothed_edges(look(label, layout)) or str(error))
        return None
    report.held = held_in(label, ids, valid)
    if not classes.by_color and (nodata := read_header(label).nodata) in classes.ids:
        name = f"'{classes.names[classes.ids.index(int(nodata or 0))]}'"
        said = f"{label}: {nodata:g} is the id of {name} and the file calls it no data; it is counted as {name}"
        report.warnings.append(said)
    _compare_shapes(report, image, label, (ids.shape[1], ids.shape[0]))
    return train_ids(ids, valid, classes, layout)


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


def check_classes(
    reports: Sequence[FileReport], classes: ClassSet, layout: Layout = OWN_IDS
) -> bool:
    """Adds what all labels say together to the first report; whether the classes do not seem to fit."""
    held = [report.held for report in reports if report.held is not None]
    if not held:
        return False
    report, found = reports[0], _classes_in(held, classes, layout)
    if layout.read_ids is None and not classes.by_color:
        report.errors += _contradictions(held)[:1]
    absent = [f"'{name}'" for train_id, name in enumerate(classes.names) if train_id not in found]
    white = sum(each.pixels[IGNORE_INDEX] > 0 for each in held)
    unsaid = (
        layout.ids is None
        and not classes.by_color
        and IGNORE_INDEX not in (*classes.ids, *classes.ignored)
    )
    said = list[str]()
    if absent and white and unsaid:
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
    if len(found) < 2:
        one = f"one class alone, '{classes.names[found.pop()]}'" if found else "no class"
        sentence = f"{len(held):,} labels hold {one}, of which nothing can be learnt or scored"
        report.errors.append("; ".join([sentence, *said]))
    else:
        report.warnings += said
    return bool(said)


def _contradictions(held: Sequence[Held]) -> list[str]:
    """Sentences about colours that have one id in a label's palette, and another in another's."""
    first: dict[Color, tuple[int, Path]] = {}
    return [
        f"{each.file}: the colour {list(color)} is id {label_id} in its palette and id {first[color][0]} in that of "
        f"{first[color][1]}; where colours and not ids say the class, give classes with labels: colors"
        for each in held
        for color, label_id in sorted(each.palette)
        if first.setdefault(color, (label_id, each.file))[0] != label_id
    ]


def lines(reports: Iterable[FileReport], title: str) -> Iterator[str]:
    """A line for each problem; one line for many files with the same problem."""
    groups: dict[tuple[str, str], list[str]] = {}
    for report in reports:
        for kind, sentences in (
            ("error", report.errors),
            ("warning", report.warnings),
            ("note", report.notes),
        ):
            for sentence in sentences:
                groups.setdefault((kind, _PATH.sub("…", sentence)), []).append(sentence)
    for (kind, _), alike in groups.items():
        many = len(alike) > _MOST_ALIKE
        for line in [f"{len(alike):,} files, such as {alike[0]}"] if many else alike:
            yield f"{kind}: {title}: {line}"


def _classes_in(held: Sequence[Held], classes: ClassSet, layout: Layout) -> set[int]:
    """The train ids of the classes that labels hold."""
    train_ids_held = id_tables(classes, layout.ids)[0][together(held).pixels > 0]
    return set(train_ids_held.tolist()) - {IGNORE_INDEX}
