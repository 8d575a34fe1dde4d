"""``python -m seg.data check``: lists every fault of the files, and proposes the class file that reads the labels.

Data sets, classes and labels are found and judged by the functions that training calls: an *error* stops training at
some step; a *warning* does not.
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
from seg.data.files import evenly
from seg.data.found_classes import found_classes
from seg.data.label_faults import FileReport, check_classes, check_label, lines, other_shape
from seg.data.labels import IGNORE_INDEX, ClassSet
from seg.data.pixel_format import Mask, PixelFormat
from seg.data.read_images import ImagePixels, left_out, read_header, read_image
from seg.data.statistics import FEW, counts_of, each_file, measured_format, undeclared_fill

#: An image is nearly blank when 98 % of its pixels lie within so many of the 256 grey levels.
BLANK_RANGE = 8


def check_pair(pair: DomainPair, workers: int = 0, console: Console | None = None) -> int:
    """Look at every file, print what is wrong and what is there; returns the number of images with a problem."""
    console = console or progress.console(soft_wrap=True, highlight=False)
    reports: dict[str, list[FileReport]] = {}
    unfit = list[SegmentationDataset]()
    for line in ([f"note: {pair.layouts_found()}"] if pair.layouts_found() else []) + list(
        pair.notes
    ):
        console.print(line)
    for title, dataset, indices in _work(pair):
        check = functools.partial(check_file, dataset)
        reports[title] = [FileReport(warnings=[sentence]) for sentence in dataset.left_out]
        reports[title] += each_file(check, indices, workers, f"checking {title}")
        unsaid = check_classes(reports[title], pair.classes, dataset.layout)
        if unsaid or (
            dataset.labelled and any(each.errors and each.held is None for each in reports[title])
        ):
            unfit.append(dataset)
        notes = [f"note: {title}: {note}" for note in dataset.notes]
        for line in [*notes, *lines(reports[title], title)]:
            console.print(line)
    _print_classes(reports, pair.classes.names, console)
    if class_file := pair.class_file or _fitting_file(unfit, pair.classes, workers):
        console.print(class_file)
    checked = [report for split in reports.values() for report in split]
    units = list[str]()
    if not pair.pixels.is_rgb:
        with suppress(InputError):  # of an image, which is said where it is read
            units = pair.other_units(
                measured_format(evenly(pair.labelled[0].images, FEW), pair.pixels)[0]
            )
    for line in units:
        console.print(line)
    wrong = len(units) + sum(1 for report in checked if report.errors or report.warnings)
    found = (
        f"{wrong:,} of {len(checked):,} images have a problem"
        if wrong
        else f"{len(checked):,} images checked"
    )
    rest = "; 'exclude' of source or target leaves images out" if wrong else ", nothing wrong"
    console.print(f"{found}{pair.left_out()}{rest}")
    return wrong


def _fitting_file(unfit: list[SegmentationDataset], classes: ClassSet, workers: int) -> str:
    """The class file that reads labels in the class set's own numbering which the classes do not fit, or a sentence."""
    try:
        found = found_classes([each for each in unfit if each.layout.ids is None], classes, workers)
    except InputError as error:
        return str(error)
    return found.file if found else ""


def _work(pair: DomainPair) -> Iterator[tuple[str, SegmentationDataset, list[int]]]:
    """Titles, data sets and the samples to look at; labelled target images once, with their labels."""
    labelled = set() if pair.target_labelled is None else set(pair.target_labelled.images)
    for title, dataset in pair.splits().items():
        indices = list(range(len(dataset)))
        if title == "target train" and labelled:
            title, indices = (
                "other target train",
                [i for i in indices if dataset.files[i][0] not in labelled],
            )
        yield title, dataset, indices


def check_file(dataset: SegmentationDataset, index: int) -> FileReport:
    """Look at one image and, in a labelled data set, its label, both at their own size."""
    image_file, label_file = dataset.files[index]
    report = FileReport()
    if image_file.stem in dataset.layout.known_bad:
        report.notes.append(
            f"{image_file}: known to be bad in the data set as published; better excluded"
        )
    valid = None
    try:
        header = read_header(image_file)
        image = read_image(image_file, dataset.pixels)
        report.size, valid = (image.values.shape[1], image.values.shape[0]), image.valid
        if (note := left_out(image_file, header, dataset.pixels)) is not None:
            report.notes.append(note)
        if valid is not None and not valid.any():
            report.warnings.append(f"{image_file}: no pixel of the image holds data")
        elif (
            not dataset.pixels.is_rgb
            and (fill := undeclared_fill(image.values, image.valid)) is not None
        ):
            report.warnings.append(f"{image_file}: {fill}")
        elif _is_blank(image, dataset.pixels):
            report.warnings.append(f"{image_file}: the image is blank or nearly so")
    except InputError as error:
        report.errors.append(str(error))
    if label_file is not None:
        _check_label(report, dataset, image_file, label_file, valid)
    return report


def _check_label(
    report: FileReport, dataset: SegmentationDataset, image: Path, file: Path, valid: Mask
) -> None:
    ids = check_label(report, image, file, dataset.classes, dataset.layout)
    if ids is None:
        return
    size = (ids.shape[1], ids.shape[0])
    if report.size is not None and size != report.size and not other_shape(report.size, size):
        happens = (
            "it is resized to its image"
            if dataset.resize_labels
            else "scores are taken at the label's size"
        )
        sizes = f"{size[0]}x{size[1]} pixels, its image {report.size[0]}x{report.size[1]}"
        report.warnings.append(f"{file}: the label is {sizes}; {happens}")
    if valid is not None and valid.shape == ids.shape:  # as training sees it
        ids = np.where(valid, ids, np.uint8(IGNORE_INDEX))
    report.counts = counts_of(ids, len(dataset.classes))
    if not report.counts[:-1].any():
        report.warnings.append(f"{file}: every pixel of the label is ignored")


def _is_blank(image: ImagePixels, pixels: PixelFormat) -> bool:
    counts = np.cumsum(
        Image.fromarray(pixels.preview(image.values, image.valid)).convert("L").histogram()
    )
    low, high = np.searchsorted(counts, [0.01 * counts[-1], 0.99 * counts[-1]])
    return bool(high - low < BLANK_RANGE)


def _print_classes(
    reports: dict[str, list[FileReport]], names: tuple[str, ...], console: Console
) -> None:
    """Share of each class among the pixels that count, and the number of images that have it."""
    header, rows = ["class"], [[name] for name in (*names, "(ignored)")]
    for title in ("source train", "labelled target train", "target val"):
        if title in reports:
            header += [f"{title}, %", "images"]
            readable = [file.counts for file in reports[title] if file.counts is not None]
            counts = np.array([np.zeros(len(rows), np.int64), *readable])
            totals = [max(counts[:, :-1].sum(), 1)] * len(names) + [max(counts.sum(), 1)]
            for row, pixels, total, images in zip(
                rows, counts.sum(0), totals, (counts > 0).sum(0), strict=True
            ):
                row += [f"{100 * pixels / total:.2f}", f"{images:,}"]
    progress.print_table(
        "pixels and images of each class", header, [*rows[:-1], [], rows[-1]], screen=console
    )
