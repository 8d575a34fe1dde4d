"""``python -m seg.data check``: every fault of the files before any training, and the class file that reads the labels.

An *error* stops training at some step; a *warning* does not. Of the target's training labels those of the labelled part
are opened, and no others: adaptation never sees them.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.table import Table

from dem_apps.errors import InputError, printable
from dem_apps.runtime.images import opened_image
from seg.data.datasets import SegmentationDataset
from seg.data.domains import DomainPair
from seg.data.labels import CITYSCAPES_CLASSES, IGNORE_INDEX, ClassSet, spans
from seg.data.pixel_format import PixelFormat
from seg.data.rasters import available, held_ids, is_tiff
from seg.data.read import Color, ImagePixels, label_colors, left_out, read_header, read_image
from seg.data.statistics import each_file

#: An image is nearly blank when 98 % of its pixels lie within so many of the 256 grey levels.
BLANK_RANGE = 8
#: Files that have one and the same problem get a line each up to this number, and beyond it one together.
_MOST_ALIKE = 3
#: Ids, or colours, that are listed as classes at most.
_MOST_IDS = 40


@dataclass
class FileReport:
    """What was found in one image and its label.

    Args:
        errors: sentences about what stops training.
        warnings: sentences about what does not.
        notes: sentences about nothing wrong.
        size: (width, height) of the image, where it could be read.
        counts: (C + 1,) pixels of each class and, last, ignored ones; None without a readable label.
        unknown: ids of its label that are not in the table.
        held: all ids that its label holds, without what the file calls no data.
        colors: of its label, where that cannot be read as it is meant and is a picture.
        no_data: numbers in its label that the file calls no data.
    """

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    size: tuple[int, int] | None = None
    counts: NDArray[np.int64] | None = None
    unknown: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()
    colors: frozenset[Color] = frozenset()
    no_data: frozenset[int] = frozenset()


def check_pair(pair: DomainPair, workers: int = 0, console: Console | None = None) -> int:
    """Look at every file, print what is wrong and what is there; returns the number of images with a problem.

    Args:
        pair: opened with ``labels_must_exist=False``, so that missing labels are listed one by one.
        workers: processes that read.
        console: where to print.
    """
    console = console or Console(soft_wrap=True, markup=False, emoji=False)
    reports: dict[str, list[FileReport]] = {}
    unfit = False
    for title, dataset, indices in _work(pair):
        check = functools.partial(_check_one_of, dataset, indices)
        reports[title] = list(each_file(check, len(indices), workers, f"checking {title}"))
        unfit |= _warn_of_ignored(reports[title], dataset) or any(report.unknown for report in reports[title])
        _print_lines(reports[title], dataset.root, title, console)
    if not pair.target_val.labelled:
        root = pair.target_val.root
        note = FileReport(notes=[f"{root}: no labels, so a training gives the scores that need none"])
        _print_lines([note], root, "target val", console)
    console.print(_overview(reports))
    console.print(_class_table(reports, pair.classes.names))
    checked = [report for split in reports.values() for report in split]
    if (advice := _fitting_classes(checked, pair.classes, unfit)) is not None:
        console.print(advice, markup=False, emoji=False, highlight=False)
    wrong = sum(1 for report in checked if report.errors or report.warnings)
    if wrong:
        console.print(
            f"{wrong:,} of {len(checked):,} images have a problem; 'exclude' of source or target leaves images out"
        )
    else:
        console.print(f"{len(checked):,} images checked, nothing wrong")
    return wrong


def _work(pair: DomainPair) -> Iterator[tuple[str, SegmentationDataset, list[int]]]:
    """Titles, data sets and the samples to look at: those of the target that are labelled once, with their labels."""
    labelled = set() if pair.target_labelled is None else {image for image, _ in pair.target_labelled.files}
    for title, dataset in pair.splits().items():
        indices = list(range(len(dataset)))
        if title == "target train" and labelled:
            title, indices = "other target train", [i for i in indices if dataset.files[i][0] not in labelled]
        yield title, dataset, indices


def _check_one_of(dataset: SegmentationDataset, indices: list[int], place: int) -> FileReport:
    return check_file(dataset, indices[place])


def check_file(dataset: SegmentationDataset, index: int) -> FileReport:
    """Look at one image and, in a labelled data set, its label, both at their own size."""
    image_file, label_file = dataset.files[index]
    report = FileReport()
    if image_file.stem in dataset.layout.known_bad:
        report.notes.append(
            f"{image_file}: known to be bad in the data set as published (nearly blank, or of another size than its "
            "label); better excluded"
        )
    valid = None
    try:
        header = read_header(image_file)
        image = read_image(image_file, dataset.pixels)
        report.size, valid = (image.values.shape[1], image.values.shape[0]), image.valid
        report.warnings += _damage(image_file)
        if (note := left_out(image_file, header, dataset.pixels)) is not None:
            report.notes.append(note)
        if label_file is not None and image.turned != 1:
            report.warnings.append(
                f"{image_file}: is turned upright as its EXIF says (orientation {image.turned}), and its label "
                "is read as it stands; if it was drawn on the pixels as they are stored, remove the orientation"
            )
        if image.valid is not None and not image.valid.any():
            report.warnings.append(f"{image_file}: no pixel of the image holds data")
        elif _is_blank(image, dataset.pixels):
            report.warnings.append(f"{image_file}: the image is blank or nearly so")
    except InputError as error:
        report.errors.append(str(error))
    if label_file is not None:
        _check_label(dataset, image_file, label_file, report, valid)
    return report


def _check_label(
    dataset: SegmentationDataset, image_file: Path, file: Path, report: FileReport, valid: NDArray[np.bool_] | None
) -> None:
    if not file.is_file():
        report.errors.append(f"{image_file}: its label {file} is missing")
        return
    try:
        ids = dataset.read_ids(file)
    except InputError as error:
        report.errors.append(str(error))
        with suppress(InputError):
            report.colors = frozenset(label_colors(file, _MOST_IDS))
        return
    report.warnings += _damage(file)
    size = (ids.shape[1], ids.shape[0])
    if report.size is not None and size != report.size:
        happens = "it is resized to its image" if dataset.resize_labels else "scores are taken at the label's size"
        report.warnings.append(
            f"{file}: the label is {size[0]}x{size[1]} pixels, its image {report.size[0]}x{report.size[1]}; {happens}"
        )
    pixels = np.bincount(ids.ravel(), minlength=256)
    unknown = (pixels > 0) & ~dataset.known_ids
    report.unknown = frozenset(np.flatnonzero(unknown).tolist())
    report.held = frozenset(np.flatnonzero(pixels).tolist())
    if IGNORE_INDEX in report.held and is_tiff(file) and available() and not dataset.classes.by_color:
        report.held, report.no_data = held_ids(file)
    if unknown.any():
        report.errors.append(
            f"{file}: label id {spans(unknown)} is not in the table, which has {spans(dataset.known_ids)}"
        )
        return
    if valid is not None and valid.shape == ids.shape:  # as training sees it
        pixels = np.bincount(np.where(valid, ids, IGNORE_INDEX).ravel(), minlength=256)
    per_train_id = np.bincount(dataset.train_ids, weights=pixels, minlength=256).astype(np.int64)
    report.counts = np.append(per_train_id[: len(dataset.classes)], per_train_id[IGNORE_INDEX])
    if not report.counts[:-1].any():
        report.warnings.append(f"{file}: every pixel of the label is ignored")


def _damage(file: Path) -> list[str]:
    """A sentence when checksums inside the file do not fit, although its pixels could be decoded."""
    if is_tiff(file):
        return []  # has no checksums
    with opened_image(file) as picture:
        try:
            picture.verify()
        except (OSError, SyntaxError, ValueError) as error:
            return [f"{file}: can be decoded, but is damaged or cut short ({error})"]
    return []


def _is_blank(image: ImagePixels, pixels: PixelFormat) -> bool:
    if not pixels.is_rgb:
        seen = (image.values if image.valid is None else image.values[image.valid]).reshape(-1, pixels.bands)
        return bool((seen.min(0) == seen.max(0)).all())
    counts = np.cumsum(Image.fromarray(image.values).convert("L").histogram())
    low, high = np.searchsorted(counts, [0.01 * counts[-1], 0.99 * counts[-1]])
    return bool(high - low < BLANK_RANGE)


def _warn_of_ignored(reports: list[FileReport], dataset: SegmentationDataset) -> bool:
    """A warning at the first label with 255, where the classes do not mention it and one of them is in no label."""
    classes = dataset.classes
    if dataset.layout.ids is not None or classes.by_color or IGNORE_INDEX in (*classes.ids, *classes.ignored):
        return False
    held = frozenset[int]().union(*(report.held for report in reports))
    absent = [name for name, label_id in zip(classes.names, classes.ids, strict=True) if label_id not in held]
    ignored = [report for report in reports if IGNORE_INDEX in report.held]
    if not absent or not ignored:
        return False
    ignored[0].warnings.append(
        f"255 is in {len(ignored):,} of {len(reports):,} labels and ignored, since --classes does not name it, and "
        f"'{absent[0]}' is in none; if 255 is a class, give that class a row with id: 255 in a file, else list 255 "
        "there under ignored"
    )
    return True


def _fitting_classes(reports: list[FileReport], classes: ClassSet, unfit: bool) -> str | None:
    """A class file for labels that the classes do not fit, with their names where there are as many."""
    colors = frozenset[Color]().union(*(report.colors for report in reports))
    held = frozenset[int]().union(*(report.held for report in reports))
    no_data = frozenset[int]().union(*(report.no_data for report in reports))
    if len(colors) > _MOST_IDS:
        return (
            f"the labels are pictures in more than {_MOST_IDS} colours: no masks, or some that were smoothed, "
            "resized or saved as JPEG; save one colour per class, as PNG"
        )
    if len(colors) > 1:
        rows = [f"color: {list(color)}" for color in sorted(colors)]
        return (
            f"the labels are pictures in {len(colors)} colours; {_proposal(classes, rows)} (--classes "
            "FILE; a colour that nothing counts goes to a list 'ignored' instead):\n\n"
            f"labels: colors\nclasses:\n{_rows(rows, classes)}"
        )
    others = held - {IGNORE_INDEX}
    # 255 is a class where the names count it, or where hardly anything else could be one
    ids = sorted(held if len(held) == len(classes) or len(others) < 2 else others)
    if not unfit or not 2 <= len(ids) <= _MOST_IDS:
        return None
    beside = f", and {', '.join(map(str, sorted(no_data)))} as no data, which is ignored" if no_data else ""
    rows = [f"id: {label_id}" for label_id in ids]
    return (
        f"the labels hold the ids {', '.join(map(str, sorted(held)))}{beside}; {_proposal(classes, rows)} "
        f"(--classes FILE):\n\nclasses:\n{_rows(rows, classes)}"
    )


def _names(classes: ClassSet, rows: list[str]) -> list[str] | None:
    """Those that were given, where there are as many."""
    return list(classes.names) if classes is not CITYSCAPES_CLASSES and len(classes) == len(rows) else None


def _proposal(classes: ClassSet, rows: list[str]) -> str:
    if _names(classes, rows) is None:
        return "with names of yours this file reads them"
    return "this file reads them, if your names are in this order"


def _rows(rows: list[str], classes: ClassSet) -> str:
    names = _names(classes, rows) or [f"class {place}" for place in range(len(rows))]
    return "".join(f"- {{name: {_quoted(name)}, {row}}}\n" for name, row in zip(names, rows, strict=True))


def _quoted(name: str) -> str:
    """A name as YAML has it: ``no`` alone would be false."""
    plain = re.fullmatch(r"[^\W\d][\w -]*", name) and isinstance(yaml.safe_load(name), str)
    return name if plain else json.dumps(name, ensure_ascii=False)


def _print_lines(reports: list[FileReport], root: Path, title: str, console: Console) -> None:
    """A line for each problem, and one for all files that have the same if these are many."""
    groups: dict[tuple[str, str], list[str]] = {}
    within = re.compile(re.escape(str(root)) + r"[^:;,()]*")
    for report in reports:
        for kind, sentences in (("error", report.errors), ("warning", report.warnings), ("note", report.notes)):
            for sentence in sentences:
                groups.setdefault((kind, within.sub("…", sentence)), []).append(sentence)
    for (kind, _), sentences in groups.items():
        lines = sentences
        if len(sentences) > _MOST_ALIKE:
            lines = [f"{len(sentences):,} files, such as {sentences[0]}"]
        for line in lines:
            console.print(f"{kind}: {title}: {printable(line)}", markup=False, emoji=False, highlight=False)


def _overview(reports: dict[str, list[FileReport]]) -> Table:
    table = Table("split", "images", "with errors", "with warnings", "sizes", title="files")
    for title, files in reports.items():
        sizes = Counter(file.size for file in files if file.size is not None).most_common()
        texts = [f"{width}x{height}: {count:,}" for (width, height), count in sizes[:3]]
        if len(sizes) > 3:
            texts.append(f"{len(sizes) - 3} other sizes: {sum(count for _, count in sizes[3:]):,}")
        errors, warnings = sum(bool(file.errors) for file in files), sum(bool(file.warnings) for file in files)
        table.add_row(title, f"{len(files):,}", f"{errors:,}", f"{warnings:,}", "\n".join(texts))
    return table


def _class_table(reports: dict[str, list[FileReport]], names: tuple[str, ...]) -> Table:
    """Share of each class among the pixels that count, and the number of images that have it."""
    columns: dict[str, NDArray[np.int64]] = {}
    for title in ("source train", "labelled target train", "target val"):
        if title not in reports:
            continue
        readable = [file.counts for file in reports[title] if file.counts is not None]
        columns[title] = np.array(readable) if readable else np.zeros((1, len(names) + 1), np.int64)
    table = Table("class", title="pixels and images of each class")
    for title in columns:
        table.add_column(f"{title}, %", justify="right")
        table.add_column("images", justify="right")
    for row, name in enumerate((*names, "(ignored)")):
        cells = []
        for counts in columns.values():
            total = counts.sum() if row == len(names) else counts[:, :-1].sum()
            share = 100 * counts[:, row].sum() / max(total, 1)
            cells += [f"{share:.2f}", f"{(counts[:, row] > 0).sum():,}"]
        if row == len(names):
            table.add_section()
        table.add_row(name, *cells)
    return table
