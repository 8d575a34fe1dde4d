"""Mean entropy per image and per predicted class, as two CSV files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dem_apps.report.tables import write_csv
from seg.maps.entropy_maps import Prediction

#: The table of images, which is the last that an export writes and the first that it makes.
ENTROPY_TABLE = "entropy.csv"


class EntropyTables:
    """``entropy.csv`` with a row per image, and ``entropy_per_class.csv`` with a row per image and predicted class.

    Args:
        names: the C class names.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._per_image: list[dict[str, Any]] = []
        self._per_class: list[dict[str, Any]] = []

    def add(self, image: str, prediction: Prediction) -> NDArray[np.int64]:
        """Add the rows of one image; returns (C,) the pixels of each class that hold data."""
        height, width = prediction.classes.shape
        classes, entropy = prediction.counted
        pixels = prediction.pixels(len(self._names))
        sums = np.bincount(classes.ravel(), entropy.ravel(), len(self._names))
        top, size = int(pixels.argmax()), max(classes.size, 1)
        self._per_image.append({
            "image": image, "width": width, "height": height, "mean_entropy": sums.sum() / size,
            "top_class": self._names[top], "top_class_share": pixels[top] / size,
        })  # fmt: skip
        self._per_class.extend(
            {"image": image, "predicted_class": name, "pixels": pixels[k], "mean_entropy": sums[k] / pixels[k]}
            for k, name in enumerate(self._names)
            if pixels[k]
        )
        return pixels

    def join(self, parts: Sequence[EntropyTables], images: Sequence[str]) -> None:
        """Take the rows of several processes, in the order of ``images``."""
        place = {image: index for index, image in enumerate(images)}
        per_image = [row for part in parts for row in part._per_image]
        per_class = [row for part in parts for row in part._per_class]
        self._per_image, self._per_class = (
            sorted(rows, key=lambda row: place[row["image"]]) for rows in (per_image, per_class)
        )

    def mean_entropy(self) -> float | None:
        """Mean of the images' means; None without any image."""
        return float(np.mean([row["mean_entropy"] for row in self._per_image])) if self._per_image else None

    def write(self, folder: Path) -> None:
        """Write both files, each in one step."""
        folder.mkdir(parents=True, exist_ok=True)
        write_csv(folder / ENTROPY_TABLE, list(map(_shown, self._per_image)))
        write_csv(folder / "entropy_per_class.csv", list(map(_shown, self._per_class)))


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {key: f"{value:.6f}" if isinstance(value, float) else value for key, value in row.items()}
