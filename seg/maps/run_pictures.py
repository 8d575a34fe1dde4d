"""The files that an export writes of one run: pictures and numbers per image, and tables."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dem_apps.runtime.files import write_atomically
from seg.data.labels import IGNORE_INDEX, ClassSet
from seg.data.rasters import Georeference, write_geotiff
from seg.maps import entropy_maps, panels
from seg.maps.entropy_tables import EntropyTables
from seg.models.trained_network import TrainedNetwork


@dataclass(frozen=True)
class RunPictures:
    """One of the exported runs.

    Args:
        title: of its rows in a comparison.
        trained: its network.
        folder: of its files.
        tables: of its images.
        raw: ``png16``, ``npz`` for entropy as numbers.
        label_ids: whether label ids are written as well.
        legend: whether panels name the predicted classes.
    """

    title: str
    trained: TrainedNetwork
    folder: Path
    tables: EntropyTables
    raw: frozenset[str] = frozenset()
    label_ids: bool = False
    legend: bool = True

    def write(
        self,
        name: Path,
        image: NDArray[np.uint8],
        prediction: entropy_maps.Prediction,
        pixels: NDArray[np.int64],
        place: Georeference | None = None,
    ) -> panels.Row:
        """Write one image's files; returns its row of a comparison.

        Args:
            name: where every file's name begins, below ``folder``.
            image: (H, W, 3) RGB.
            prediction: at the image's size.
            pixels: (C,) number predicted as each class.
            place: georeference; with it prediction and entropy are written as GeoTIFF as well.
        """
        classes = self.trained.class_set
        tiles = prediction.tiles(classes.colors)
        row = panels.Row(self.title, tiles["prediction"], tiles["entropy"], prediction.caption)
        pictures = {kind: Image.fromarray(tile) for kind, tile in tiles.items()}
        pictures["overlay"] = Image.fromarray(entropy_maps.overlay(image, row.prediction))
        pictures["panel"] = panels.panel(image, row.prediction, row.entropy, row.caption, self.names(pixels))
        if "png16" in self.raw:
            pictures["entropy16"] = Image.fromarray((prediction.entropy * 65535).round().astype(np.uint16))
        if self.label_ids:
            pictures["pred_labelIds"] = Image.fromarray(prediction.ids(classes))
        for kind, picture in pictures.items():
            panels.save_panel(output_path(self.folder, name, f"{kind}.png"), picture)
        if place is not None:
            write_geotiffs(lambda kind: output_path(self.folder, name, kind), prediction, classes, place)
        if "npz" in self.raw:
            content = io.BytesIO()
            nats = prediction.entropy * np.float32(math.log(len(classes)))
            np.savez_compressed(
                content, entropy=nats, entropy_normalised=prediction.entropy, prediction=prediction.classes
            )
            write_atomically(output_path(self.folder, name, "entropy.npz"), content.getvalue())
        return row

    def names(self, pixels: NDArray[np.int64]) -> list[tuple[str, entropy_maps.Colour]]:
        """A legend of the predicted classes, (C,) pixels each; empty without ``legend``."""
        return panels.legend(pixels, self.trained.class_set) if self.legend else []


def write_geotiffs(
    path: Callable[[str], Path], prediction: entropy_maps.Prediction, classes: ClassSet, place: Georeference
) -> None:
    """Write a georeferenced prediction: ``prediction.tif``, label ids in the classes' colours, and ``entropy.tif``.

    Pixels without data are 255 and NaN. ``path`` gives the file of a kind.
    """
    colours = [(0, 0, 0)] * 256
    for label_id, colour in zip(classes.ids, classes.colors, strict=True):
        colours[label_id] = colour
    names = ", ".join(f"{label_id} {name}" for label_id, name in zip(classes.ids, classes.names, strict=True))
    write_geotiff(path("prediction.tif"), prediction.ids(classes), place, IGNORE_INDEX, names, colours)
    entropy = prediction.entropy
    if prediction.valid is not None:
        entropy = np.where(prediction.valid, entropy, np.float32(np.nan))
    write_geotiff(path("entropy.tif"), entropy, place, math.nan, "Shannon entropy / log of the number of classes")


def output_path(folder: Path, name: Path, kind: str) -> Path:
    """``folder/deep/er/photo_panel.png`` of ``deep/er/photo`` and ``panel.png``."""
    return folder / name.with_name(f"{name.name}_{kind}")
