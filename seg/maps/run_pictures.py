"""The files that an export writes of one run: pictures and numbers per image, and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dem_apps.report.tables import write_csv
from seg.data.labels import ClassSet
from seg.data.rasters import Georeference, write_geotiff
from seg.maps import entropy_maps

#: The table of images, which is the last that an export writes and the first that it makes.
ENTROPY_TABLE = "entropy.csv"


class EntropyTables:
    """``entropy.csv`` with a row per image, and ``entropy_per_class.csv`` with a row per image and predicted class."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._per_image: list[dict[str, Any]] = []
        self._per_class: list[dict[str, Any]] = []

    def add(self, image: str, prediction: entropy_maps.Prediction) -> NDArray[np.int64]:
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

    def join(self, parts: Sequence[EntropyTables]) -> None:
        """Take the rows of several processes, in their order, which is that of the images."""
        self._per_image = [row for part in parts for row in part._per_image]
        self._per_class = [row for part in parts for row in part._per_class]

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


def write_geotiffs(
    path: Callable[[str], Path], prediction: entropy_maps.Prediction, classes: ClassSet, place: Georeference
) -> None:
    """Write label ids and entropy as GeoTIFF; ``path`` gives the file of a kind.

    Where there is no data they hold an id of no class, 255 unless it is one, and NaN.
    """
    colours = [(0, 0, 0)] * 256
    for label_id, colour in zip(classes.ids, classes.colors, strict=True):
        colours[label_id] = colour
    names = ", ".join(f"{label_id} {name}" for label_id, name in zip(classes.ids, classes.names, strict=True))
    write_geotiff(path("prediction.tif"), prediction.ids(classes), place, classes.no_data, names, colours)
    entropy = prediction.entropy
    if prediction.valid is not None:
        entropy = np.where(prediction.valid, entropy, np.float32(np.nan))
    write_geotiff(path("entropy.tif"), entropy, place, math.nan, "Shannon entropy / log of the number of classes")


def output_path(folder: Path, name: Path, kind: str) -> Path:
    """``folder/deep/er/photo_panel.png`` of ``deep/er/photo`` and ``panel.png``."""
    return folder / name.with_name(f"{name.name}_{kind}")
