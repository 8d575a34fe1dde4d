"""The files of a predicted image.

They are tiles, the panel image | prediction | entropy, and label ids and entropy as GeoTIFF.

Shapes: C classes, H × W pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
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
from seg.data.labels import ClassSet, Ids
from seg.data.pixel_format import Floats, Numbers
from seg.data.rasters import Georeference, averaging, new_geotiff, opened
from seg.data.read_images import ImagePixels, Scene
from seg.maps.entropy_maps import (
    Part,
    Picture,
    Prediction,
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
) -> tuple[Tiles, Picture]:
    """Draw the tiles and the panel of an image.

    Args:
        image: (H, W, 3).
        label: (H', W') train ids; with it there are tiles of label and errors too.
        prediction: of the image, at the label's size where there is one.
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
    legend = [
        Patch(
            facecolor=tuple(np.divide(classes.colors[index], 255)),
            edgecolor="grey",
            label=classes.names[index],
        )
        for index in pixels.argsort(kind="stable")[::-1]
        if pixels[index]
    ]
    return tiles, _panel(tiles, prediction.caption, legend)


def _panel(tiles: Tiles, caption: str, legend: list[Patch]) -> Picture:
    """Draw image | prediction | entropy with the scale of the entropy, above the legend."""
    height, width, _ = tiles["image"].shape
    lines = -(-len(legend) // _LEGEND_COLUMNS)
    side = min(_LARGEST, max(_SMALLEST, _WIDTH / 3 * height / width))
    figure = Figure((_WIDTH, side + 0.5 + 0.25 * lines), layout="constrained")
    axes = figure.subplots(1, 3)
    titles = {"image": "image", "prediction": "prediction", "entropy": f"entropy, {caption}"}
    for axis, name in zip(axes, titles, strict=True):
        # colours of classes cannot be averaged
        axis.imshow(tiles[name], interpolation="nearest")
        axis.set_title(titles[name], fontsize=11)
        axis.set_axis_off()
    figure.colorbar(ScalarMappable(Normalize(0, 1), "magma"), ax=axes[2], ticks=[0, 0.5, 1])
    figure.legend(
        handles=legend, loc="outside lower left", ncols=_LEGEND_COLUMNS, frameon=False, fontsize=9
    )
    canvas: Any = FigureCanvasAgg(figure)  # matplotlib's canvas has no annotations
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


def save_panel(path: Path, picture: Numbers) -> None:
    """Write a picture, (H, W, 3) or (H, W), as a PNG in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        Image.fromarray(picture).save(temporary)


def write_maps(
    path: FileOf,
    parts: Iterable[Part],
    picture: ImagePixels | Scene,
    classes: ClassSet,
    least: float = 0.0,
) -> tuple[Prediction, Floats]:
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
        The prediction, and its :meth:`Prediction.sums`.
    """
    size = picture.shape[:2]
    if isinstance(picture, ImagePixels):
        prediction = Prediction.of_parts(parts, size, picture.valid, least)
        if picture.place is not None:
            write_geotiffs(path, prediction, classes, picture.place)
        return prediction, prediction.sums(len(classes))
    sums = np.zeros((2, len(classes)))
    with geotiffs(path, size, classes, picture.header.place) as write:
        for top, left, logits in parts:
            rows = slice(top, top + logits.shape[2])
            columns = slice(left, left + logits.shape[3])
            part = Prediction.of(logits[0], picture.window(rows, columns).valid, least)
            write(top, left, part)
            sums += part.sums(len(classes))
    return shown_prediction(path, picture.within(MOST_SHOWN), classes), sums


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


def write_geotiffs(
    path: FileOf, prediction: Prediction, classes: ClassSet, place: Georeference
) -> None:
    """Write the two GeoTIFF of :func:`geotiffs` of a whole prediction."""
    with geotiffs(path, prediction.classes.shape, classes, place) as write:
        write(0, 0, prediction)


@contextmanager
def geotiffs(
    path: FileOf, size: tuple[int, int], classes: ClassSet, place: Georeference | None
) -> Iterator[Callable[[int, int, Prediction], None]]:
    """Open the GeoTIFF of label ids, with ``no_data`` outside, and of entropy, with NaN outside.

    Yields:
        A function that writes a prediction from its first row and column on.
    """
    colours = np.zeros((256, 3), int)
    colours[list(classes.ids)] = classes.colors
    names = ", ".join(map("{} {}".format, classes.ids, classes.names))
    unit = "Shannon entropy / log of the number of classes"
    with (
        new_geotiff(
            path("prediction.tif"), size, "uint8", place, classes.no_data, [names], colours.tolist()
        ) as ids,
        new_geotiff(path("entropy.tif"), size, "float32", place, math.nan, [unit]) as entropy,
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
