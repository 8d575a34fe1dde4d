"""A few labelled images as a check: scores before and after, and how sure their difference is.

Shapes: C classes, H × W a label's size, N images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from dem_apps.errors import InputError
from dem_apps.report.intervals import LEVEL
from seg.data.datasets import spans
from seg.data.image_io import read_index_image
from seg.data.label_colors import read_colored_ids
from seg.data.labels import IGNORE_INDEX, ClassSet
from seg.data.layouts.layout import Layout
from seg.data.pixel_format import resized_mask

_RESAMPLES = 2000


class Labels:
    """Label images of some of the images that are adapted to.

    Args:
        folder: holds ``a/b.png`` for the image ``a/b.jpg``: one id per pixel, in the numbering of the class set.
        images: paths of the images below their folder.
        classes: whose ids the label images hold.

    Raises:
        InputError: no such folder, no label of any image in it, or one that is of two images.
    """

    def __init__(self, folder: Path, images: Sequence[Path], classes: ClassSet) -> None:
        if not folder.is_dir():
            raise InputError(f"--labels: {folder} is no folder")
        places = {image: folder / image.with_suffix(".png") for image in images}
        self.files = {image: file for image, file in places.items() if file.is_file()}
        owners: dict[Path, Path] = {}
        for image, file in self.files.items():
            if owners.setdefault(file, image) != image:
                raise InputError(f"--labels: {owners[file]} and {image} share the label {file}; rename one of them")
        if not self.files:
            raise InputError(
                f"--labels: {folder} has no label of any image; that of {images[0]} would be {places[images[0]]}"
            )
        self._set, self._classes = classes, len(classes)
        self._train_ids, self._known = Layout(pairs=lambda _root, _split: []).train_ids(classes)

    def confusion(
        self, image: Path, predicted: NDArray[np.uint8], valid: NDArray[np.bool_] | None = None
    ) -> list[list[int]] | None:
        """Pixels by label and prediction, (C, C); None for an image without a label.

        Args:
            image: its path below the folder of images.
            predicted: train ids, of any size.
            valid: where the image holds data, of the same size; None is everywhere.

        Raises:
            InputError: a label image that cannot be read, or with an id that no class has.
        """
        if image not in self.files:
            return None
        file = self.files[image]
        ids = read_colored_ids(file, self._set) if self._set.by_color else read_index_image(file)
        if not self._known[ids].all():
            unknown = int(ids[~self._known[ids]].min())
            raise InputError(
                f"{self.files[image]}: label id {unknown} is of no class; the class set has {spans(self._known)}"
            )
        label = self._train_ids[ids]
        if predicted.shape != label.shape:
            size = (label.shape[1], label.shape[0])
            predicted = np.asarray(cv2.resize(predicted, size, interpolation=cv2.INTER_NEAREST), np.uint8)
        counted = label != IGNORE_INDEX
        if valid is not None:
            counted &= resized_mask(valid, (label.shape[1], label.shape[0]))
        pairs = label[counted].astype(np.int64) * self._classes + predicted[counted]
        table: list[list[int]] = np.bincount(pairs, minlength=self._classes**2).reshape(self._classes, -1).tolist()
        return table


@dataclass(frozen=True)
class LabelScore:
    """mIoU over the labelled images, 0 to 1.

    Args:
        images: N.
        before: of the network as it was.
        after: of the adapted one.
        low: lower end of the interval of ``after - before``; None for a single image.
        high: upper end.
    """

    images: int
    before: float
    after: float
    low: float | None
    high: float | None

    @property
    def gain(self) -> float:
        """after - before."""
        return self.after - self.before

    @property
    def sentence(self) -> str:
        """Both scores and the interval of their difference."""
        ends = "no interval of one image"
        if self.low is not None and self.high is not None:
            ends = f"{LEVEL:.0%} interval {100 * self.low:+.1f} to {100 * self.high:+.1f}"
        images = f"{self.images} labelled image{'s' * (self.images > 1)}"
        return (
            f"on {images} mIoU goes from {100 * self.before:.1f} to {100 * self.after:.1f} % "
            f"({100 * self.gain:+.1f}; {ends})"
        )


def label_score(before: Sequence[NDArray[np.int64]], after: Sequence[NDArray[np.int64]]) -> LabelScore:
    """Scores over all images, and the bootstrap's interval of their difference over images (percentiles).

    Args:
        before: N tables (C, C) of :meth:`Labels.confusion`.
        after: of the same images.
    """
    tables = np.stack([np.stack(before), np.stack(after)])
    count = tables.shape[1]
    first, second = (mean_iou(tables[side].sum(0)) for side in (0, 1))
    if count < 2:
        return LabelScore(count, first, second, None, None)
    generator = np.random.default_rng(0)
    gains = []
    for _ in range(_RESAMPLES):
        weights = np.bincount(generator.integers(count, size=count), minlength=count)
        old, new = (np.tensordot(weights, tables[side], 1) for side in (0, 1))
        gains.append(mean_iou(new) - mean_iou(old))
    low, high = np.quantile(gains, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return LabelScore(count, first, second, float(low), float(high))


def mean_iou(confusion: NDArray[np.int64]) -> float:
    """Of a (C, C) table, over the classes that labels or predictions contain; 0 where nothing is labelled."""
    hits = np.diag(confusion)
    union = confusion.sum(0) + confusion.sum(1) - hits
    there = union > 0
    return float((hits[there] / union[there]).mean()) if there.any() else 0.0
