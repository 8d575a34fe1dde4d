"""The files of a predicted image: their names, and label ids and entropy as GeoTIFF."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from seg.data.labels import ClassSet
from seg.data.rasters import Georeference, write_geotiff
from seg.maps.entropy_maps import Prediction


def write_geotiffs(path: Callable[[str], Path], prediction: Prediction, classes: ClassSet, place: Georeference) -> None:
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
