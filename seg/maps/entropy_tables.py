"""Mean entropy per image and per predicted class, as two CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dem_apps.runtime.files import write_atomically
from seg.maps.entropy_maps import Prediction

#: The table of images, which is the last that an export writes and the first that it makes.
ENTROPY_TABLE = "entropy.csv"


class EntropyTables:
    """Grows with every image; ``entropy.csv`` has a row per image, ``entropy_per_class.csv`` one per class in it.

    Args:
        names: the C class names.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._per_image: list[list[Any]] = []
        self._per_class: list[list[Any]] = []

    def add(self, image: str, prediction: Prediction) -> NDArray[np.int64]:
        """Count the pixels of one image that hold data.

        Args:
            image: its name.
            prediction: of it.

        Returns:
            (C,) the pixels of each class.
        """
        height, width = prediction.classes.shape
        classes, entropy = prediction.counted
        pixels = np.bincount(classes.ravel(), minlength=len(self._names))
        sums = np.bincount(classes.ravel(), entropy.ravel(), len(self._names))
        top, size = int(pixels.argmax()), max(classes.size, 1)
        mean = sums.sum() / size
        self._per_image.append([image, width, height, mean, self._names[top], pixels[top] / size])
        self._per_class.extend(
            [image, name, pixels[index], sums[index] / pixels[index]]
            for index, name in enumerate(self._names)
            if pixels[index]
        )
        return pixels

    def join(self, parts: Sequence[EntropyTables], images: Sequence[str]) -> None:
        """Hold what several processes have, each a part, as one process would have it.

        Args:
            parts: each image in one of them.
            images: in their order; those without a row are left out.
        """
        place = {image: index for index, image in enumerate(images)}
        rows = [row for part in parts for row in part._per_image]
        of_classes = [row for part in parts for row in part._per_class]
        self._per_image = sorted(rows, key=lambda row: place[row[0]])
        self._per_class = sorted(of_classes, key=lambda row: place[row[0]])

    def mean_entropy(self) -> float | None:
        """Mean of the images' means, each image counting once; None before the first."""
        return float(np.mean([row[3] for row in self._per_image])) if self._per_image else None

    def write(self, folder: Path) -> None:
        """Both files, each in one step."""
        folder.mkdir(parents=True, exist_ok=True)
        header = ["image", "width", "height", "mean_entropy", "top_class", "top_class_share"]
        write_atomically(folder / ENTROPY_TABLE, _csv(header, self._per_image))
        header = ["image", "predicted_class", "pixels", "mean_entropy"]
        write_atomically(folder / "entropy_per_class.csv", _csv(header, self._per_class))


def _csv(header: list[str], rows: list[list[Any]]) -> bytes:
    content = io.StringIO(newline="")
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([f"{value:.6f}" if isinstance(value, float) else value for value in row] for row in rows)
    return content.getvalue().encode()
