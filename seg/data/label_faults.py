"""Labels that the classes do not fit, and labels that give nothing to score.

Every command says the same sentences about them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dem_apps.errors import InputError
from seg.data.files import evenly, find_labels
from seg.data.labels import IGNORE_INDEX, ClassSet, Ids, id_tables
from seg.data.layouts.layout import OWN_IDS, Layout
from seg.data.numbering import Held, as_numbered, held_in, look, smoothed_edges
from seg.data.pixel_format import SIDEWAYS, Counts
from seg.data.read_images import read_header
from seg.data.read_labels import label_pixels, refuse_other_ground, refuse_unknown, train_ids

#: Number of labels that are looked at before a training; all are where these hold a single class.
_LABELS = 64
#: Files with the same problem get a line each up to this number, and one line together beyond it.
_MOST_ALIKE = 3
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
    counts: Counts | None = None
    #: values of its label, without those that the file calls no data, where the classes fit it
    held: Held | None = None

    #: whether 255, which no class has, may be a class of all labels together
    white: bool = False

    @property
    def fits(self) -> bool:
        """True unless the classes do not fit its label."""
        return not self.white and (not self.errors or self.held is not None)


def look_at_labels(
    title: str, files: Sequence[tuple[Path, Path]], classes: ClassSet, layout: Layout = OWN_IDS
) -> list[str]:
    """Return warnings and notes about labels.

    Some labels are looked at, and all where these hold a single class.

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
    for report in reports:
        if report.errors:
            raise InputError(f"{title}: {report.errors[0]}")
    return list(lines(reports, title))


def labels_of(
    folder: Path, images: Sequence[Path], root: Path, classes: ClassSet
) -> tuple[dict[Path, Path], Layout, list[str]]:
    """Return the label images in ``--labels``, their numbering, and notes about them.

    The label images are keyed by image, a path below ``root``.

    Raises:
        InputError: no label of any image, or labels that give no score.
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
    """Return the train ids of an image's label, or None after an error.

    Findings about it are added to the report.
    """
    try:
        pixels = label_pixels(label, classes, layout)
        refuse_other_ground(label, pixels, image)
        refuse_unknown(label, pixels, classes, layout)
    except InputError as error:
        report.errors.append(smoothed_edges(look(label, layout)) or str(error))
        return None
    report.held = held_in(label, pixels)
    height, width = pixels.ids.shape
    with suppress(InputError):  # the reading of the image says it
        header = read_header(image)
        size, sentence = header.size, f"{label}: the label is {width}x{height} pixels, its image "
        if size == (height, width) and header.orientation in SIDEWAYS:
            report.errors.append(
                f"{sentence}{size[0]}x{size[1]}, turned by its EXIF tag; turn the label likewise, or remove the tag"
            )
        elif size != (width, height):
            report.warnings.append(f"{sentence}{size[0]}x{size[1]}")
    return train_ids(pixels, classes, layout)


def check_classes(
    reports: Sequence[FileReport], classes: ClassSet, layout: Layout = OWN_IDS
) -> None:
    """Add the findings about all labels together to the first report."""
    labels = [report.held for report in reports if report.held is not None]
    if not labels:
        return
    report = reports[0]
    present = _classes_in(reports, classes, layout)
    absent = [f"'{name}'" for index, name in enumerate(classes.names) if index not in present]
    white = _white(labels, absent, classes, layout)
    report.white = bool(white)
    if len(present) < 2:
        one = f"one class alone, '{classes.names[present.pop()]}'" if present else "no class"
        sentence = f"{len(labels):,} labels hold {one}, of which nothing can be learnt or scored"
        report.errors.append("; ".join(filter(None, (sentence, white))))
    elif white:
        report.warnings.append(white)
    elif absent:
        report.notes.append(f"no pixel of {len(labels):,} labels is {', '.join(absent)}")


def _white(labels: Sequence[Held], absent: Sequence[str], classes: ClassSet, layout: Layout) -> str:
    """Return a sentence about 255 in labels that may be an absent class; empty where it is none."""
    number = sum(each.pixels[IGNORE_INDEX] > 0 for each in labels)
    named = layout.ids or classes.by_color or IGNORE_INDEX in (*classes.ids, *classes.ignored)
    if named or not absent or not number:
        return ""
    return (
        f"255 is in {number:,} of {len(labels):,} labels and ignored, since --classes does not name it, and "
        f"{absent[0]} is in none; if it is a class, give that class a row with id: 255 in a file, else list 255 "
        "there under ignored"
    )


def lines(reports: Iterable[FileReport], title: str) -> Iterator[str]:
    """Yield a line for each problem, and one line for many files with the same problem."""
    groups: dict[tuple[str, str], list[str]] = {}
    for report in reports:
        sentences = {"error": report.errors, "warning": report.warnings, "note": report.notes}
        for kind, some in sentences.items():
            for sentence in some:
                groups.setdefault((kind, _PATH.sub("…", sentence)), []).append(sentence)
    for (kind, _), alike in groups.items():
        if len(alike) > _MOST_ALIKE:
            alike = [f"{len(alike):,} files, such as {alike[0]}"]
        yield from (f"{kind}: {title}: {sentence}" for sentence in alike)


def _classes_in(reports: Sequence[FileReport], classes: ClassSet, layout: Layout) -> set[int]:
    """Return the train ids of the classes that labels hold."""
    table, _ = id_tables(classes, layout.ids)
    present = set[int]()
    for report in reports:
        if report.held is not None:
            present.update(table[report.held.pixels > 0].tolist())
    return present - {IGNORE_INDEX}
