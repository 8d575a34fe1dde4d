"""The one reader of images: any file that people have as (H, W, bands), with what holds no data and where it lies.

8-bit pictures are RGB, decoded by Pillow; 16-bit pictures come by OpenCV, which keeps their bits; TIFF with other bands
or numbers by rasterio (:mod:`seg.data.rasters`). Nothing is cut to 8 bits: what a network was not trained on is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from dem_apps.errors import InputError
from dem_apps.runtime.images import opened_image
from seg.data import rasters
from seg.data.image_io import TURNED, as_rgb, decode, deep_type, orientation_of, turned, upright_size
from seg.data.pixel_format import RGB, PixelFormat, kind_of
from seg.data.rasters import Georeference, Header

#: Bands of Pillow's modes that are not three, without transparency.
_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F")
_WITH_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa", "RGBX")


@dataclass(frozen=True)
class ImagePixels:
    """An image as it was read.

    Args:
        values: (H, W, B) in the file's own numbers, (H, W, 3) uint8 of 8-bit pictures.
        valid: (H, W), False where the file holds no data; None where it does everywhere.
        place: where it lies, if it says so.
        turned: the EXIF orientation that it was turned upright from; 1 for none.
    """

    values: NDArray[Any]
    valid: NDArray[np.bool_] | None = None
    place: Georeference | None = None
    turned: int = 1


def read_header(file: Path) -> Header:
    """Size, bands and numbers of an image file, without decoding its pixels.

    Raises:
        InputError: it is missing, no image or too large.
    """
    if rasters.is_tiff(file) and rasters.available():
        return rasters.read_header(file)
    with opened_image(file) as picture:
        deep = deep_type(picture)
        bands = 1 if picture.mode in _GREY else 3
        alpha = picture.mode in _WITH_ALPHA or "transparency" in picture.info
    return Header(upright_size(file), bands, deep or "uint8", alpha)


def read_pixels(file: Path, wanted: PixelFormat = RGB) -> ImagePixels:
    """An image file as a network sees it that takes such pixels.

    Of a picture in 8 bits the transparency is dropped, unless ``wanted`` counts it among its bands; see
    :func:`left_out`.

    Raises:
        InputError: a file that is damaged or too large, or whose bands or numbers are others than the network's.
    """
    if rasters.is_tiff(file) and rasters.available():
        header = rasters.read_header(file)
        refuse_other(file, header, wanted)
        if not wanted.is_rgb:
            return ImagePixels(*rasters.read_raster(file, wanted.bands))
        picture = decode(file)
        rgb = ImagePixels(as_rgb(picture, file), turned=picture.info.get(TURNED, 1))
        if rgb.turned != 1:
            return rgb
        return ImagePixels(rgb.values, *rasters.read_beside(file))
    if wanted.is_rgb:
        picture = decode(file)
        return ImagePixels(as_rgb(picture, file), turned=picture.info.get(TURNED, 1))
    header = read_header(file)
    refuse_other(file, header, wanted)
    if rasters.is_tiff(file):
        raise InputError(f"{file}: as a TIFF with {wanted.described} {rasters.NEEDED}")
    return _picture_in_bands(file, header, wanted.bands)


def refuse_other(file: Path | str, header: Header, wanted: PixelFormat) -> None:
    """Raises an InputError for an image that a network does not take."""
    fits = header.is_rgb if wanted.is_rgb else wanted.bands in (header.bands, header.bands + header.alpha)
    if fits and kind_of(header.dtype) == kind_of(wanted.dtype):
        return
    hint = ""
    if wanted.is_rgb and header.dtype != "uint8":
        hint = "; make 8-bit copies, with the range of the data from black to white, or train on such images"
    raise InputError(f"{file}: has {header.described}, and the network sees {wanted.described}{hint}")


def left_out(file: Path, header: Header, wanted: PixelFormat) -> str | None:
    """A sentence about a band for transparency that is not read, or None."""
    if not header.alpha or wanted.bands > header.bands:
        return None
    number = {1: "second", 3: "fourth"}.get(header.bands, "last")
    return (
        f"{file}: its {number} band is transparency and is not read; where it holds data, such as near infrared, train "
        f"with --bands.number {header.bands + 1}"
    )


def first_header(files: Sequence[Path]) -> tuple[Path, Header] | None:
    """The first image that can be read, and its header; None where none can."""
    for file in files:
        try:
            return file, read_header(file)
        except InputError:
            continue
    return None


def _picture_in_bands(file: Path, header: Header, bands: int) -> ImagePixels:
    """A PNG or another picture with the bands it has, 16-bit ones and transparency included."""
    with opened_image(file) as picture:
        orientation = orientation_of(picture)
        if header.dtype == "uint8":
            picture.load()
            whole = "LA" if header.bands == 1 else "RGBA"
            mode = whole if bands > header.bands else whole[:-1]
            values = np.asarray(picture if picture.mode == mode else picture.convert(mode))
        else:
            picture.verify()  # OpenCV gives no reason for a damaged file
            values = _deep_picture(file)
    if values.ndim == 2:
        values = values[..., None]
    elif header.bands == 1:
        values = values[..., [0, -1]]  # OpenCV makes colours of grey with transparency
    return ImagePixels(np.ascontiguousarray(turned(values, orientation)[..., :bands]), turned=orientation)


def _deep_picture(file: Path) -> NDArray[Any]:
    try:
        values = cv2.imread(str(file), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise InputError(f"{file}: the image cannot be read ({' '.join(str(error).split())[:120]})") from error
    if values is None or values.dtype == np.uint8:
        raise InputError(f"{file}: the image cannot be read with all of its bits")
    if values.ndim == 3:
        order = [2, 1, 0, 3][: values.shape[2]]  # OpenCV's is blue, green, red
        values = values[..., order]
    return np.asarray(values)
