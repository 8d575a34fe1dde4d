"""Reads label images, (H, W): ids by index or by colour, and where there are any.

InputErrors name what is damaged, or an id or a colour of no class.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dem_apps.errors import InputError
from dem_apps.runtime.images import damage_named, refuse_wrong_checksums
from seg.data import rasters
from seg.data.files import Size
from seg.data.labels import IGNORE_INDEX, ClassSet, Color, Ids, id_tables
from seg.data.layouts.layout import OWN_IDS, Layout
from seg.data.pixel_format import Bools, Mask, Numbers, resized_ids, resized_mask, upright
from seg.data.rasters import Georeference, Header
from seg.data.read_images import (
    GREY,
    LOSSLESS,
    OpenImage,
    decoder_arguments,
    open_image,
    read_header,
)

#: Pillow's modes of labels, and the factors by which decoders multiply ids of few bits.
_IDS, _SPREAD = ("P", *GREY[:-1]), {"L;2": 85, "L;4": 17}


class LabelPixels(NamedTuple):
    """A label image as its file holds it."""

    ids: Ids  #: (H, W), by index or colour
    valid: Mask  #: (H, W), where it holds any; None for everywhere
    header: Header | None = None  #: None of a layout that reads its files itself

    @property
    def held(self) -> Ids:
        """The ids where the image holds any: (H, W), or (N,) of some pixels."""
        return self.ids if self.valid is None else self.ids[self.valid]


def read_label(
    file: Path,
    classes: ClassSet,
    layout: Layout = OWN_IDS,
    size: Size | None = None,
    image: Path | None = None,
) -> Ids:
    """Read the train ids of a label image, (H, W) uint8, resized to ``size``.

    They are 255 where nothing counts.

    Raises:
        InputError: a damaged label, an id of no class, or other ground than the image's.
    """
    label = label_pixels(file, classes, layout)
    refuse_other_ground(file, label, image)
    if size is not None:
        label = LabelPixels(resized_ids(label.ids, size), resized_mask(label.valid, size))
    refuse_unknown(file, label, classes, layout)
    return train_ids(label, classes, layout)


def refuse_other_ground(file: Path, label: LabelPixels, image: Path | None) -> None:
    """Raise an InputError for a label that lies on other ground than its image.

    The coordinates of both tell; a label or an image without passes.
    """
    if image is None or label.header is None or label.header.place is None:
        return
    header, place = read_header(image), label.header.place
    if header.place is None:
        return
    from rasterio.transform import array_bounds

    bounds = array_bounds(*label.header.size[::-1], place["transform"])
    wanted = array_bounds(*header.size[::-1], header.place["transform"])
    systems = {place["crs"], header.place["crs"]} - {None}
    half_a_pixel = abs(place["transform"].a) / 2
    if len(systems) < 2 and np.allclose(bounds, wanted, rtol=0, atol=half_a_pixel):
        return
    # pixels of the image that the label does not cover would get the id 0
    raise InputError(
        f"{file}: lies on other ground than its image {image}; "
        f"the label has {_described(label.header.size, place)}, "
        f"the image {_described(header.size, header.place)}; "
        f"make a label on the image's ground by: rio warp {file} NEW.tif --like {image} "
        f"--resampling nearest --src-nodata {IGNORE_INDEX} --dst-nodata {IGNORE_INDEX}"
    )


def _described(size: Size, place: Georeference) -> str:
    """Return size, transform and coordinate system of an image in words."""
    transform = ", ".join(f"{number:.12g}" for number in place["transform"][:6])
    return f"{size[0]}x{size[1]} pixels, transform ({transform}) and {place['crs'] or 'no CRS'}"


def train_ids(label: LabelPixels, classes: ClassSet, layout: Layout) -> Ids:
    """Convert the ids of a label image to train ids, (H, W).

    They are 255 where nothing counts.
    """
    table, _ = id_tables(classes, layout.ids)
    return ignored_outside(np.asarray(cv2.LUT(label.ids, table), np.uint8), label.valid)


def ignored_outside(ids: Ids, valid: Mask) -> Ids:
    """Return the ids, (H, W), with 255 where nothing is valid."""
    return ids if valid is None else np.where(valid, ids, IGNORE_INDEX)


def refuse_unknown(
    file: Path, label: LabelPixels, classes: ClassSet, layout: Layout = OWN_IDS
) -> None:
    """Raise an InputError for a label image with an id that is no class's and not ignored."""
    _, known = id_tables(classes, layout.ids)
    ids = label.held
    if not ids.size or cv2.LUT(ids, known.view(np.uint8)).min():
        return
    unknown = ", ".join(map(str, np.unique(ids[~known[ids]])))
    table = ", ".join(map(str, np.flatnonzero(known)))
    raise InputError(
        f"{file}: label id {unknown} is not in the table, which has {table}; "
        "in layout folders a file for --classes gives classes their ids, and lists others as ignored"
    )


def label_pixels(file: Path, classes: ClassSet, layout: Layout = OWN_IDS) -> LabelPixels:
    """Read a label image as the layout says.

    The layout reads by its own function, by colours or by index.
    """
    if layout.read_ids:
        return LabelPixels(layout.read_ids(file), None)
    painted = classes if classes.by_color and layout.ids is None else layout.painted
    return _index_image(file, classes.ids) if painted is None else _colored_ids(file, painted)


def read_index_image(file: Path) -> Ids:
    """Read the ids, (H, W) uint8, of an image with a palette or in grey.

    They are 255 where it holds none.
    """
    label = _index_image(file, ())
    return ignored_outside(label.ids, label.valid)


def _index_image(file: Path, classes: Collection[int]) -> LabelPixels:
    """Read ids and where there are any, nowhere transparent.

    An id of ``classes`` is one even where the file calls it none.

    Raises:
        InputError: several pages, or an id outside 0 to 255.
    """
    with open_image(file, LOSSLESS) as image:
        header = image.header
        if header.pages > 1:
            raise InputError(
                f"{file}: has {header.pages} pages or frames, and a label is one; save that alone"
            )
        if image.picture is None:
            ids, valid = rasters.ids_of(file, image.source, header, classes)
        else:
            ids, valid = _picture_ids(image, image.picture, classes)
    valid = upright(valid, header.orientation)
    ids = np.where(valid, upright(ids, header.orientation), 0)
    if ids.min() < 0 or ids.max() > 255:
        raise InputError(
            f"{file}: holds the ids {ids.min()} to {ids.max()}, and ids are 0 to 255; "
            "name others as nodata, or number anew"
        )
    return LabelPixels(ids.astype(np.uint8), None if valid.all() else valid, header)


def _picture_ids(
    image: OpenImage, picture: Image.Image, classes: Collection[int]
) -> tuple[Numbers, Bools]:
    """Return the ids of a picture that Pillow decodes, (H, W), and where it is not transparent.

    The ids are as stored.
    """
    if picture.mode not in _IDS:
        raise InputError(
            f"{image.file}: a label image holds one id per pixel (mode P or L), this one is {picture.mode}; a picture "
            "in the classes' colours is read with a file for --classes that has labels: colors and a name and a "
            "color for each class"
        )
    spread = _SPREAD.get(decoder_arguments(picture)[0], 1)
    with damage_named(image.file):
        ids = np.asarray(picture) // spread
        refuse_wrong_checksums(picture, image.stream)
    if ids.ndim == 3:  # beside transparency
        return ids[..., 0], ids[..., -1] != 0
    clear = _clear_ids(picture.info.get("transparency"))
    return ids, ~np.isin(ids, sorted(clear - set(classes)))


def _clear_ids(transparency: object) -> set[int]:
    """Return the ids that Pillow calls transparent.

    They are the clear entries of a palette, or one level of grey.
    """
    if isinstance(transparency, bytes):
        return {index for index, alpha in enumerate(transparency) if alpha == 0}
    return {transparency} if isinstance(transparency, int) else set()


def label_colors(file: Path, most: int) -> list[Color]:
    """Return the colours of a picture where it is not transparent, in order.

    Where there are more than ``most``, they are ``most`` and one more.
    """
    codes, valid, _ = _codes(file)
    present = np.unique(codes[valid])[: most + 1].tolist()
    return [(code >> 16, code >> 8 & 255, code & 255) for code in present]


def _colored_ids(file: Path, classes: ClassSet) -> LabelPixels:
    """Read the ids of the class set from a picture in its colours."""
    codes, valid, header = _codes(file)
    colors, ignored = (
        [*map(int.from_bytes, some)] for some in (classes.colors, classes.ignored_colors)
    )
    table = np.zeros(1 << 24, np.uint8)  # zeros take no memory until they are read
    table[colors] = classes.ids
    counted = np.isin(codes, colors)
    unknown = codes[valid & ~counted & ~np.isin(codes, ignored)]
    if unknown.size:
        color = [*int(unknown.min()).to_bytes(3)]
        raise InputError(
            f"{file}: the colour {color} is no class's and not ignored ({unknown.size:,} pixels have such)"
        )
    counted &= valid
    return LabelPixels(table[codes], None if counted.all() else counted, header)


def _codes(file: Path) -> tuple[NDArray[np.uint32], Bools, Header]:
    """Read red, green and blue as one number, (H, W), and where the picture is not transparent.

    The picture is upright as EXIF says.
    """
    with open_image(file, LOSSLESS) as image:
        pixels = image.read()
    red, green, blue = pixels.values.astype(np.uint32).transpose(2, 0, 1)
    valid = np.ones(red.shape, np.bool_) if pixels.valid is None else pixels.valid
    return red << 16 | green << 8 | blue, valid, image.header
