"""``python -m seg.data check``: lists every fault of the files, and proposes the class file that reads the labels.

An *error* stops training at some step; a *warning* does not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from dem_apps.errors import InputError
from dem_apps.runtime import progress
from seg.data.datasets import SegmentationDataset
from seg.data.domains import DomainPair
from seg.data.files import missing_label
from seg.data.found_classes import class_file, fitting_classes, other_ids
from seg.data.label_faults import FileReport, check_classes, check_label, lines, other_shape
from seg.data.labels import IGNORE_INDEX
from seg.data.pixel_format import Mask, PixelFormat
from seg.data.read_images import ImagePixels, left_out, read_header, read_image
from seg.data.statistics import each_file, few, measured_format, undeclared_fill

#: An image is nearly blank when 98 % of its pixels lie within so many of the 256 grey levels.
BLANK_RANGE = 8


def check_pair(pair: DomainPair, workers: int = 0, console: Console | None = None) -> int:
    """Look at every file, print what is wrong and what is there; returns the number of images with a problem."""
    console = console or progress.console(soft_wrap=True, highlight=False)
    reports: dict[str, list[FileReport]] = {}
    unfit, numbered = False, any(dataset.layout.ids is not None for dataset in pair.splits().values())
    if pair.layouts_found():
        console.print(f"note: {pair.layouts_found()}")
    for title, dataset, indices in _work(pair):
        check = functools.partial(check_file, dataset)
        reports[title] = list(each_file(check, indices, workers, f"checking {title}"))
        unfit |= check_classes(reports[title], pair.classes, dataset.layout)
        unfit |= any(report.unfit for report in reports[title])
        unfit |= dataset.labelled and not numbered and other_ids(reports[title], pair.classes)
        notes = [f"note: {title}: {note}" for note in dataset.notes]
        for line in [*notes, *lines(reports[title], title)]:
            console.print(line)
    if not pair.target_val.labelled:
        root = pair.target_val.root
        console.print(f"note: target val: {root}: no labels, so training gives the unsupervised scores alone")
    _print_classes(reports, pair.classes.names, console)
    checked = [report for split in reports.values() for report in split]
    try:
        if (fitting := fitting_classes(checked, pair.classes, unfit)) is not None:
            console.print(class_file(checked, pair.classes, fitting))
    except InputError as error:
        console.print(str(error))
    units = list[str]()
    if not pair.pixels.is_rgb:
        with suppress(InputError):  # of an image, which is said where it is read
            units = pair.other_units(measured_format(few(pair.labelled[0].images), pair.pixels)[0])
    for line in units:
        console.print(line)
    wrong = len(units) + sum(1 for report in checked if report.errors or report.warnings)
    found = f"{wrong:,} of {len(checked):,} images have a problem" if wrong else f"{len(checked):,} images checked"
    rest = "; 'exclude' of source or target leaves images out" if wrong else ", nothing wrong"
    console.print(f"{found}{pair.left_out()}{rest}")
    return wrong


def _work(pair: DomainPair) -> Iterator[tuple[str, SegmentationDataset, list[int]]]:
    """Titles, data sets and the samples to look at; labelled target images once, with their labels."""
    labelled = set() if pair.target_labelled is None else set(pair.target_labelled.images)
    for title, dataset in pair.splits().items():
        indices = list(range(len(dataset)))
        if title == "target train" and labelled:
            title, indices = "other target train", [i for i in indices if dataset.files[i][0] not in labelled]
        yield title, dataset, indices


def check_file(dataset: SegmentationDataset, index: int) -> FileReport:
    """Look at one image and, in a labelled data set, its label, both at their own size."""
    image_file, label_file = dataset.files[index]
    report = FileReport()
    if image_file.stem in dataset.layout.known_bad:
        report.notes.append(f"{image_file}: known to be bad in the data set as published; better excluded")
    valid = None
    try:
        header = read_header(image_file)
        image = read_image(image_file, dataset.pixels)
        report.size, valid = (image.values.shape[1], image.values.shape[0]), image.valid
        if (note := left_out(image_file, header, dataset.pixels)) is not None:
            report.notes.append(note)
        if valid is not None and not valid.any():
            report.warnings.append(f"{image_file}: no pixel of the image holds data")
        elif not dataset.pixels.is_rgb and (fill := undeclared_fill(image.values, image.valid)) is not None:
            report.warnings.append(f"{image_file}: {fill}")
        elif _is_blank(image, dataset.pixels):
            report.warnings.append(f"{image_file}: the image is blank or nearly so")
    except InputError as error:
        report.errors.append(str(error))
    if label_file is not None:
        if label_file.is_file():
            _check_label(report, dataset, image_file, label_file, valid)
        else:
            report.errors.append(missing_label(image_file, label_file))
    return report


def _check_label(report: FileReport, dataset: SegmentationDataset, image: Path, file: Path, valid: Mask) -> None:
    ids = check_label(report, image, file, dataset.classes, dataset.layout)
    if ids is None:
        return
    size = (ids.shape[1], ids.shape[0])
    if report.size is not None and size != report.size and not other_shape(report.size, size):
        happens = "it is resized to its image" if dataset.resize_labels else "scores are taken at the label's size"
        sizes = f"{size[0]}x{size[1]} pixels, its image {report.size[0]}x{report.size[1]}"
        report.warnings.append(f"{file}: the label is {sizes}; {happens}")
    if valid is not None and valid.shape == ids.shape:  # as training sees it
        ids = np.where(valid, ids, np.uint8(IGNORE_INDEX))
    pixels = np.bincount(ids.ravel(), minlength=256)
    report.counts = np.append(pixels[: len(dataset.classes)], pixels[IGNORE_INDEX])
    if not report.counts[:-1].any():
        report.warnings.append(f"{file}: every pixel of the label is ignored")


def _is_blank(image: ImagePixels, pixels: PixelFormat) -> bool:
    if not pixels.is_rgb:
        seen = (image.values if image.valid is None else image.values[image.valid]).reshape(-1, pixels.bands)
        return bool((seen.min(0) == seen.max(0)).all())
    counts = np.cumsum(Image.fromarray(image.values).convert("L").histogram())
    low, high = np.searchsorted(counts, [0.01 * counts[-1], 0.99 * counts[-1]])
    return bool(high - low < BLANK_RANGE)


def _print_classes(reports: dict[str, list[FileReport]], names: tuple[str, ...], console: Console) -> None:
    """Share of each class among the pixels that count, and the number of images that have it."""
    header, rows = ["class"], [[name] for name in (*names, "(ignored)")]
    for title in ("source train", "labelled target train", "target val"):
        if title in reports:
            header += [f"{title}, %", "images"]
            readable = [file.counts for file in reports[title] if file.counts is not None]
            counts = np.array(readable) if readable else np.zeros((1, len(rows)), np.int64)
            for place, row in enumerate(rows):
                total = counts.sum() if place == len(names) else counts[:, :-1].sum()
                row += [f"{100 * counts[:, place].sum() / max(total, 1):.2f}", f"{(counts[:, place] > 0).sum():,}"]
    progress.print_table("pixels and images of each class", header, [*rows[:-1], [], rows[-1]], screen=console)
