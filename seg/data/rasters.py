"""TIFF, GeoTIFF and deep PNG and PPM by rasterio (extra ``geo``), as GDAL reads them; H × W pixels, B bands."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from dem_apps.errors import InputError, first_words
from dem_apps.runtime.files import whole_file
from dem_apps.runtime.images import MOST_PIXELS
from seg.data.pixel_format import MOST_BANDS, SIDEWAYS, Mask, PixelFormat, upright

_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_NEEDED = "TIFF and images of more than 8 bits need rasterio, which is not installed here; pip install 'dem-apps[geo]'"
#: Bytes of pixels that GDAL keeps while a scene is read and written by windows: a row of tiles of 30,000 columns.
_CACHE = 1 << 28
#: Coordinates of an image: its ``crs`` and ``transform``, as rasterio reads and writes them.
Georeference = dict[str, Any]


@dataclass(frozen=True)
class Header:
    """Metadata of an image file."""

    size: tuple[int, int]  #: (width, height), upright
    bands: int  #: without a band for transparency
    dtype: str  #: numpy's name of its numbers
    alpha: bool = False  #: whether a band for transparency comes after the others
    #: the bands, from 0, that the file names red, green and blue
    colours: tuple[int, int, int] | None = None
    #: the number that stands for no data in the first band, where the file names one
    nodata: float | None = None
    #: whether the file has a scale or an offset for its numbers, which are applied
    scaled: bool = False
    pages: int = 1  #: pages or frames, of which the first is read
    orientation: int = 1  #: how it is stored, 1 to 8 by EXIF or a TIFF's tag; 1 is upright
    #: coordinates, if the file has them
    place: Georeference | None = field(default=None, compare=False)

    @property
    def is_rgb(self) -> bool:
        """Whether it is an 8-bit picture in colours or in grey, which networks see as RGB."""
        return self.dtype == "uint8" and self.bands in (1, 3) and not self.scaled

    @property
    def described(self) -> str:
        """A short description."""
        scale = " with a scale and an offset" if self.scaled else ""
        return f"{self.bands} band{'s' * (self.bands > 1)} of {self.dtype}{scale}"


def is_tiff(file: Path) -> bool:
    """Whether a file is a TIFF, by its first bytes."""
    return _start(file) in _MAGIC


def _start(file: Path) -> bytes:
    with suppress(OSError), open(file, "rb") as opened:
        return opened.read(4)
    return b""


def orientation_of(file: Path) -> int:
    """The orientation, 1 to 8, by its tag in a TIFF's first directory, which GDAL does not tell; 1 without one."""
    # Pillow, of a damaged one
    with suppress(Exception), warnings.catch_warnings(), open(file, "rb") as opened:
        warnings.simplefilter("ignore")
        start = opened.read(16)
        large = b"+" in start[2:4]
        directory = ImageFileDirectory_v2(start if large else start[:8])
        opened.seek(directory.next)
        directory.load(opened)
        orientation = int(directory.get(ExifTags.Base.Orientation, 1))
        return orientation if 1 <= orientation <= 8 else 1
    return 1


def read_header(file: Path) -> Header:
    """The header of a TIFF; an InputError where it is damaged, or holds complex numbers."""
    with opened(file) as source:
        kinds = [kind.name for kind in source.colorinterp]
        alpha = len(kinds) > 1 and kinds[-1] == "alpha"
        bands = source.count - alpha
        dtype = np.result_type(*source.dtypes).name
        if "complex" in dtype or bands > MOST_BANDS:
            raise InputError(
                f"{file}: has {bands} bands of {dtype}; expected real numbers, {MOST_BANDS} bands at most"
            )
        if kinds[0] == "palette":
            bands = 3  # after conversion to RGB
        colours = None
        if {"red", "green", "blue"} <= set(kinds):
            colours = (kinds.index("red"), kinds.index("green"), kinds.index("blue"))
        orientation = orientation_of(file)
        size = (
            (source.height, source.width)
            if orientation in SIDEWAYS
            else (source.width, source.height)
        )
        bare = orientation != 1 or (source.crs is None and source.transform.is_identity)
        scaled = any(scale != 1 for scale in source.scales) or any(source.offsets)
        return Header(
            size,
            bands,
            dtype,
            alpha,
            colours,
            source.nodata,
            scaled,
            max(1, len(source.subdatasets)),
            orientation,
            None if bare else {"crs": source.crs, "transform": source.transform},
        )


def read_bands(file: Path, header: Header, wanted: PixelFormat) -> tuple[NDArray[Any], Mask]:
    """(H, W, B) numbers, or colours of an 8-bit picture, and (H, W) where GDAL's mask says data; None for everywhere.

    Bands are ordered by their names, scale and offset applied. A band without data where others have some is NaN.
    """
    with opened(file) as source:
        _refuse_large(file, source)
        values, valid = bands_of(source, header, wanted)
    return upright(values, header.orientation), None if valid is None else upright(
        valid, header.orientation
    )


def bands_of(
    source: Any, header: Header, wanted: PixelFormat, **part: Any
) -> tuple[NDArray[Any], Mask]:
    """:func:`read_bands` of an open file as it is stored; ``part`` is a ``window`` or an ``out_shape`` of rasterio."""
    names = [kind.name for kind in source.colorinterp]
    if wanted.is_rgb:
        order = list(header.colours or (0, 1, 2)) if source.count > 2 else [0]
    else:
        order = _in_order(header.colours, wanted.colours, wanted.bands)
    values = np.moveaxis(source.read([band + 1 for band in order], **part), 0, -1)
    valid = source.dataset_mask(**part) != 0
    if header.alpha and wanted.bands > header.bands:  # its alpha band holds data
        valid = (values != source.nodata).any(axis=-1)
    elif header.alpha:  # which the mask leaves out beside more than three bands
        valid &= source.read(source.count, **part) != 0
    if np.issubdtype(values.dtype, np.floating):
        valid &= np.isfinite(values).all(axis=-1)
    if source.nodata is not None and not wanted.is_rgb and values.shape[2] > 1:
        holes = (
            np.stack([source.read_masks(band + 1, **part) == 0 for band in order], -1)
            & valid[..., None]
        )
        if holes.any():
            values = np.where(holes, np.float32(np.nan), values.astype(np.float32))
    if header.scaled:
        scales, offsets = (np.asarray(each)[order] for each in (source.scales, source.offsets))
        values = (values * scales + offsets).astype(np.float32)
    if names[0] == "palette" and wanted.is_rgb:
        palette = source.colormap(1)
        values = np.array([palette.get(index, (0, 0, 0))[:3] for index in range(256)], np.uint8)[
            values[..., 0]
        ]
    elif len(order) == 1 and wanted.is_rgb:
        white_is_0 = source.tags(ns="IMAGE_STRUCTURE").get("MINISWHITE") == "YES"
        values = (255 - values if white_is_0 else values).repeat(3, axis=2)
    return np.ascontiguousarray(values), None if valid.all() else valid


def read_ids(file: Path, header: Header, kept: Collection[int]) -> tuple[NDArray[Any], Mask]:
    """(H, W) ids of a TIFF label, as stored, and where it holds data or an id of ``kept``, None for everywhere."""
    with opened(file) as source:
        _refuse_large(file, source)
        dtype, compression = source.dtypes[0], str(source.profile.get("compress", "")).lower()
        if source.count - header.alpha != 1 or not np.issubdtype(np.dtype(dtype), np.integer):
            has = f"{source.count} band{'s' * (source.count > 1)} of {dtype}"
            raise InputError(
                f"{file}: a label image holds one id per pixel, and this one has {has}"
            )
        if compression in ("jpeg", "webp", "lerc"):
            raise InputError(
                f"{file}: {compression} rounds ids to other ids; save the label without"
            )
        ids, valid = source.read(1), source.dataset_mask() != 0
        if source.nodata in kept:
            valid |= ids == source.nodata
    return ids, None if valid.all() else valid


def refuse_other_ground(label: Path, image: Path) -> None:
    """Raises an InputError for a label that lies on other ground than its image, by the coordinates of both."""
    if not is_tiff(label) or not is_tiff(image):
        return
    from rasterio.transform import array_bounds

    own, there = read_header(label), read_header(image)
    if own.place is None or there.place is None:
        return
    crs, other_crs = own.place["crs"], there.place["crs"]
    bounds, others = (
        array_bounds(*each.size[::-1], each.place["transform"])
        for each in (own, there)
        if each.place
    )
    half_a_pixel = abs(own.place["transform"].a) / 2
    if not np.allclose(bounds, others, rtol=0, atol=half_a_pixel) or (
        crs and other_crs and crs != other_crs
    ):
        raise InputError(
            f"{label}: lies on other ground than its image {image}, by the coordinates of both; bring it onto the "
            "pixels of its image, for example with gdalwarp"
        )


@contextmanager
def new_geotiff(
    path: Path,
    size: tuple[int, int],
    dtype: str,
    place: Georeference | None,
    nodata: float,
    description: str,
    colours: Sequence[tuple[int, int, int]] | None = None,
) -> Iterator[Any]:
    """A GeoTIFF of one band of (H, W) pixels, to be written; ``colours`` are those of 0, 1, … for viewers."""
    import rasterio
    from rasterio._err import CPLE_BaseError
    from rasterio.errors import RasterioIOError

    profile: dict[str, Any] = {
        "driver": "GTiff",
        "height": size[0],
        "width": size[1],
        "count": 1,
        "dtype": dtype,
        "nodata": nodata,
        "compress": "deflate",
        "bigtiff": "if_safer",
        **(place or {}),
    }
    if min(size) >= 256:
        profile |= {"tiled": True, "blockxsize": 256, "blockysize": 256}
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of coordinates in pixels
        try:
            with rasterio.open(temporary, "w", **profile) as target:
                target.set_band_description(1, description)
                if colours is not None:
                    target.write_colormap(
                        1, {number: (*colour, 255) for number, colour in enumerate(colours)}
                    )
                yield target
            # one that a full disk cut short was closed without an error
            with rasterio.open(temporary) as written:
                written.checksum(1)
        except (CPLE_BaseError, RasterioIOError) as error:
            raise OSError(errno.ENOSPC, str(error)) from error


def _in_order(
    named: tuple[int, ...] | None, wanted: tuple[int, ...] | None, bands: int
) -> list[int]:
    """The file's bands, from 0, in the network's order: by the colours that both name, the others as they come."""
    if not named or not wanted or max(*named, *wanted) >= bands:
        return list(range(bands))
    colours = dict(zip(wanted, named, strict=True))
    others = iter(band for band in range(bands) if band not in named)
    return [colours[place] if place in colours else next(others) for place in range(bands)]


def _refuse_large(file: Path, source: Any) -> None:
    """Raises an InputError for an image that is not read whole."""
    if source.width * source.height > MOST_PIXELS:
        raise InputError(
            f"{file}: has {source.width} × {source.height} pixels; {MOST_PIXELS:,} are read at most, and any number "
            "by --tile N of seg.export, for GeoTIFF and pictures"
        )


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """A rasterio dataset; an InputError where it cannot be read."""
    with reading(file), raster(file) as source:
        yield source


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Within, GDAL's errors are InputErrors that name the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an image without coordinates
            yield
    except InputError:
        raise
    except Exception as error:  # GDAL's errors have no common class
        raise InputError(
            f"{file}: the image cannot be read, it is damaged or cut short ({first_words(error)})"
        ) from error


def averaging(source: Any) -> Any:
    """How a dataset is read at fewer pixels: by their mean, of colours by number by the nearest."""
    from rasterio.enums import Resampling

    return Resampling.nearest if source.colorinterp[0].name == "palette" else Resampling.average


@contextmanager
def raster(file: Path) -> Iterator[Any]:
    """A rasterio dataset by one of three of GDAL's drivers: others follow descriptions that point elsewhere.

    GDAL caches few pixels, not a twentieth of the machine's memory.
    """
    try:
        import rasterio
    except ImportError as error:
        raise InputError(f"{file}: {_NEEDED}") from error
    driver = "GTiff" if is_tiff(file) else "PNG" if _start(file) == b"\x89PNG" else "PNM"
    with rasterio.Env(GDAL_CACHEMAX=_CACHE), rasterio.open(file, driver=driver) as source:
        yield source
