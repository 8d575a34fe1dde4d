"""The files of a predicted image.

They are tiles, the panel image | prediction | entropy, and label ids and entropy as GeoTIFF.

Shapes: C classes, H × W pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

from dem_apps.runtime.files import whole_file
from seg.data.labels import ClassSet, Color, Ids
from seg.data.rasters import Georeference, averaging, new_geotiff, opened
from seg.data.read_images import ImagePixels, Scene
from seg.maps.entropy_maps import (
    Part,
    Picture,
    Prediction,
    Sums,
    Tiles,
    coloured_label,
    wrong_pixels,
)

#: The file of a kind of an image, such as ``prediction.tif``.
FileOf = Callable[[str], Path]
#: Pixels of the longer side of the pictures of a scene.
MOST_SHOWN = 4096
#: Inches of a panel's width, and of the height of its tiles; columns of its legend.
_WIDTH, _SMALLEST, _LARGEST, _LEGEND_COLUMNS = 13.0, 1.0, 6.5, 8


def map_pictures(
    image: Picture,
    label: Ids | None,
    prediction: Prediction,
    classes: ClassSet,
) -> tuple[Tiles, Image.Image]:
    """Draw the tiles and the panel of an image.

    Args:
        image: (H, W, 3).
        label: (H', W') train ids; with it there are tiles of label and errors too.
        prediction: of the image.
        classes: their names and colours.

    Returns:
        The tiles by name, and the panel.
    """
    tiles = {"image": image, **prediction.tiles(classes.colors)}
    coloured = Image.fromarray(tiles["prediction"])
    coloured = coloured.resize(image.shape[1::-1], Image.Resampling.NEAREST)
    # 0.55 of a pixel is the class
    tiles["overlay"] = np.asarray(Image.blend(Image.fromarray(image), coloured, 0.55))
    if label is not None:
        tiles["label"] = coloured_label(label, classes.colors)
        tiles |= wrong_pixels(image, label, prediction, tiles["prediction"])
    pixels, _ = prediction.sums(len(classes))
    order = [index for index in pixels.argsort(kind="stable")[::-1].tolist() if pixels[index]]
    legend = [(classes.names[index], classes.colors[index]) for index in order]
    shown = (image, tiles["prediction"], tiles["entropy"])
    return tiles, panel(shown, prediction.caption, legend)


def panel(
    tiles: tuple[Picture, ...], caption: str, legend: Sequence[tuple[str, Color]] = ()
) -> Image.Image:
    """Draw image | prediction | entropy, (H, W, 3) each, with the scale of the entropy.

    The names and colours of the ``legend`` are below.
    """
    height, width, _ = tiles[0].shape
    lines = -(-len(legend) // _LEGEND_COLUMNS)
    side = min(_LARGEST, max(_SMALLEST, _WIDTH / 3 * height / width))
    figure = Figure((_WIDTH, side + 0.5 + 0.25 * lines), layout="constrained")
    axes = figure.subplots(1, 3)
    titles = ("image", "prediction", f"entropy, {caption}")
    for axis, tile, title in zip(axes, tiles, titles, strict=True):
        # colours of classes cannot be averaged
        axis.imshow(tile, interpolation="nearest")
        axis.set_title(title, fontsize=11)
        axis.set_axis_off()
    figure.colorbar(ScalarMappable(Normalize(0, 1), "magma"), ax=axes[2], ticks=[0, 0.5, 1])
    handles = [
        Patch(facecolor=tuple(np.divide(colour, 255)), edgecolor="grey", label=name)
        for name, colour in legend
    ]
    figure.legend(
        handles=handles, loc="outside lower left", ncols=_LEGEND_COLUMNS, frameon=False, fontsize=9
    )
    canvas: Any = FigureCanvasAgg(figure)  # matplotlib's canvas has no annotations
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])


def save_panel(path: Path, picture: Image.Image) -> None:
    """Write a PNG in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        picture.save(temporary)


def write_geotiffs(
    path: FileOf, prediction: Prediction, classes: ClassSet, place: Georeference
) -> None:
    """Write label ids and entropy as GeoTIFF, with ``no_data`` and NaN outside.

    ``path`` gives the file of a kind.
    """
    with _geotiffs(path, prediction.classes.shape, classes, place) as write:
        write(0, 0, prediction)


def write_maps(
    path: FileOf,
    parts: Iterable[Part],
    picture: ImagePixels | Scene,
    classes: ClassSet,
    least: float = 0.0,
) -> tuple[Prediction, Sums]:
    """Predict an image by the logits of its parts, and write its GeoTIFF.

    Both GeoTIFF are written for an image with coordinates, and for every scene. The prediction of a
    scene is read from them, reduced.

    Args:
        path: gives the file of a kind.
        parts: of the image.
        picture: the image or scene.
        classes: meaning of the logits.
        least: as in :meth:`Prediction.of`.

    Returns:
        The prediction, and its sums.
    """
    size = picture.shape[:2]
    if isinstance(picture, ImagePixels):
        prediction = Prediction.of_parts(parts, size, picture.valid, least)
        if picture.place is not None:
            write_geotiffs(path, prediction, classes, picture.place)
        return prediction, prediction.sums(len(classes))
    pixels, sums = np.zeros(len(classes), np.int64), np.zeros(len(classes))
    with _geotiffs(path, size, classes, picture.header.place) as write:
        for top, left, logits in parts:
            rows = slice(top, top + logits.shape[2])
            columns = slice(left, left + logits.shape[3])
            part = Prediction.of(logits[0], picture.window(rows, columns).valid, least)
            write(top, left, part)
            counted, entropy = part.sums(len(classes))
            pixels, sums = pixels + counted, sums + entropy
    return shown_prediction(path, picture.within(MOST_SHOWN), classes), (pixels, sums)


def shown_prediction(path: FileOf, size: tuple[int, int] | None, classes: ClassSet) -> Prediction:
    """Read both GeoTIFF of a scene at (H, W) pixels, or at their own size for None.

    A pixel has the nearest class and the mean entropy.
    """
    with opened(path("prediction.tif")) as source:
        ids = source.read(1, out_shape=size)
    with opened(path("entropy.tif")) as source:
        entropy = source.read(1, out_shape=size, resampling=averaging(source))
    table = np.zeros(256, np.uint8)
    table[list(classes.ids)] = range(len(classes))
    valid = ids != classes.no_data
    return Prediction(
        table[ids], np.nan_to_num(entropy, copy=False), None if valid.all() else valid
    )


@contextmanager
def _geotiffs(
    path: FileOf, size: tuple[int, int], classes: ClassSet, place: Georeference | None
) -> Iterator[Callable[[int, int, Prediction], None]]:
    """Yield a function that writes a prediction from its first row and column on."""
    colours = np.zeros((256, 3), int)
    colours[list(classes.ids)] = classes.colors
    parts = zip(classes.ids, classes.names, strict=True)
    names = ", ".join(f"{label_id} {name}" for label_id, name in parts)
    nats = "Shannon entropy / log of the number of classes"
    with (
        new_geotiff(
            path("prediction.tif"), size, "uint8", place, classes.no_data, [names], colours.tolist()
        ) as ids,
        new_geotiff(path("entropy.tif"), size, "float32", place, math.nan, [nats]) as entropy,
    ):

        def write(top: int, left: int, part: Prediction) -> None:
            height, width = part.classes.shape
            window = ((top, top + height), (left, left + width))
            values = part.entropy
            if part.valid is not None:
                values = np.where(part.valid, values, np.float32(np.nan))
            ids.write(classes.to_ids(part.classes, part.valid), 1, window=window)
            entropy.write(values, 1, window=window)

        yield write


def output_path(folder: Path, name: Path, kind: str) -> Path:
    """Return ``folder/deep/er/photo_panel.png`` for ``deep/er/photo`` and ``panel.png``."""
    return folder / name.with_name(f"{name.name}_{kind}")
