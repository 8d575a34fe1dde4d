"""The files of a predicted image: their names, and label ids and entropy as GeoTIFF."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from seg.data.labels import ClassSet
from seg.data.rasters import Georeference, averaging, new_geotiff, opened
from seg.data.read_images import ImagePixels, Scene
from seg.maps.entropy_maps import Part, Prediction, Sums

#: The file of a kind of an image, such as ``prediction.tif``.
FileOf = Callable[[str], Path]
#: Pixels of the longer side of the pictures of a scene.
MOST_SHOWN = 4096


def write_geotiffs(path: FileOf, prediction: Prediction, classes: ClassSet, place: Georeference) -> None:
    """Write label ids and entropy as GeoTIFF, with ``no_data`` and NaN outside; ``path`` gives the file of a kind."""
    with _geotiffs(path, prediction.classes.shape, classes, place) as write:
        write(0, 0, prediction)


def write_maps(
    path: FileOf, parts: Iterable[Part], picture: ImagePixels | Scene, classes: ClassSet
) -> tuple[Prediction, Sums]:
    """The prediction of an image by the logits of its parts, and its sums.

    With coordinates both GeoTIFF are written. A scene's are in any case; its prediction is read from them, reduced.
    """
    size = picture.shape[:2]
    if isinstance(picture, ImagePixels):
        prediction = Prediction.of_parts(parts, size, picture.valid)
        if picture.place is not None:
            write_geotiffs(path, prediction, classes, picture.place)
        return prediction, prediction.sums(len(classes))
    pixels, sums = np.zeros(len(classes), np.int64), np.zeros(len(classes))
    with _geotiffs(path, size, classes, picture.header.place) as write:
        for top, left, logits in parts:
            bottom, right = top + logits.shape[2], left + logits.shape[3]
            part = Prediction.of(logits[0], picture.window(slice(top, bottom), slice(left, right)).valid)
            write(top, left, part)
            counted, entropy = part.sums(len(classes))
            pixels, sums = pixels + counted, sums + entropy
    return shown_prediction(path, picture.within(MOST_SHOWN), classes), (pixels, sums)


def shown_prediction(path: FileOf, size: tuple[int, int] | None, classes: ClassSet) -> Prediction:
    """Both GeoTIFF of a scene at (H, W) pixels, None for their own: the nearest class, the mean entropy."""
    with opened(path("prediction.tif")) as source:
        ids = source.read(1, out_shape=size)
    with opened(path("entropy.tif")) as source:
        entropy = source.read(1, out_shape=size, resampling=averaging(source))
    table = np.zeros(256, np.uint8)
    table[list(classes.ids)] = range(len(classes))
    valid = ids != classes.no_data
    return Prediction(table[ids], np.nan_to_num(entropy, copy=False), None if valid.all() else valid)


@contextmanager
def _geotiffs(
    path: FileOf, size: tuple[int, int], classes: ClassSet, place: Georeference | None
) -> Iterator[Callable[[int, int, Prediction], None]]:
    """A function that writes a prediction from its first row and column on."""
    colours = [(0, 0, 0)] * 256
    for label_id, colour in zip(classes.ids, classes.colors, strict=True):
        colours[label_id] = colour
    names = ", ".join(f"{label_id} {name}" for label_id, name in zip(classes.ids, classes.names, strict=True))
    nats = "Shannon entropy / log of the number of classes"
    with (
        new_geotiff(path("prediction.tif"), size, "uint8", place, classes.no_data, names, colours) as ids,
        new_geotiff(path("entropy.tif"), size, "float32", place, math.nan, nats) as entropy,
    ):

        def write(top: int, left: int, part: Prediction) -> None:
            height, width = part.classes.shape
            window = ((top, top + height), (left, left + width))
            values = part.entropy if part.valid is None else np.where(part.valid, part.entropy, np.float32(np.nan))
            ids.write(classes.to_ids(part.classes, part.valid), 1, window=window)
            entropy.write(values, 1, window=window)

        yield write


def output_path(folder: Path, name: Path, kind: str) -> Path:
    """``folder/deep/er/photo_panel.png`` of ``deep/er/photo`` and ``panel.png``."""
    return folder / name.with_name(f"{name.name}_{kind}")
