"""Reads label images: ids by index or by colour, and where there are any; (H, W) of an image's pixels.

InputErrors name what is damaged, or an id or a colour of no class.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dem_apps.errors import InputError
from dem_apps.runtime.images import opened_image
from seg.data import rasters
from seg.data.files import Size
from seg.data.labels import CITYSCAPES_COLORS, IGNORE_INDEX, ClassSet, Color, Ids, id_tables, spans
from seg.data.layouts.layout import OWN_IDS, Layout
from seg.data.pixel_format import Mask, upright
from seg.data.read_images import GREY, LOSSLESS, decoder_arguments, read_header, read_image

#: Pillow's modes of labels, and what decoders multiply ids of few bits by.
_IDS, _SPREAD = ("P", *GREY[:-1]), {"L;2": 85, "L;4": 17}


def read_label(
    file: Path,
    classes: ClassSet,
    layout: Layout = OWN_IDS,
    size: Size | None = None,
    image: Path | None = None,
) -> Ids:
    """(H, W) uint8 train ids of a label image, resized to ``size``; 255 where nothing counts.

    Raises an InputError for a label that lies on other ground than ``image``.
    """
    ids, valid = label_ids(file, classes, layout)
    if image is not None:
        rasters.refuse_other_ground(file, image)
    if size is not None and size != (ids.shape[1], ids.shape[0]):
        ids = np.asarray(Image.fromarray(ids).resize(size, Image.Resampling.NEAREST))
        if valid is not None:
            valid = np.asarray(Image.fromarray(valid).resize(size, Image.Resampling.NEAREST))
    refuse_unknown(file, ids if valid is None else ids[valid], classes, layout)
    return train_ids(ids, valid, classes, layout)


def train_ids(ids: Ids, valid: Mask, classes: ClassSet, layout: Layout) -> Ids:
    """(H, W) ids of a label image and where it holds some → train ids; 255 where nothing counts."""
    label = np.asarray(cv2.LUT(ids, id_tables(classes, layout.ids)[0]), np.uint8)
    return label if valid is None else np.where(valid, label, np.uint8(IGNORE_INDEX))


def refuse_unknown(file: Path, ids: Ids, classes: ClassSet, layout: Layout = OWN_IDS) -> None:
    """Raises an InputError for a label image with an id that is no class's and not ignored."""
    known = id_tables(classes, layout.ids)[1]
    if ids.size and cv2.LUT(ids, known.view(np.uint8)).min() == 0:
        unknown = np.bincount(ids[~known[ids]]) > 0
        hint = "a file for --classes gives classes their ids, and lists others as ignored"
        if layout.ids:
            hint = (
                "labels with ids of their own are read in layout folders with a file for --classes"
            )
        raise InputError(
            f"{file}: label id {spans(unknown)} is not in the table, which has {spans(known)}; {hint}"
        )


def label_ids(file: Path, classes: ClassSet, layout: Layout = OWN_IDS) -> tuple[Ids, Mask]:
    """(H, W) uint8 ids of a label image, by index or colour, and where it holds any; None for everywhere."""
    valid: Mask = None
    if layout.read_ids:
        ids = layout.read_ids(file)
    elif classes.by_color and layout.ids is None:
        ids, valid = _colored_ids(file, classes)
    else:
        ids, valid = _index_image(file, classes.ids)
    return ids, valid


def read_cityscapes_colors(file: Path) -> Ids:
    """(H, W) Cityscapes' label ids of a picture in its colours; 0, which nothing counts, where it has no class."""
    ids, valid = _colored_ids(file, CITYSCAPES_COLORS)
    return ids if valid is None else np.where(valid, ids, np.uint8(0))


def read_index_image(file: Path, kept: Collection[int] = ()) -> Ids:
    """(H, W) uint8 ids of an image with a palette or in grey; 255 where it holds none."""
    ids, valid = _index_image(file, kept)
    return ids if valid is None else np.where(valid, ids, np.uint8(IGNORE_INDEX))


def _index_image(file: Path, kept: Collection[int]) -> tuple[Ids, Mask]:
    """Ids and where there are any, nowhere transparent; an id of ``kept`` is one even where the file calls it none."""
    header = read_header(file)
    if header.pages > 1:
        raise InputError(
            f"{file}: has {header.pages} pages or frames, and a label is one; save that alone"
        )
    ids, valid = (
        rasters.read_ids(file, header, kept) if rasters.is_tiff(file) else _picture_ids(file, kept)
    )
    ids = upright(ids, header.orientation)
    if valid is not None:
        valid = upright(valid, header.orientation)
        ids = np.where(valid, ids, 0)
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high > 255:
        worst = low if low < 0 else high
        raise InputError(
            f"{file}: holds the id {worst}, and ids are 0 to 255; name it as nodata, or number anew"
        )
    return ids.astype(np.uint8, copy=False), valid


def _picture_ids(file: Path, kept: Collection[int]) -> tuple[NDArray[Any], Mask]:
    """(H, W) ids of a picture that Pillow decodes, as stored, and where it is not transparent."""
    with opened_image(file, LOSSLESS) as picture:
        if picture.mode not in _IDS:
            raise InputError(
                f"{file}: a label image holds one id per pixel (mode P or L), this one is {picture.mode}; a picture "
                "in the classes' colours is read with a file for --classes that has labels: colors and a name and a "
                "color for each class"
            )
        spread, transparent = (
            _SPREAD.get(decoder_arguments(picture)[0], 1),
            picture.info.get("transparency"),
        )
        ids = np.asarray(picture)
    if spread > 1:
        ids = ids // spread
    if ids.ndim == 3:  # beside transparency
        ids, valid = ids[..., 0], ids[..., -1] != 0
    elif isinstance(transparent, int | bytes):  # of a palette, its clear entries; of grey, a level
        clear = (
            {transparent}
            if isinstance(transparent, int)
            else {i for i, a in enumerate(transparent) if a == 0}
        )
        valid = ~np.isin(ids, sorted(clear - set(kept)))
    else:
        return ids, None
    return ids, None if valid.all() else valid


def palette_of(file: Path, ids: Collection[int]) -> frozenset[tuple[Color, int]]:
    """The colours in the palette of a label image and their ids, of ``ids`` that have a colour of their own."""
    if rasters.is_tiff(file):
        return frozenset()
    with opened_image(file, LOSSLESS) as picture:
        flat = picture.getpalette() or []
    colors = [tuple(flat[3 * label_id : 3 * label_id + 3]) for label_id in ids]
    return frozenset(
        (c, i) for c, i in zip(colors, ids, strict=True) if len(c) == 3 and colors.count(c) == 1
    )


def label_colors(file: Path, most: int) -> list[Color]:
    """The colours of a picture where it is not transparent, in order; ``most`` and one more where there are more."""
    codes, valid = _codes(file)
    found = np.unique(codes if valid is None else codes[valid])[: most + 1].tolist()
    return [(code >> 16, code >> 8 & 255, code & 255) for code in found]


def _colored_ids(file: Path, classes: ClassSet) -> tuple[Ids, Mask]:
    """(H, W) uint8 ids of the class set from a picture in its colours, and where there are any; None for everywhere."""
    codes, valid = _codes(file)
    if valid is None:
        valid = np.ones(codes.shape, np.bool_)
    table = {
        int.from_bytes(color): label_id
        for color, label_id in zip(classes.colors, classes.ids, strict=True)
    }
    counted = np.array(sorted(table), np.uint32)
    places = np.searchsorted(counted, codes).clip(max=len(counted) - 1)
    found = counted[places] == codes
    ids = np.array([table[code] for code in counted.tolist()], np.uint8)[places]
    ignored = np.isin(codes, [int.from_bytes(color) for color in classes.ignored_colors])
    if (unknown := valid & ~found & ~ignored).any():
        color, pixels = [*int(codes[unknown].min()).to_bytes(3)], int(unknown.sum())
        raise InputError(
            f"{file}: the colour {color} is no class's and not ignored ({pixels:,} pixels have such)"
        )
    valid &= found
    return ids, None if valid.all() else valid


def _codes(file: Path) -> tuple[NDArray[np.uint32], Mask]:
    """(H, W) red, green and blue as one number, upright as EXIF says, and where it is not transparent."""
    if not rasters.is_tiff(file):
        with opened_image(file, LOSSLESS):
            pass
    image = read_image(file)
    rgb = image.values.astype(np.uint32)
    return np.asarray(rgb[..., 0] << 16 | rgb[..., 1] << 8 | rgb[..., 2], np.uint32), image.valid
