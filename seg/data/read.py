"""Reads images and labels; InputErrors name what is damaged, too large, or of other bands, numbers, ids or colours.

Pillow decodes 8-bit pictures, OpenCV 16-bit PNG and PPM, rasterio TIFF. Shapes: H × W pixels, B bands.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import nullcontext, suppress
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

#: Tags of TIFF and EXIF.
_ORIENTATION, _PHOTOMETRIC, _SAMPLES = 0x0112, 0x0106, 0x0115
_EXIF_OF_PNG = {"exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"}
#: How a JPEG and a PNG begin and end, and bytes in which the end is looked for.
_PNG, _TAIL = b"\x89P", 1 << 12
_ENDS = {b"\xff\xd8": b"\xff\xd9", _PNG: b"IEND"}
#: Formats of label images.
LOSSLESS = ("PNG", "TIFF", "BMP", "GIF")
#: Pillow's modes with one band beside transparency.
_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F")
_EIGHT_BIT_COPIES = "make 8-bit copies, with the range of the data from black to white, or train on such images"


@dataclass(frozen=True)
class ImagePixels:
    """An image as it was read."""

    values: NDArray[Any]  #: (H, W, B) in the file's own numbers, (H, W, 3) uint8 of 8-bit pictures
    valid: NDArray[np.bool_] | None = None  #: (H, W), False where the file holds no data; None where it does everywhere
    place: Georeference | None = None  #: coordinates, if the file has them


def read_header(file: Path) -> Header:
    """Size, bands and numbers of an image file, without decoding its pixels; an InputError where it is none."""
    if rasters.readable(file):
        return rasters.read_header(file)
    with opened_image(file) as picture:
        deep, bands = _deep_type(picture), 1 if picture.mode in _GREY else 3
        alpha = picture.has_transparency_data
        size = (picture.height, picture.width) if _orientation(picture) in SIDEWAYS else picture.size
    return Header(size, bands, deep or "uint8", alpha)


def first_header(files: Sequence[Path]) -> tuple[Path, Header] | None:
    """The first readable image and its header; None without one."""
    for file in files:
        with suppress(InputError):
            return file, read_header(file)
    return None


def read_image(file: Path, wanted: PixelFormat = RGB) -> ImagePixels:
    """An image file, upright, with the bands that a network takes; the first frame of several.

    The transparency of an 8-bit picture is dropped, unless ``wanted`` counts it among its bands; see :func:`left_out`.
    """
    tiff = rasters.readable(file)
    if wanted.is_rgb and not tiff:
        return _picture(file)
    header = read_header(file)
    refuse_other(file, header, wanted)
    if not wanted.is_rgb:
        if tiff:
            return ImagePixels(*rasters.read_raster(file, wanted.bands))
        if rasters.is_tiff(file):
            raise InputError(f"{file}: as a TIFF with {wanted.described} {rasters.NEEDED}")
        return _picture_in_bands(file, header, wanted.bands)
    try:
        rgb = _picture(file)
    except InputError:  # a kind that Pillow does not read, or too large for it
        return ImagePixels(*rasters.read_rgb(file))
    return ImagePixels(rgb.values, *rasters.read_beside(file))


def damaged(file: Path, thoroughly: bool = False) -> bool:
    """Whether an image has no end, or cannot be read at all; of a TIFF it is not said.

    ``thoroughly`` reads a PNG whole and compares its checksums, a third of a millisecond for 0.2 MB.
    """
    with open(file, "rb") as opened:
        start = opened.read(2)
        opened.seek(max(0, os.path.getsize(file) - _TAIL))
        ends = start in _ENDS and _ENDS[start] in opened.read()
    if rasters.is_tiff(file) or (ends and not (thoroughly and start == _PNG)):
        return False
    with suppress(InputError), opened_image(file) as picture:
        (picture.verify if ends else picture.load)()
        return False
    return True


def refuse_other(file: Path | str, header: Header, wanted: PixelFormat) -> None:
    """Raises an InputError for an image that a network does not take."""
    fits = header.is_rgb if wanted.is_rgb else wanted.bands in (header.bands, header.bands + header.alpha)
    if not fits or kind_of(header.dtype) != kind_of(wanted.dtype):
        hint = f"; {_EIGHT_BIT_COPIES}" if wanted.is_rgb and header.dtype != "uint8" else ""
        raise InputError(f"{file}: has {header.described}, and the network sees {wanted.described}{hint}")


def left_out(file: Path, header: Header, wanted: PixelFormat) -> str | None:
    """A sentence about a band for transparency that is not read, or None."""
    if not header.alpha or wanted.bands > header.bands:
        return None
    hint = f"where it holds data, such as near infrared, train with --bands.number {header.bands + 1}"
    return f"{file}: its last band is transparency and is not read; {hint}"


def turned_upright(file: Path, label: Path, label_size: tuple[int, int]) -> str | None:
    """A sentence about an image that is turned and whose label, (width, height), is not and need not fit; else None."""
    orientation = orientation_of(file)
    if orientation in (1, orientation_of(label)):
        return None
    if orientation in SIDEWAYS:
        width, height = read_header(file).size
        if (width - height) * (label_size[0] - label_size[1]) > 0:
            return None
    return (
        f"{file}: is turned upright as its EXIF says (orientation {orientation}), and its label is read as it stands; "
        "if it was drawn on the pixels as they are stored, remove the orientation"
    )


def orientation_of(file: Path) -> int:
    """How an image is stored, 1 to 8 by EXIF or a TIFF's tag; 1 is upright, also where it cannot be read."""
    if rasters.is_tiff(file):
        return rasters.orientation_of(file)
    with suppress(InputError), opened_image(file) as picture:
        return _orientation(picture)
    return 1


def as_rgb(picture: Image.Image, file: Path) -> NDArray[np.uint8]:
    """An 8-bit image of any mode as (H, W, 3) uint8, upright, without transparency; an InputError for more bits."""
    if (deep := _deep_type(picture)) is not None:
        raise InputError(f"{file}: holds {deep}, and the network sees 8-bit RGB; {_EIGHT_BIT_COPIES}")
    orientation = _orientation(picture)
    return upright(np.asarray(picture.convert("RGB")), orientation)


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
    if size is None or size == (values.shape[1], values.shape[0]):
        return values, valid
    valid = None if valid is None else resized_mask(valid, size)
    if not pixels.is_rgb:
        return resized(values, size), valid
    return np.asarray(Image.fromarray(values).resize(size, Image.Resampling.BICUBIC)), valid


def read_label(
    file: Path, classes: ClassSet, layout: Layout = OWN_IDS, size: tuple[int, int] | None = None
) -> NDArray[np.uint8]:
    """(H, W) uint8 train ids of a label image, resized to (width, height) ``size``; 255 where nothing counts."""
    ids = label_ids(file, classes, layout)
    if size is not None and size != (ids.shape[1], ids.shape[0]):
        ids = np.asarray(Image.fromarray(ids).resize(size, Image.Resampling.NEAREST))
    refuse_unknown(file, ids, classes, layout)
    return np.asarray(cv2.LUT(ids, id_tables(classes, layout.ids)[0]), np.uint8)


def refuse_unknown(file: Path, ids: NDArray[np.uint8], classes: ClassSet, layout: Layout = OWN_IDS) -> None:
    """Raises an InputError for a label image with an id that is no class's and not ignored."""
    known = id_tables(classes, layout.ids)[1]
    if cv2.LUT(ids, known.view(np.uint8)).min() == 0:
        unknown = np.bincount(ids[~known[ids]]) > 0
        hint = "" if layout.ids else "; a file for --classes gives classes their ids, and lists others as ignored"
        raise InputError(f"{file}: label id {spans(unknown)} is not in the table, which has {spans(known)}{hint}")


def label_ids(file: Path, classes: ClassSet, layout: Layout = OWN_IDS) -> NDArray[np.uint8]:
    """(H, W) uint8 ids of a label image as they lie in the file, or of the classes whose colours it has."""
    if classes.by_color:
        return _colored_ids(file, classes)
    return layout.read_ids(file) if layout.read_ids else read_index_image(file, classes.ids)


def read_index_image(file: Path, kept: Collection[int] = ()) -> NDArray[np.uint8]:
    """(H, W) uint8 ids of an image with a palette (P) or in 8-bit grey (L); see :func:`seg.data.rasters.read_ids`."""
    if rasters.readable(file):
        return rasters.read_ids(file, kept)
    with opened_image(file, LOSSLESS) as picture:
        if picture.info.get("compression") in ("jpeg", "tiff_jpeg", "webp"):
            raise InputError(f"{file}: {picture.info['compression']} rounds ids to other ids; save the label without")
        stored, orientation = _stored(picture)[0], _orientation(picture)
        if picture.mode not in ("P", "L"):
            raise InputError(f"{file}: a label image holds one id per pixel (mode P or L), this one is {picture.mode}")
        if stored in ("L;2", "L;4"):  # decoders spread the 4 or 16 shades over 0 to 255
            raise InputError(f"{file}: a label image in grey has 8 bits per pixel, this one has {stored[2:]}; save 8")
        return upright(np.asarray(picture), orientation)


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
    """The colours of a picture, in order; ``most`` and one more where there are more."""
    codes = np.unique(_codes(file))[: most + 1].tolist()
    return [(code >> 16, code >> 8 & 255, code & 255) for code in codes]


def read_all_bits(file: Path) -> NDArray[Any]:
    """(H, W) or (H, W, B) pixels by OpenCV, which keeps 16 bits, with red first."""
    with opened_image(file) as picture:
        picture.verify()  # OpenCV gives no reason for a damaged file
        values = cv2.imread(str(file), cv2.IMREAD_UNCHANGED)
    if values is None:
        raise InputError(f"{file}: the image cannot be read, it is damaged or cut short")
    return np.asarray(values if values.ndim == 2 else values[..., [2, 1, 0, 3][: values.shape[2]]])


def _picture(file: Path) -> ImagePixels:
    """An 8-bit picture as RGB."""
    with opened_image(file) as picture:
        tags = getattr(picture, "tag_v2", {})
        if tags.get(_PHOTOMETRIC) == 1 and tags.get(_SAMPLES, 1) > 2:  # of which Pillow may read the first alone
            raise InputError(f"{file}: as a TIFF with several bands of grey {rasters.NEEDED}")
        return ImagePixels(as_rgb(picture, file))


def _picture_in_bands(file: Path, header: Header, bands: int) -> ImagePixels:
    """A PNG or another picture with the bands it has, 16-bit ones and transparency included."""
    with opened_image(file) as picture:
        orientation = _orientation(picture)
        if header.dtype == "uint8":
            whole = "LA" if header.bands == 1 else "RGBA"
            values: NDArray[Any] = np.asarray(picture.convert(whole if bands > header.bands else whole[:-1]))
    if header.dtype != "uint8":
        values = read_all_bits(file)
    if values.ndim == 2:
        values = values[..., None]
    elif header.bands == 1:
        values = values[..., [0, -1]]  # OpenCV makes colours of grey with transparency
    return ImagePixels(upright(values[..., :bands], orientation))


def _stored(picture: Image.Image) -> tuple[Any, ...]:
    """Pillow's decoder arguments of an image that is not decoded yet, such as ``("RGB;16B",)``."""
    tiles = getattr(picture, "tile", [])
    arguments = tiles[0][3] if tiles else None
    return arguments if isinstance(arguments, tuple) and arguments else (arguments,)


def _deep_type(picture: Image.Image) -> str | None:
    """The dtype of an image with more than 8 bits per number, before it is decoded; None for 8."""
    if picture.mode == "F":
        return "float32"
    if picture.mode.startswith("I"):
        return "int32" if picture.mode == "I" and picture.format not in ("PNG", "PPM") else "uint16"
    # Pillow cuts 16-bit colours to 8: PNG and TIFF have 16 in the decoder's mode, PPM its largest number
    kind, *more = _stored(picture)
    if isinstance(kind, str) and ";16" in kind:
        return "uint16"
    return "uint16" if picture.format == "PPM" and more and isinstance(more[0], int) and more[0] > 255 else None


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


def _colored_ids(file: Path, classes: ClassSet) -> NDArray[np.uint8]:
    """(H, W) uint8 ids of the class set from a picture in its colours; ``IGNORE_INDEX`` for ignored colours."""
    codes = _codes(file)
    ids = dict.fromkeys(classes.ignored_colors, IGNORE_INDEX) | dict(zip(classes.colors, classes.ids, strict=True))
    table = {int.from_bytes(color): label_id for color, label_id in ids.items()}
    known = np.array(sorted(table), np.uint32)
    places = np.searchsorted(known, codes).clip(max=len(known) - 1)
    unknown = known[places] != codes
    if unknown.any():
        color, pixels = [*int(codes[unknown].min()).to_bytes(3)], int(unknown.sum())
        raise InputError(f"{file}: the colour {color} is no class's and not ignored ({pixels:,} pixels have such)")
    return np.asarray(np.array([table[code] for code in known.tolist()], np.uint8)[places])


def _codes(file: Path) -> NDArray[np.uint32]:
    """(H, W) red, green and blue as one number, upright as EXIF says; transparency is dropped."""
    with opened_image(file, LOSSLESS) if not rasters.readable(file) else nullcontext():
        rgb = read_image(file).values.astype(np.uint32)
    return np.asarray(rgb[..., 0] << 16 | rgb[..., 1] << 8 | rgb[..., 2], np.uint32)
