"""TIFF and GeoTIFF by rasterio (extra ``geo``): any bands and numbers, nodata, coordinates; H × W pixels, B bands."""

from __future__ import annotations

import functools
import importlib.util
import struct
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dem_apps.errors import InputError, first_words
from dem_apps.runtime.files import write_atomically
from seg.data.pixel_format import MOST_BANDS, SIDEWAYS, upright

#: Most pixels of an image.
MOST_PIXELS = 1 << 28
_ORIENTATION = 0x0112
_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
NEEDED = "needs rasterio, which is not installed here; pip install 'dem-apps[geo]'"


#: Coordinates of an image: its ``crs`` and ``transform``, as rasterio reads and writes them.
Georeference = dict[str, Any]


@dataclass(frozen=True)
class Header:
    """Metadata of an image file."""

    size: tuple[int, int]  #: (width, height), upright
    bands: int  #: without a band for transparency
    dtype: str  #: numpy's name of its numbers
    alpha: bool = False  #: whether a band for transparency comes after the others
    colours: tuple[int, int, int] | None = None  #: the bands, from 0, that the file names red, green and blue
    nodata: float | None = None  #: the number that stands for no data in the first band, where the file names one

    @property
    def is_rgb(self) -> bool:
        """Whether it is an 8-bit picture in colours or in grey, which networks see as RGB."""
        return self.dtype == "uint8" and self.bands in (1, 3)

    @property
    def described(self) -> str:
        """A short description."""
        return f"{self.bands} band{'s' * (self.bands > 1)} of {self.dtype}"


def is_tiff(file: Path) -> bool:
    """Whether a file is a TIFF, by its first bytes."""
    with suppress(OSError), open(file, "rb") as opened:
        return opened.read(4) in _MAGIC
    return False


def orientation_of(file: Path) -> int:
    """The orientation, 1 to 8, by its tag in a TIFF's first directory, which GDAL does not tell; 1 without one."""
    with suppress(OSError, struct.error), open(file, "rb") as opened:
        start = opened.read(16)
        order, large = "<" if start[:1] == b"I" else ">", b"+" in start[2:4]
        (place,) = struct.unpack_from(order + ("Q" if large else "I"), start, 8 if large else 4)
        opened.seek(place)
        number, entry = (order + form for form in (("Q", "HHQ8s") if large else ("H", "HHI4s")))
        (entries,) = struct.unpack(number, opened.read(struct.calcsize(number)))
        for tag, _, _, value in struct.iter_unpack(entry, opened.read(entries * struct.calcsize(entry))):
            (orientation,) = struct.unpack_from(order + "H", value)
            if tag == _ORIENTATION and 1 <= orientation <= 8:
                return int(orientation)
    return 1


@functools.cache
def available() -> bool:
    """Whether the extra ``geo`` is installed."""
    return importlib.util.find_spec("rasterio") is not None


def readable(file: Path) -> bool:
    """Whether rasterio reads a file."""
    return is_tiff(file) and available()


def read_header(file: Path) -> Header:
    """The header of a TIFF; an InputError where it is damaged or too large, or holds complex numbers."""
    with _opened(file) as source:
        kinds = [kind.name for kind in source.colorinterp]
        alpha = len(kinds) > 1 and kinds[-1] == "alpha"
        bands = source.count - alpha
        dtype = np.result_type(*source.dtypes).name
        if "complex" in dtype or bands > MOST_BANDS or source.width * source.height > MOST_PIXELS:
            raise InputError(
                f"{file}: has {source.width} × {source.height} pixels in {bands} bands of {dtype}; expected real "
                f"numbers, {MOST_BANDS} bands and {MOST_PIXELS:,} pixels at most"
            )
        if kinds[0] in ("palette", "cyan"):
            bands = 3  # after conversion to RGB
        colours = None
        if {"red", "green", "blue"} <= set(kinds):
            colours = (kinds.index("red"), kinds.index("green"), kinds.index("blue"))
        size = (source.width, source.height)
        size = size[::-1] if orientation_of(file) in SIDEWAYS else size
        return Header(size, bands, dtype, alpha, colours, source.nodata)


def read_raster(file: Path, bands: int) -> tuple[NDArray[Any], NDArray[np.bool_] | None, Georeference | None]:
    """The first ``bands`` bands of a TIFF as (H, W, B) in their own numbers, where they hold data, and coordinates."""
    with _opened(file) as source:
        wanted = list(range(1, bands + 1))
        values = np.moveaxis(source.read(wanted), 0, -1)
        return _upright(file, _place(source), values, _valid(source, wanted, values))


def read_rgb(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.bool_] | None, Georeference | None]:
    """The same of an 8-bit TIFF as (H, W, 3) colours, by its palette where it has one."""
    with _opened(file) as source:
        wanted = [1, 2, 3] if source.count > 2 else [1]
        values = np.moveaxis(source.read(wanted), 0, -1)
        if source.colorinterp[0].name == "palette":
            palette = source.colormap(1)
            values = np.array([palette.get(index, (0, 0, 0))[:3] for index in range(256)], np.uint8)[values[..., 0]]
        elif len(wanted) == 1:
            white_is_0 = source.tags(ns="IMAGE_STRUCTURE").get("MINISWHITE") == "YES"
            values = (255 - values if white_is_0 else values).repeat(3, axis=2)
        return _upright(file, _place(source), values, _valid(source, wanted, None))


def read_beside(file: Path) -> tuple[NDArray[np.bool_] | None, Georeference | None]:
    """What Pillow does not read: which pixels hold data, (H, W) or None for all, and coordinates."""
    with _opened(file) as source:
        alpha = source.count > 1 and source.colorinterp[-1].name == "alpha"
        wanted = list(range(1, source.count + 1 - alpha))
        return _upright(file, _place(source), _valid(source, wanted, None))


def read_ids(file: Path, kept: Collection[int] = ()) -> NDArray[np.uint8]:
    """(H, W) ids of a TIFF label image with one band of whole numbers; 255 where it holds no data.

    An id of ``kept`` is data, also where the file calls it none: what the classes say wins.
    """
    with _opened(file) as source:
        dtype, compression = source.dtypes[0], str(source.profile.get("compress", "")).lower()
        if source.count != 1 or not np.issubdtype(np.dtype(dtype), np.integer):
            has = f"{source.count} band{'s' * (source.count > 1)} of {dtype}"
            raise InputError(f"{file}: a label image holds one id per pixel, and this one has {has}")
        if compression in ("jpeg", "webp", "lerc"):
            raise InputError(f"{file}: {compression} rounds ids to other ids; save the label without")
        ids = source.read(1)
        valid = None if source.nodata in kept else _valid(source, [1], None)
    ids, valid, _ = _upright(file, None, ids, valid)
    if valid is not None:
        ids = np.where(valid, ids, 255)
    if ids.min() < 0 or ids.max() > 255:
        worst = int(ids.min() if ids.min() < 0 else ids.max())
        raise InputError(f"{file}: holds the id {worst}, and ids are 0 to 255; name it as nodata, or number anew")
    return np.asarray(ids, np.uint8)


def write_geotiff(
    path: Path,
    values: NDArray[Any],
    place: Georeference,
    nodata: float,
    description: str,
    colours: Sequence[tuple[int, int, int]] | None = None,
) -> None:
    """Write (H, W) uint8 or float32 numbers as a GeoTIFF of one band; ``colours`` are those of 0, 1, … for viewers."""
    import rasterio.io

    profile: dict[str, Any] = {
        "driver": "GTiff", "height": values.shape[0], "width": values.shape[1], "count": 1, "dtype": values.dtype.name,
        "nodata": nodata, "compress": "deflate", **place,
    }  # fmt: skip
    if min(values.shape) >= 256:
        profile |= {"tiled": True, "blockxsize": 256, "blockysize": 256}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of coordinates in pixels
        with rasterio.io.MemoryFile() as memory:
            with memory.open(**profile) as target:
                target.write(values, 1)
                target.set_band_description(1, description)
                if colours is not None:
                    target.write_colormap(1, {number: (*colour, 255) for number, colour in enumerate(colours)})
            content = memory.read()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def _valid(source: Any, wanted: list[int], values: NDArray[Any] | None) -> NDArray[np.bool_] | None:
    """(H, W): where a band holds data, by nodata or by the file's mask, and all are finite; None for everywhere."""
    flags = [{flag.name for flag in source.mask_flag_enums[band - 1]} for band in wanted]
    valid = np.True_
    # a band for transparency is left aside: it says what is shown, not what is there
    if all("nodata" in each or ("per_dataset" in each and "alpha" not in each) for each in flags):
        valid = functools.reduce(np.logical_or, (source.read_masks(band) != 0 for band in wanted))
    if values is not None and np.issubdtype(values.dtype, np.floating):
        valid = valid & np.isfinite(values).all(axis=-1)
    return None if valid.all() else np.asarray(valid)


def _upright(file: Path, place: Georeference | None, *arrays: Any) -> tuple[Any, ...]:
    """The arrays turned as the file says, and its coordinates, which turned pixels have none of."""
    orientation = orientation_of(file)
    turned = (None if array is None else upright(array, orientation) for array in arrays)
    return *turned, place if orientation == 1 else None


def _place(source: Any) -> Georeference | None:
    bare = source.crs is None and source.transform.is_identity
    return None if bare else {"crs": source.crs, "transform": source.transform}


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """A rasterio dataset, by GDAL's TIFF driver alone: other drivers follow descriptions that point elsewhere."""
    import rasterio

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an image without coordinates
            with rasterio.open(file, driver="GTiff") as source:
                yield source
    except InputError:
        raise
    except Exception as error:  # GDAL's errors have no common class
        raise InputError(
            f"{file}: the image cannot be read, it is damaged or cut short ({first_words(error)})"
        ) from error
