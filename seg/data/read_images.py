"""Reads images by the library that fits, with InputErrors for images that cannot be used.

The errors name what is damaged, too large, or of other bands or numbers. Pillow decodes 8-bit
pictures, rasterio TIFF and more bits (:mod:`seg.data.rasters`). Shapes: H × W pixels, B bands.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import ExifTags, Image

from dem_apps.errors import InputError
from dem_apps.runtime.files import regular_file
from dem_apps.runtime.images import FORMATS, damage_named, picture_in, refuse_wrong_checksums
from seg.data import rasters
from seg.data.files import Size
from seg.data.pixel_format import (
    RGB,
    SIDEWAYS,
    Mask,
    Numbers,
    PixelFormat,
    kind_of,
    resized,
    resized_mask,
    upright,
)
from seg.data.rasters import Georeference, Header

_EXIF_OF_PNG = {"exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"}
#: How a JPEG and a PNG end, and bytes in which the end is looked for.
_ENDS, _TAIL = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}, 1 << 12
#: Formats of label images.
LOSSLESS = ("PNG", "TIFF", "BMP", "GIF")
#: Pillow's modes with one band beside transparency.
GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F")


@dataclass(frozen=True)
class ImagePixels:
    """An image as it was read."""

    values: Numbers  #: (H, W, B) in the file's own numbers, (H, W, 3) uint8 of 8-bit pictures
    valid: Mask = None  #: (H, W), False where the file holds no data; None where it does everywhere
    place: Georeference | None = None  #: coordinates, if the file has them

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, B)."""
        return self.values.shape

    def window(self, rows: slice, columns: slice) -> ImagePixels:
        """Return some of its rows and columns, without coordinates."""
        valid = None if self.valid is None else self.valid[rows, columns]
        return ImagePixels(self.values[rows, columns], valid)

    def reduced(self, _most: int) -> ImagePixels:
        """Return the image itself.

        A :class:`Scene` returns fewer pixels.
        """
        return self


@dataclass(frozen=True)
class OpenImage:
    """An image file that is open.

    rasterio opens a TIFF, Pillow any other.
    """

    file: Path
    header: Header
    stream: BinaryIO
    picture: Image.Image | None = None  #: Pillow's, not decoded yet
    source: Any = None  #: rasterio's data set

    def read(self, wanted: PixelFormat = RGB) -> ImagePixels:
        """Read the image, upright, with the bands that a network takes.

        Of several frames the first is read. Transparent pixels hold no data, unless transparency is
        a band of ``wanted``.
        """
        refuse_other(self.file, self.header, wanted)
        if self.picture is None:
            return self._bands(self.source, wanted)
        if self.header.dtype != "uint8":
            driver = "PNG" if self.picture.format == "PNG" else "PNM"
            with rasters.opened(self.file, driver) as source:
                return self._bands(source, wanted)
        with damage_named(self.file):
            pixels = _decoded(self.picture, self.header, wanted)
            refuse_wrong_checksums(self.picture, self.stream)
        return pixels

    def _bands(self, source: Any, wanted: PixelFormat) -> ImagePixels:
        rasters.refuse_large(self.file, source)
        with damage_named(self.file):
            pixels = rasters.bands_of(self.file, source, self.header, wanted)
        return ImagePixels(*pixels, self.header.place)

    def refuse_damaged(self, thoroughly: bool) -> None:
        """Raise an InputError for an image that is damaged or cut short.

        Of a TIFF the header alone is looked at. JPEG and PNG are told by their ends, PNG
        ``thoroughly`` by its checksums, others by decoding.
        """
        if self.picture is None:
            return
        with damage_named(self.file):
            end = _ENDS.get(str(self.picture.format))
            if end == _ENDS["PNG"] and thoroughly:
                refuse_wrong_checksums(self.picture, self.stream)
            elif end is None or end not in self._tail():
                self.picture.load()

    def _tail(self) -> bytes:
        self.stream.seek(max(0, os.path.getsize(self.file) - _TAIL))
        return self.stream.read()


@dataclass(frozen=True)
class Scene:
    """A TIFF of any size, which is read by windows.

    :func:`opened_picture` opens it.
    """

    file: Path
    source: Any  #: rasterio's data set, open
    header: Header
    wanted: PixelFormat

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, B)."""
        return (*self.header.size[::-1], self.wanted.bands)

    def window(self, rows: slice, columns: slice) -> ImagePixels:
        """Return some of its rows and columns, without coordinates."""
        ranges = (rows.indices(self.shape[0])[:2], columns.indices(self.shape[1])[:2])
        return self._read(window=ranges)

    def within(self, most: int) -> tuple[int, int]:
        """Return (H, W) with at most so many pixels on the longer side."""
        height, width, _ = self.shape
        longest = max(most, height, width)
        return max(1, height * most // longest), max(1, width * most // longest)

    def reduced(self, most: int) -> ImagePixels:
        """Return the whole scene, averaged to the size of :meth:`within`."""
        return self._read(out_shape=self.within(most), resampling=rasters.averaging(self.source))

    def _read(self, **part: Any) -> ImagePixels:
        with damage_named(self.file):
            pixels = rasters.bands_of(self.file, self.source, self.header, self.wanted, **part)
        return ImagePixels(*pixels)


@contextmanager
def open_image(file: Path, formats: tuple[str, ...] = FORMATS) -> Iterator[OpenImage]:
    """Open an image file once, by the library that reads its pixels.

    Args:
        file: the image, of any of ``formats``.
        formats: Pillow's names of formats.

    Raises:
        InputError: a file that is no image, or damaged.
    """
    with ExitStack() as stack:
        with damage_named(file, formats):
            stream = stack.enter_context(regular_file(file).open("rb"))
            if stream.read(4) in rasters.TIFF_STARTS:
                source = stack.enter_context(rasters.opened(file))
                header = rasters.header_of(file, source, _tiff_orientation(stream))
                image = OpenImage(file, header, stream, source=source)
            else:
                picture = picture_in(stream, formats)
                image = OpenImage(file, _header(picture), stream, picture)
        yield image


@contextmanager
def opened_picture(
    file: Path, wanted: PixelFormat, by_windows: bool = True
) -> Iterator[ImagePixels | Scene]:
    """Open an image with the bands that a network takes.

    An upright TIFF is a :class:`Scene` to be read ``by_windows``; any other image is read whole.
    """
    with open_image(file) as image:
        if by_windows and image.source is not None and image.header.orientation == 1:
            refuse_other(file, image.header, wanted)
            yield Scene(file, image.source, image.header, wanted)
        else:
            yield image.read(wanted)


def read_header(file: Path) -> Header:
    """Read size, bands and numbers of an image file without decoding its pixels.

    Raises:
        InputError: a file that is no image.
    """
    with open_image(file) as image:
        return image.header


def read_image(file: Path, wanted: PixelFormat = RGB) -> ImagePixels:
    """Read the image of a file, see :meth:`OpenImage.read`."""
    with open_image(file) as image:
        return image.read(wanted)


def picture_pixels(picture: Image.Image, file: Path) -> ImagePixels:
    """Return an 8-bit picture of any mode in RGB, upright.

    Raises:
        InputError: a picture of more bits.
    """
    if picture.format == "TIFF":
        picture.load()  # Pillow turns it, and then removes the orientation
    header = _header(picture)
    refuse_other(file, header, RGB)
    return _decoded(picture, header, RGB)


def _decoded(picture: Image.Image, header: Header, wanted: PixelFormat) -> ImagePixels:
    mode = "L" if header.bands == 1 and not wanted.is_rgb else "RGB"
    values = np.atleast_3d(np.asarray(picture.convert(f"{mode}A" if header.alpha else mode)))
    values = upright(values, header.orientation)
    if not header.alpha or values.shape[2] == wanted.bands:
        return ImagePixels(values)
    valid = values[..., -1] != 0
    return ImagePixels(np.ascontiguousarray(values[..., :-1]), None if valid.all() else valid)


def whole_header(file: Path, wanted: PixelFormat) -> Header:
    """Return the header of a whole image that a network takes.

    A TIFF is decoded for it.

    Raises:
        InputError: a damaged image, or one that a network does not take.
    """
    with open_image(file) as image:
        refuse_other(file, image.header, wanted)
        if image.source is not None:
            image.read(wanted)
        image.refuse_damaged(thoroughly=True)
        return image.header


def refuse_other(file: Path | str, header: Header, wanted: PixelFormat) -> None:
    """Raise an InputError for an image that a network does not take."""
    fits = wanted.bands in (header.bands, header.bands + header.alpha)
    if wanted.is_rgb:
        fits = header.is_rgb
    kinds = {kind_of(header.dtype), *(["floating point"] if header.scaled else [])}
    if fits and kind_of(wanted.dtype) in kinds:
        return
    hint = ""
    if wanted.is_rgb and header.dtype != "uint8":
        hint = "; make 8-bit copies, with the range of the data from black to white, or train on such images"
    raise InputError(
        f"{file}: has {header.described}, and the network sees {wanted.described}{hint}"
    )


def left_out(file: Path, header: Header, wanted: PixelFormat) -> str | None:
    """Return a sentence about a band for transparency, or pages, that are not read.

    None is returned where everything is read.
    """
    if header.alpha and wanted.bands <= header.bands:
        return (
            f"{file}: its last band is transparency: where it is 0 there is no data; if it holds data, such as near "
            f"infrared, train with --bands.number {header.bands + 1}"
        )
    if header.pages > 1:
        return f"{file}: has {header.pages} pages or frames, of which the first is read"
    return None


def pixels_and_mask(
    image: ImagePixels, pixels: PixelFormat, size: Size | None
) -> tuple[Numbers, Mask]:
    """Return the pixels of an image at ``size``, and the mask of those that hold data.

    Resizing is bicubic; None keeps the image's own size. Bands are float32, with their mean where
    they hold no data, so that resizing spreads none of it.
    """
    values = image.values
    valid = image.valid
    if not pixels.is_rgb:
        values = values.astype(np.float32)
        holes = np.isnan(values)
        if valid is not None:
            holes |= ~valid[..., None]
        values = np.where(holes, np.asarray(pixels.mean, np.float32), values)
    if size in (None, values.shape[1::-1]):
        return values, valid
    return resized(values, size), resized_mask(valid, size)


def _header(picture: Image.Image) -> Header:
    """Return the header of a picture that Pillow opened."""
    mode = picture.mode
    # Pillow cuts 16-bit colours to 8: PNG has 16 in the decoder's mode, PPM its largest number
    kind, *more = decoder_arguments(picture)
    deep = ";16" in str(kind) or (picture.format == "PPM" and more and more[0] > 255)
    dtype = "float32" if mode == "F" else "uint16" if deep or mode[0] == "I" else "uint8"
    # a phone's JPEG has a small copy
    pages = getattr(picture, "n_frames", 1) if picture.format in LOSSLESS else 1
    orientation = _orientation(picture)
    return Header(
        size=picture.size[::-1] if orientation in SIDEWAYS else picture.size,
        bands=1 if mode in GREY else 3,
        dtype=dtype,
        alpha=picture.has_transparency_data,
        pages=pages,
        orientation=orientation,
    )


def decoder_arguments(picture: Image.Image) -> tuple[Any, ...]:
    """Return Pillow's decoder arguments, such as ``("RGB;16B",)``, of an image not decoded yet."""
    tiles = getattr(picture, "tile", [])
    arguments = tiles[0][3] if tiles else None
    return arguments if isinstance(arguments, tuple) and arguments else (arguments,)


def _tiff_orientation(stream: BinaryIO) -> int:
    """Return the orientation of a TIFF, which GDAL does not tell.

    It is 1 where Pillow cannot read the file.
    """
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _orientation(picture_in(stream, ("TIFF",)))
    return 1


def _orientation(picture: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8, of an image that is not decoded yet; 1 is upright."""
    if picture.format == "PNG" and not _EXIF_OF_PNG & picture.info.keys():
        return 1  # else Pillow decodes the pixels to search behind them
    # broken EXIF raises nearly anything; the pixels may be good
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        orientation = int(picture.getexif().get(ExifTags.Base.Orientation, 1))
        return orientation if 1 <= orientation <= 8 else 1
    return 1
