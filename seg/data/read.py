"""Reads images and labels; InputErrors name what is damaged, too large, or of other bands, numbers, ids or colours.

Pillow decodes 8-bit pictures, rasterio TIFF and more bits (:mod:`seg.data.rasters`). Shapes: H × W pixels, B bands.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dem_apps.errors import InputError
from dem_apps.runtime.images import opened_image
from seg.data import rasters
from seg.data.labels import IGNORE_INDEX, ClassSet, Color, id_tables, spans
from seg.data.layouts.layout import OWN_IDS, Layout
from seg.data.pixel_format import RGB, SIDEWAYS, PixelFormat, kind_of, resized, resized_mask, upright
from seg.data.rasters import Georeference, Header

#: Tag of EXIF.
_ORIENTATION = 0x0112
_EXIF_OF_PNG = {"exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"}
#: How a JPEG and a PNG begin and end, and bytes in which the end is looked for.
_PNG, _TAIL = b"\x89P", 1 << 12
_ENDS = {b"\xff\xd8": b"\xff\xd9", _PNG: b"IEND"}
#: Formats of label images.
LOSSLESS = ("PNG", "TIFF", "BMP", "GIF")
#: Pillow's modes with one band beside transparency; those of labels, and what decoders multiply ids of few bits by.
_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F")
_IDS, _SPREAD = ("P", *_GREY[:-1]), {"L;2": 85, "L;4": 17}
_EIGHT_BIT_COPIES = "make 8-bit copies, with the range of the data from black to white, or train on such images"


@dataclass(frozen=True)
class ImagePixels:
    """An image as it was read."""

    values: NDArray[Any]  #: (H, W, B) in the file's own numbers, (H, W, 3) uint8 of 8-bit pictures
    valid: NDArray[np.bool_] | None = None  #: (H, W), False where the file holds no data; None where it does everywhere
    place: Georeference | None = None  #: coordinates, if the file has them


def read_header(file: Path) -> Header:
    """Size, bands and numbers of an image file, without decoding its pixels; an InputError where it is none."""
    if rasters.is_tiff(file):
        return rasters.read_header(file)
    with opened_image(file) as picture:
        return _header(picture)


def first_header(files: Sequence[Path]) -> tuple[Path, Header] | None:
    """The first readable image and its header; None without one."""
    for file in files:
        with suppress(InputError):
            return file, read_header(file)
    return None


def read_image(file: Path, wanted: PixelFormat = RGB) -> ImagePixels:
    """An image file, upright, with the bands that a network takes; the first frame of several.

    Transparent pixels hold no data, unless ``wanted`` counts transparency among the bands; see :func:`left_out`.
    """
    header = read_header(file)
    refuse_other(file, header, wanted)
    if rasters.is_tiff(file) or header.dtype != "uint8":
        return ImagePixels(*rasters.read_bands(file, header, wanted), header.place)
    with opened_image(file) as picture:
        return picture_pixels(picture, file, wanted)


def picture_pixels(picture: Image.Image, file: Path, wanted: PixelFormat = RGB) -> ImagePixels:
    """An 8-bit picture of any mode in the bands that a network takes, upright; an InputError for more bits."""
    header = _header(picture)
    refuse_other(file, header, wanted)
    mode = "L" if header.bands == 1 and not wanted.is_rgb else "RGB"
    values = np.asarray(picture.convert(f"{mode}A" if header.alpha else mode))
    values = upright(values if values.ndim == 3 else values[..., None], header.orientation)
    if not header.alpha or values.shape[2] == wanted.bands:
        return ImagePixels(values)
    valid = values[..., -1] != 0
    return ImagePixels(np.ascontiguousarray(values[..., :-1]), None if valid.all() else valid)


def whole_header(file: Path, wanted: PixelFormat) -> Header:
    """The header of an image that a network takes and that is whole; else an InputError. Of these TIFF are decoded."""
    header = read_header(file)
    refuse_other(file, header, wanted)
    if rasters.is_tiff(file):
        read_image(file, wanted)
    else:
        refuse_damaged(file, thoroughly=True)
    return header


def refuse_damaged(file: Path, thoroughly: bool) -> None:
    """Raises an InputError for an image that is damaged or cut short; of a TIFF it is not said.

    A JPEG and a PNG are told by their ends, and ``thoroughly`` by a PNG's checksums, a third of a millisecond for
    0.2 MB; others are decoded.
    """
    with open(file, "rb") as opened:
        start = opened.read(2)
        opened.seek(max(0, os.path.getsize(file) - _TAIL))
        ends = start in _ENDS and _ENDS[start] in opened.read()
    if not rasters.is_tiff(file) and (not ends or (thoroughly and start == _PNG)):
        with opened_image(file) as picture:
            (picture.verify if ends else picture.load)()


def refuse_other(file: Path | str, header: Header, wanted: PixelFormat) -> None:
    """Raises an InputError for an image that a network does not take."""
    fits = header.is_rgb if wanted.is_rgb else wanted.bands in (header.bands, header.bands + header.alpha)
    kinds = {kind_of(header.dtype), *(["floating point"] if header.scaled else [])}
    if not fits or kind_of(wanted.dtype) not in kinds:
        hint = f"; {_EIGHT_BIT_COPIES}" if wanted.is_rgb and header.dtype != "uint8" else ""
        raise InputError(f"{file}: has {header.described}, and the network sees {wanted.described}{hint}")


def left_out(file: Path, header: Header, wanted: PixelFormat) -> str | None:
    """A sentence about a band for transparency, or pages, that are not read; None where all is."""
    said = []
    if header.alpha and wanted.bands <= header.bands:
        said.append(
            "its last band is transparency: where it is 0 there is no data, and else it is not read; where it holds "
            f"data, such as near infrared, train with --bands.number {header.bands + 1}"
        )
    if header.pages > 1:
        said.append(f"has {header.pages} pages or frames, of which the first is read")
    return f"{file}: {'; it '.join(said)}" if said else None


def seen(
    image: ImagePixels, pixels: PixelFormat, size: tuple[int, int] | None
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """An image at the (width, height) that a network sees, None for its own, bicubic, and where it holds data.

    Bands come as float32, with their mean where they hold no data, so that resizing spreads nothing of it.
    """
    values, valid = image.values, image.valid
    if not pixels.is_rgb:
        values = values.astype(np.float32)
        if valid is not None:
            values[~valid] = pixels.mean
        if (holes := np.isnan(values)).any():
            values = np.where(holes, np.asarray(pixels.mean, np.float32), values)
    if size is None or size == (values.shape[1], values.shape[0]):
        return values, valid
    valid = None if valid is None else resized_mask(valid, size)
    if not pixels.is_rgb:
        return resized(values, size), valid
    return np.asarray(Image.fromarray(values).resize(size, Image.Resampling.BICUBIC)), valid


def read_label(
    file: Path,
    classes: ClassSet,
    layout: Layout = OWN_IDS,
    size: tuple[int, int] | None = None,
    image: Path | None = None,
) -> NDArray[np.uint8]:
    """(H, W) uint8 train ids of a label image, resized to (width, height) ``size``; 255 where nothing counts.

    With coordinates in label and ``image``, it lies on the image's pixels.
    """
    ids, valid = label_ids(file, classes, layout, image)
    if size is not None and size != (ids.shape[1], ids.shape[0]):
        ids = np.asarray(Image.fromarray(ids).resize(size, Image.Resampling.NEAREST))
        if valid is not None:
            valid = np.asarray(Image.fromarray(valid).resize(size, Image.Resampling.NEAREST))
    refuse_unknown(file, ids if valid is None else ids[valid][None], classes, layout)
    label = np.asarray(cv2.LUT(ids, id_tables(classes, layout.ids)[0]), np.uint8)
    return label if valid is None else np.where(valid, label, np.uint8(IGNORE_INDEX))


def refuse_unknown(file: Path, ids: NDArray[np.uint8], classes: ClassSet, layout: Layout = OWN_IDS) -> None:
    """Raises an InputError for a label image with an id that is no class's and not ignored."""
    known = id_tables(classes, layout.ids)[1]
    if ids.size and cv2.LUT(ids, known.view(np.uint8)).min() == 0:
        unknown = np.bincount(ids[~known[ids]]) > 0
        hint = "" if layout.ids else "; a file for --classes gives classes their ids, and lists others as ignored"
        raise InputError(f"{file}: label id {spans(unknown)} is not in the table, which has {spans(known)}{hint}")


def label_ids(
    file: Path, classes: ClassSet, layout: Layout = OWN_IDS, image: Path | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.bool_] | None]:
    """(H, W) uint8 ids of a label image, or of the classes whose colours it has, and where it holds any; None for all.

    With coordinates in label and ``image``, they lie on the image's pixels.
    """
    valid: NDArray[np.bool_] | None = None
    if classes.by_color:
        ids, valid = _colored_ids(file, classes)
    elif layout.read_ids:
        ids = layout.read_ids(file)
    else:
        ids, valid = _index_image(file, classes.ids)
    return (ids, valid) if image is None else rasters.on_grid_of(file, image, ids, valid)


def read_index_image(file: Path, kept: Collection[int] = ()) -> NDArray[np.uint8]:
    """(H, W) uint8 ids of an image with a palette or in grey; 255 where it holds none."""
    ids, valid = _index_image(file, kept)
    return ids if valid is None else np.where(valid, ids, np.uint8(IGNORE_INDEX))


def _index_image(file: Path, kept: Collection[int]) -> tuple[NDArray[np.uint8], NDArray[np.bool_] | None]:
    """Ids and where there are any, nowhere transparent; an id of ``kept`` is one even where the file calls it none."""
    header, valid = read_header(file), None
    if header.pages > 1:
        raise InputError(
            f"{file}: has {header.pages} pages or frames, and a label is one; save that with the classes alone"
        )
    if rasters.is_tiff(file):
        ids, valid = rasters.read_ids(file, header, kept)
    else:
        with opened_image(file, LOSSLESS) as picture:
            if picture.mode not in _IDS:
                raise InputError(
                    f"{file}: a label image holds one id per pixel (mode P or L), this one is {picture.mode}"
                )
            spread, transparent = _SPREAD.get(_stored(picture)[0], 1), picture.info.get("transparency")
            ids = np.asarray(picture)
        if ids.ndim == 3:  # beside transparency
            ids, valid = ids[..., 0], ids[..., -1] != 0
        ids = ids.astype(np.uint8) if ids.dtype == np.bool_ else ids // spread if spread > 1 else ids
        if valid is None and isinstance(transparent, int | bytes):  # of a palette, its clear entries; of grey, a level
            clear = {transparent} if isinstance(transparent, int) else {i for i, a in enumerate(transparent) if a == 0}
            valid = ~np.isin(ids, sorted(clear - set(kept)))
    ids, valid = upright(ids, header.orientation), None if valid is None else upright(valid, header.orientation)
    counted = ids if valid is None else ids[valid]
    if counted.size and (counted.min() < 0 or counted.max() > 255):
        worst = int(counted.min() if counted.min() < 0 else counted.max())
        raise InputError(f"{file}: holds the id {worst}, and ids are 0 to 255; name it as nodata, or number anew")
    ids = ids if valid is None else np.where(valid, ids, 0)
    return ids.astype(np.uint8, copy=False), None if valid is None or valid.all() else valid


def palette_of(file: Path, ids: Collection[int]) -> dict[Color, int]:
    """The id of each colour in the palette of a label image, of ``ids`` that have a colour of their own."""
    if rasters.is_tiff(file):
        return {}
    with opened_image(file, LOSSLESS) as picture:
        flat = picture.getpalette() or []
    colors = [(label_id, tuple(flat[3 * label_id : 3 * label_id + 3])) for label_id in sorted(ids)]
    counts = Counter(color for _, color in colors)
    return {color: label_id for label_id, color in colors if len(color) == 3 and counts[color] == 1}


def label_colors(file: Path, most: int) -> list[Color]:
    """The colours of a picture where it is not transparent, in order; ``most`` and one more where there are more."""
    codes, valid = _codes(file)
    found = np.unique(codes if valid is None else codes[valid])[: most + 1].tolist()
    return [(code >> 16, code >> 8 & 255, code & 255) for code in found]


def _header(picture: Image.Image) -> Header:
    """The header of a picture that Pillow opened."""
    deep, mode, clear = _deep_type(picture), picture.mode, picture.info.get("transparency")
    pages = getattr(picture, "n_frames", 1) if picture.format in LOSSLESS else 1  # a phone's JPEG has a small copy
    orientation, alpha = _orientation(picture), picture.has_transparency_data
    size = (picture.height, picture.width) if orientation in SIDEWAYS else picture.size
    nodata = float(clear) if isinstance(clear, int) else None
    bands = 1 if mode in _GREY else 3
    return Header(size, bands, deep or "uint8", alpha, nodata=nodata, pages=pages, orientation=orientation)


def _stored(picture: Image.Image) -> tuple[Any, ...]:
    """Pillow's decoder arguments of an image that is not decoded yet, such as ``("RGB;16B",)``."""
    tiles = getattr(picture, "tile", [])
    arguments = tiles[0][3] if tiles else None
    return arguments if isinstance(arguments, tuple) and arguments else (arguments,)


def _deep_type(picture: Image.Image) -> str | None:
    """The dtype of an image with more than 8 bits per number, before it is decoded; None for 8."""
    if picture.mode[0] in "FI":
        return "float32" if picture.mode == "F" else "uint16"
    # Pillow cuts 16-bit colours to 8: PNG has 16 in the decoder's mode, PPM its largest number
    kind, *more = _stored(picture)
    deep = isinstance(kind, str) and ";16" in kind
    return "uint16" if deep or (picture.format == "PPM" and more and more[0] > 255) else None


def _orientation(picture: Image.Image) -> int:
    """The EXIF orientation, 1 to 8, of an image that is not decoded yet; 1 is upright."""
    if picture.format == "PNG" and not _EXIF_OF_PNG & picture.info.keys():
        return 1  # else Pillow decodes the pixels to search behind them
    if picture.format == "TIFF":
        picture.load()  # Pillow may turn it, and then removes the orientation
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            orientation = int(picture.getexif().get(_ORIENTATION, 1))
    except Exception:  # broken EXIF raises nearly anything; the pixels may be good
        return 1
    return orientation if 1 <= orientation <= 8 else 1


def _colored_ids(file: Path, classes: ClassSet) -> tuple[NDArray[np.uint8], NDArray[np.bool_] | None]:
    """(H, W) uint8 ids of the class set from a picture in its colours, and where there are any; None for everywhere."""
    codes, valid = _codes(file)
    if valid is None:
        valid = np.ones(codes.shape, np.bool_)
    table = {int.from_bytes(color): label_id for color, label_id in zip(classes.colors, classes.ids, strict=True)}
    counted = np.array(sorted(table), np.uint32)
    places = np.searchsorted(counted, codes).clip(max=len(counted) - 1)
    found = counted[places] == codes
    ids = np.array([table[code] for code in counted.tolist()], np.uint8)[places]
    ignored = np.isin(codes, [int.from_bytes(color) for color in classes.ignored_colors])
    if (unknown := valid & ~found & ~ignored).any():
        color, pixels = [*int(codes[unknown].min()).to_bytes(3)], int(unknown.sum())
        raise InputError(f"{file}: the colour {color} is no class's and not ignored ({pixels:,} pixels have such)")
    valid &= found
    return ids, None if valid.all() else valid


def _codes(file: Path) -> tuple[NDArray[np.uint32], NDArray[np.bool_] | None]:
    """(H, W) red, green and blue as one number, upright as EXIF says, and where it is not transparent."""
    if not rasters.is_tiff(file):
        with opened_image(file, LOSSLESS):
            pass
    image = read_image(file)
    rgb = image.values.astype(np.uint32)
    return np.asarray(rgb[..., 0] << 16 | rgb[..., 1] << 8 | rgb[..., 2], np.uint32), image.valid
