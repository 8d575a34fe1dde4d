"""The command ``python -m seg.data check``.

It lists every fault of the files, and proposes the class file that reads the labels. Data sets,
classes and labels are found and judged by the functions that training calls: an *error* stops
training at some step; a *warning* does not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np

from dem_apps.errors import InputError
from dem_apps.runtime.progress import print_table
from seg.data.datasets import SegmentationDataset
from seg.data.domains import DomainPair
from seg.data.found_classes import found_classes
from seg.data.label_faults import FileReport, check_classes, check_label, lines
from seg.data.labels import ClassSet
from seg.data.pixel_format import resized_mask
from seg.data.read_images import ImagePixels, read_image
from seg.data.read_labels import ignored_outside
from seg.data.statistics import counts_of, each_file

Reports = Mapping[str, Sequence[FileReport]]


def check_pair(pair: DomainPair, workers: int = 0) -> int:
    """Look at every file, and print what is wrong and what is there.

    Returns:
        The number of images with a problem.
    """
    if layouts := pair.layouts_found():
        print(f"note: {layouts}")
    if pair.note:
        print(pair.note)
    reports: dict[str, list[FileReport]] = {}
    unfit = list[SegmentationDataset]()
    for title, dataset, indices in _work(pair):
        reports[title] = _check_split(title, dataset, indices, workers)
        # a data set with a numbering of its own says which classes there are
        if dataset.layout.ids is None and not all(report.fits for report in reports[title]):
            unfit.append(dataset)
    _print_classes(reports, pair.classes.names)
    if class_file := pair.class_file or _fitting_file(unfit, pair.classes, workers):
        print(class_file)
    return _print_result(reports, pair.left_out())


def _check_split(
    title: str, dataset: SegmentationDataset, indices: list[int], workers: int
) -> list[FileReport]:
    """Print and return what is wrong in images that are left out, in these samples, and in all together."""
    check = functools.partial(check_file, dataset)
    reports = [FileReport(warnings=[sentence]) for sentence in dataset.left_out]
    reports += each_file(check, indices, workers, f"checking {title}")
    check_classes(reports, dataset.classes, dataset.layout)
    for note in dataset.notes:
        print(f"note: {title}: {note}")
    for line in (*lines(reports, title), *_ranges(reports, title)):
        print(line)
    return reports


def _print_result(reports: Reports, left_out: str) -> int:
    """Print how many images have a problem, and return that."""
    checked = [report for split in reports.values() for report in split]
    wrong = sum(bool(report.errors or report.warnings) for report in checked)
    if wrong:
        print(
            f"{wrong:,} of {len(checked):,} images have a problem{left_out}; "
            "'exclude' of source or target leaves images out"
        )
    else:
        print(f"{len(checked):,} images checked{left_out}, nothing wrong")
    return wrong


def _fitting_file(unfit: Sequence[SegmentationDataset], classes: ClassSet, workers: int) -> str:
    """Return the class file that reads the labels which the classes do not fit.

    The text is empty where no file does.
    """
    with suppress(InputError):  # labels that are no masks have an error of their own
        if fitting := found_classes(unfit, classes, workers):
            return fitting.file
    return ""


def _work(pair: DomainPair) -> Iterator[tuple[str, SegmentationDataset, list[int]]]:
    """Yield titles, data sets and the samples to look at.

    Labelled target images come once, with their labels.
    """
    labelled = [] if pair.target_labelled is None else pair.target_labelled.images
    for title, dataset in pair.splits.items():
        indices = list(range(len(dataset)))
        if title == "target train" and labelled:
            title = "other target train"
            indices = [i for i in indices if dataset.images[i] not in labelled]
        yield title, dataset, indices


def check_file(dataset: SegmentationDataset, index: int) -> FileReport:
    """Look at one image and, in a labelled data set, its label, both at their own size."""
    image_file, label_file = dataset.files[index]
    report = FileReport()
    valid = None
    try:
        image = read_image(image_file, dataset.pixels)
        valid = image.valid
        if not dataset.pixels.is_rgb:
            report.ranges = _range_of(image)
    except InputError as error:
        report.errors.append(str(error))
    if label_file is not None:
        ids = check_label(report, image_file, label_file, dataset.classes, dataset.layout)
        if ids is not None:
            ids = ignored_outside(ids, resized_mask(valid, ids.shape[::-1]))  # as in training
            report.counts = counts_of(ids, len(dataset.classes))
    return report


def _range_of(image: ImagePixels) -> list[tuple[float, float]]:
    """Return the least and the largest number of each band."""
    values = np.where(np.isfinite(image.values), image.values, np.nan)
    if image.valid is not None:
        values[~image.valid] = np.nan
    lows = np.nanmin(values, axis=(0, 1), initial=np.inf)
    highs = np.nanmax(values, axis=(0, 1), initial=-np.inf)
    return list(zip(lows.tolist(), highs.tolist(), strict=True))


def _ranges(reports: Sequence[FileReport], title: str) -> Iterator[str]:
    """Yield a line for each band with the range of its numbers in all images."""
    images = [report.ranges for report in reports if report.ranges is not None]
    for band, ranges in enumerate(zip(*images, strict=True), start=1):
        lows, highs = zip(*ranges, strict=True)
        yield f"range: {title}: band {band} holds {min(lows):.6g} to {max(highs):.6g}"


def _print_classes(reports: Reports, names: tuple[str, ...]) -> None:
    """Print the share of each class among the pixels that count, and its number of images."""
    header = ["class"]
    rows = [[name] for name in (*names, "(ignored)")]
    for title, checked in reports.items():
        counts = np.array([file.counts for file in checked if file.counts is not None])
        if not len(counts):
            continue
        header += [f"{title}, %", "images"]
        pixels = counts.sum(0)
        shares = 100 * pixels / max(pixels[:-1].sum(), 1)
        shares[-1] = 100 * pixels[-1] / pixels.sum()
        for row, share, images in zip(rows, shares, np.count_nonzero(counts, 0), strict=True):
            row += [f"{share:.2f}", f"{images:,}"]
    print_table("pixels and images of each class", header, [*rows[:-1], [], rows[-1]])
