"""The files of a predicted image: tiles, the panel image | prediction | entropy, and label ids and entropy as GeoTIFF.

Shapes: C classes, H × W pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from dem_apps.runtime.files import whole_file
from seg.data.labels import ClassSet, Color
from seg.data.rasters import Georeference, averaging, new_geotiff, opened
from seg.data.read_images import ImagePixels, Scene
from seg.maps.entropy_maps import (
    Part,
    Prediction,
    Sums,
    coloured_entropy,
    coloured_label,
    wrong_pixels,
)

#: The file of a kind of an image, such as ``prediction.tif``.
FileOf = Callable[[str], Path]
#: Pixels of the longer side of the pictures of a scene.
MOST_SHOWN = 4096
#: Narrower tiles are enlarged to about the first width; longer ones are reduced to the second.
_SMALL, _LARGE = 384, 640
#: Least size of a cell, for titles and the ticks of the colour bar beside a thin image.
_LEAST_WIDTH, _LEAST_HEIGHT = 160, 56
_MARGIN, _GAP, _BAR, _BAR_CELL = 6, 4, 12, 50


def map_pictures(
    image: NDArray[np.uint8],
    label: NDArray[np.uint8] | None,
    prediction: Prediction,
    classes: ClassSet,
) -> tuple[dict[str, NDArray[np.uint8]], Image.Image]:
    """The tiles of an image (H, W, 3) by name, of errors too with a ``label`` (H', W') of train ids, and its panel."""
    tiles = {"image": image, **prediction.tiles(classes.colors)}
    coloured = tiles["prediction"]
    if coloured.shape != image.shape:
        coloured = np.asarray(
            Image.fromarray(coloured).resize(image.shape[1::-1], Image.Resampling.NEAREST)
        )
    # 0.55 of a pixel is the class
    tiles["overlay"] = np.asarray(
        Image.blend(Image.fromarray(image), Image.fromarray(coloured), 0.55)
    )
    if label is not None:
        tiles["label"] = coloured_label(label, classes.colors)
        tiles |= wrong_pixels(image, label, prediction, tiles["prediction"])
    pixels, _ = prediction.sums(len(classes))
    order = pixels.argsort(kind="stable")[::-1].tolist()
    names = [(classes.names[index], classes.colors[index]) for index in order if pixels[index]]
    return tiles, panel((image, tiles["prediction"], tiles["entropy"]), prediction.caption, names)


def panel(
    tiles: tuple[NDArray[np.uint8], ...], caption: str, legend: Sequence[tuple[str, Color]] = ()
) -> Image.Image:
    """Image | prediction | entropy, (H, W, 3) each, shown at the image's size; below the names and colours."""
    width, height = size = _tile_size(tiles[0].shape[1], tiles[0].shape[0])
    cell = (max(width, _LEAST_WIDTH), max(height, _LEAST_HEIGHT))
    font = _font(16 if cell[0] > _SMALL + 100 else 13)
    top = round(1.6 * font.size)
    canvas_width = 2 * _MARGIN + 3 * cell[0] + 2 * _GAP + _BAR_CELL
    names = _legend_picture(legend, font, canvas_width - 2 * _MARGIN)
    canvas = Image.new(
        "RGB", (canvas_width, _MARGIN + top + cell[1] + _GAP + names.height), "white"
    )
    draw = ImageDraw.Draw(canvas)
    for column, (tile, title) in enumerate(
        zip(tiles, ("image", "prediction", f"entropy, {caption}"), strict=True)
    ):
        left = _MARGIN + column * (cell[0] + _GAP)
        # colours of classes cannot be averaged
        reduced = tile.shape[1] > width and column != 1
        picture = Image.fromarray(tile).resize(
            size, Image.Resampling.BOX if reduced else Image.Resampling.NEAREST
        )
        canvas.paste(picture, (left + (cell[0] - width) // 2, top + (cell[1] - height) // 2))
        draw.text((left + 1, top - 0.4 * font.size), title, fill="black", font=font, anchor="ls")
    _draw_bar(canvas, canvas_width - _MARGIN - _BAR_CELL + 8, top, cell[1], font)
    canvas.paste(names, (_MARGIN, top + cell[1] + _GAP + _MARGIN))
    return canvas


def save_panel(path: Path, picture: Image.Image) -> None:
    """Write a PNG in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        picture.save(temporary)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    # matplotlib's own: the same everywhere, and with more than ASCII
    return ImageFont.truetype(
        str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), size
    )


def _tile_size(width: int, height: int) -> tuple[int, int]:
    longest = max(width, height)
    if longest > _LARGE:
        return max(1, round(width * _LARGE / longest)), max(1, round(height * _LARGE / longest))
    enlarge = max(1, min(round(_SMALL / width), _LARGE // longest))
    return width * enlarge, height * enlarge


def _draw_bar(
    canvas: Image.Image, left: int, top: int, height: int, font: ImageFont.FreeTypeFont
) -> None:
    ramp = coloured_entropy(np.linspace(1.0, 0.0, height)[:, None].repeat(_BAR, axis=1))
    canvas.paste(Image.fromarray(ramp), (left, top))
    draw = ImageDraw.Draw(canvas)
    half = 0.45 * font.size
    for value in (0.0, 0.5, 1.0):
        y = top + min(max((1.0 - value) * height, half), height - half)
        draw.text((left + _BAR + 4, y), f"{value:.1f}", fill="black", font=font, anchor="lm")


def _legend_picture(
    legend: Sequence[tuple[str, Color]], font: ImageFont.FreeTypeFont, width: int
) -> Image.Image:
    """Every colour with its name, on as many lines as they take."""
    side, line = round(font.size), round(1.5 * font.size)
    places, x, y = [], 0, 0
    for name, _ in legend:
        length = round(font.getlength(name) + 2.9 * font.size)
        if x and x + length > width:
            x, y = 0, y + line
        places.append((x, y))
        x += length
    picture = Image.new("RGB", (width, y + line + _MARGIN if legend else 0), "white")
    draw = ImageDraw.Draw(picture)
    for (name, colour), (x, y) in zip(legend, places, strict=True):
        draw.rectangle((x, y, x + side, y + side), fill=colour, outline=(120, 120, 120))
        draw.text((x + 1.4 * side, y + side / 2), name, fill="black", font=font, anchor="lm")
    return picture


def write_geotiffs(
    path: FileOf, prediction: Prediction, classes: ClassSet, place: Georeference
) -> None:
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
            part = Prediction.of(
                logits[0], picture.window(slice(top, bottom), slice(left, right)).valid
            )
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
    return Prediction(
        table[ids], np.nan_to_num(entropy, copy=False), None if valid.all() else valid
    )


@contextmanager
def _geotiffs(
    path: FileOf, size: tuple[int, int], classes: ClassSet, place: Georeference | None
) -> Iterator[Callable[[int, int, Prediction], None]]:
    """A function that writes a prediction from its first row and column on."""
    colours = [(0, 0, 0)] * 256
    for label_id, colour in zip(classes.ids, classes.colors, strict=True):
        colours[label_id] = colour
    names = ", ".join(
        f"{label_id} {name}" for label_id, name in zip(classes.ids, classes.names, strict=True)
    )
    nats = "Shannon entropy / log of the number of classes"
    with (
        new_geotiff(
            path("prediction.tif"), size, "uint8", place, classes.no_data, names, colours
        ) as ids,
        new_geotiff(path("entropy.tif"), size, "float32", place, math.nan, nats) as entropy,
    ):

        def write(top: int, left: int, part: Prediction) -> None:
            height, width = part.classes.shape
            window = ((top, top + height), (left, left + width))
            values = (
                part.entropy
                if part.valid is None
                else np.where(part.valid, part.entropy, np.float32(np.nan))
            )
            ids.write(classes.to_ids(part.classes, part.valid), 1, window=window)
            entropy.write(values, 1, window=window)

        yield write


def output_path(folder: Path, name: Path, kind: str) -> Path:
    """``folder/deep/er/photo_panel.png`` of ``deep/er/photo`` and ``panel.png``."""
    return folder / name.with_name(f"{name.name}_{kind}")
