"""TIFF, GeoTIFF and deep PNG and PPM, read by rasterio (extra ``geo``) as GDAL reads them.

Shapes: H × W pixels, B bands.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dem_apps.errors import InputError
from dem_apps.runtime.files import whole_file
from dem_apps.runtime.images import MOST_PIXELS, damage_named
from seg.data.files import Size
from seg.data.pixel_format import (
    MOST_BANDS,
    SIDEWAYS,
    Bools,
    Channels,
    Mask,
    Numbers,
    PixelFormat,
    upright,
)

#: The first bytes of a TIFF.
TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_NEEDED = "TIFF and images of more than 8 bits need rasterio, which is not installed here; pip install 'dem-apps[geo]'"
#: GDAL keeps few pixels while a scene is read by windows, a row of tiles of 30,000 columns and not a twentieth of the
#: memory. It opens no file beside the image: a NAME.tif.ovr may be a description that points elsewhere.
_OPTIONS = {"GDAL_CACHEMAX": 1 << 28, "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR"}
#: Largest magnitude of a number. Larger ones stand for no data that a program did not declare.
_LARGEST = 1e30
#: Compressions that round ids to other ids.
_LOSSY = ("jpeg", "webp", "lerc")
#: Coordinates of an image: its ``crs`` and ``transform``, as rasterio reads and writes them.
Georeference = dict[str, Any]


@dataclass(frozen=True)
class Header:
    """Metadata of an image file."""

    size: Size  #: (width, height), upright
    bands: int  #: without a band for transparency
    dtype: str  #: numpy's name of its numbers
    alpha: bool = False  #: whether a band for transparency comes after the others
    #: the bands, from 0, that the file names red, green and blue
    colours: Channels | None = None
    #: whether the file has a scale or an offset for its numbers, which are applied
    scaled: bool = False
    pages: int = 1  #: pages or frames, of which the first is read
    orientation: int = 1  #: how it is stored, 1 to 8 by EXIF or a TIFF's tag; 1 is upright
    #: coordinates, if the file has them
    place: Georeference | None = field(default=None, compare=False)

    @property
    def is_rgb(self) -> bool:
        """True for an 8-bit picture in colours or in grey, which networks see as RGB."""
        return self.dtype == "uint8" and self.bands in (1, 3) and not self.scaled

    @property
    def described(self) -> str:
        """Short description of the bands and their numbers."""
        scale = " with a scale and an offset" if self.scaled else ""
        return f"{self.bands} band{'s' * (self.bands > 1)} of {self.dtype}{scale}"


@contextmanager
def opened(file: Path, driver: str = "GTiff") -> Iterator[Any]:
    """Open a rasterio dataset by one of GDAL's drivers.

    Others follow descriptions that point elsewhere.

    Raises:
        InputError: the file cannot be opened.
    """
    try:
        import rasterio
    except ImportError as error:
        raise InputError(f"{file}: {_NEEDED}") from error
    with rasterio.Env(**_OPTIONS):
        with damage_named(file), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an image without coordinates causes one
            source = rasterio.open(file, driver=driver)
        with source:
            yield source


def header_of(file: Path, source: Any, orientation: int) -> Header:
    """Return the header of an open TIFF.

    Raises:
        InputError: complex numbers, or too many bands.
    """
    kinds = [kind.name for kind in source.colorinterp]
    alpha = len(kinds) > 1 and kinds[-1] == "alpha"
    bands = source.count - alpha
    dtype = np.result_type(*source.dtypes).name
    if "complex" in dtype or bands > MOST_BANDS:
        raise InputError(
            f"{file}: has {bands} bands of {dtype}; expected real numbers, {MOST_BANDS} bands at most"
        )
    colours = None
    if {"red", "green", "blue"} <= set(kinds):
        colours = kinds.index("red"), kinds.index("green"), kinds.index("blue")
    return Header(
        size=source.shape if orientation in SIDEWAYS else source.shape[::-1],
        bands=3 if kinds[0] == "palette" else bands,  # after conversion to RGB
        dtype=dtype,
        alpha=alpha,
        colours=colours,
        scaled={*source.scales} != {1} or {*source.offsets} != {0},
        pages=max(1, len(source.subdatasets)),
        orientation=orientation,
        place=_place(source) if orientation == 1 else None,
    )


def _place(source: Any) -> Georeference | None:
    """Return the coordinates of an open file, if it has them."""
    if source.crs is None and source.transform.is_identity:
        return None
    return {"crs": source.crs, "transform": source.transform}


def refuse_large(file: Path, source: Any) -> None:
    """Raise an InputError for an image that is too large to be read whole."""
    if source.width * source.height > MOST_PIXELS:
        raise InputError(
            f"{file}: has {source.width} × {source.height} pixels; {MOST_PIXELS:,} are read at most, and any number "
            "by --tile N of seg.export, for GeoTIFF and pictures"
        )


def bands_of(
    file: Path, source: Any, header: Header, wanted: PixelFormat, **part: Any
) -> tuple[Numbers, Mask]:
    """Read the numbers of an open file, upright, and where it holds data.

    Bands are ordered by their names, scale and offset applied. A band without data where others
    have some is NaN.

    Args:
        file: its name, for errors.
        source: rasterio's data set.
        header: the file's.
        wanted: the bands that a network takes.
        part: a ``window`` or an ``out_shape`` of rasterio.

    Returns:
        (H, W, B) numbers, or colours of an 8-bit picture; (H, W), None for data everywhere.

    Raises:
        InputError: a number beyond 1e30.
    """
    order = _order(source, header, wanted)
    bands = [band + 1 for band in order]
    values = np.moveaxis(source.read(bands, **part), 0, -1)
    valid = _valid(source, header, wanted, values, part)
    if wanted.is_rgb:
        values = _in_colours(source, values)
    elif source.nodata is not None and len(bands) > 1:
        masks = np.moveaxis(source.read_masks(bands, **part), 0, -1)
        if (holes := (masks == 0) & valid[..., None]).any():
            values = np.where(holes, np.float32(np.nan), values.astype(np.float32))
    beyond = valid[..., None] & (np.abs(values) > _LARGEST)
    if beyond.any():
        raise InputError(
            f"{file}: holds {values[beyond][0]:.8g}; if it stands for no data, say so in the file "
            "(gdal_edit.py -a_nodata)"
        )
    if header.scaled:
        scales, offsets = (np.asarray(each)[order] for each in (source.scales, source.offsets))
        values = (values * scales + offsets).astype(np.float32)
    values = upright(values, header.orientation)
    return values, None if valid.all() else upright(valid, header.orientation)


def _order(source: Any, header: Header, wanted: PixelFormat) -> list[int]:
    """Return the file's bands, from 0, in the network's order.

    The order follows the colours that both name; the other bands stay as they come.
    """
    if wanted.is_rgb:
        return list(header.colours or (0, 1, 2)) if source.count > 2 else [0]
    bands = range(wanted.bands)
    named = header.colours
    order = wanted.colours
    if not named or not order or not {*named, *order} <= {*bands}:
        return list(bands)
    colours = dict(zip(order, named, strict=True))
    others = iter(band for band in bands if band not in named)
    return [colours[place] if place in colours else next(others) for place in bands]


def _valid(
    source: Any, header: Header, wanted: PixelFormat, values: Numbers, part: dict[str, Any]
) -> Bools:
    """Return where GDAL's mask says data and no number is NaN, (H, W)."""
    valid = np.asarray(source.dataset_mask(**part) != 0)
    if header.alpha and wanted.bands > header.bands:  # its alpha band holds data
        valid = (values != source.nodata).any(axis=-1)
    elif header.alpha:  # which the mask leaves out beside more than three bands
        valid &= source.read(source.count, **part) != 0
    if values.dtype.kind == "f":
        valid &= np.isfinite(values).all(axis=-1)
    return valid


def _in_colours(source: Any, values: Numbers) -> Numbers:
    """Return the colours, (H, W, 3), of a picture with one band of palette indices or grey.

    Other pictures are returned as they are.
    """
    if source.colorinterp[0].name == "palette":
        table = np.asarray(list(source.colormap(1).values()), np.uint8)
        return table[values[..., 0], :3]
    if values.shape[2] > 1:
        return values
    white_is_0 = source.tags(ns="IMAGE_STRUCTURE").get("MINISWHITE") == "YES"
    return (255 - values if white_is_0 else values).repeat(3, axis=2)


def ids_of(
    file: Path, source: Any, header: Header, classes: Collection[int]
) -> tuple[Numbers, Bools]:
    """Read the ids of an open TIFF label, (H, W), as stored.

    Returns:
        The ids; where the label holds data or an id of ``classes``, (H, W).

    Raises:
        InputError: several bands, no whole numbers, or a compression that changes ids.
    """
    refuse_large(file, source)
    dtype = source.dtypes[0]
    compression = str(source.profile.get("compress", "")).lower()
    if source.count - header.alpha != 1 or np.dtype(dtype).kind not in "iu":
        raise InputError(
            f"{file}: a label image holds one id per pixel, as a whole number, and this one has {header.described}; "
            "gdal_translate -ot Byte IN OUT makes such numbers of others"
        )
    if compression in _LOSSY:
        raise InputError(f"{file}: {compression} rounds ids to other ids; save the label without")
    with damage_named(file):
        ids = source.read(1)
        valid = source.dataset_mask() != 0
    if source.nodata in classes:
        valid |= ids == source.nodata
    return ids, valid


@contextmanager
def new_geotiff(
    path: Path,
    size: tuple[int, ...],
    dtype: str,
    place: Georeference | None,
    nodata: float,
    bands: Sequence[str],
    colours: Sequence[Sequence[int]] | None = None,
) -> Iterator[Any]:
    """Open a GeoTIFF of (H, W) pixels for writing, with a name for each band.

    ``colours`` are the colours of the numbers 0, 1, ….
    """
    import rasterio
    from rasterio._err import CPLE_BaseError
    from rasterio.errors import RasterioIOError

    profile: dict[str, Any] = {
        "driver": "GTiff",
        "height": size[0],
        "width": size[1],
        "count": len(bands),
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
        warnings.simplefilter("ignore")  # coordinates in pixels cause one
        try:
            with rasterio.open(temporary, "w", **profile) as target:
                target.descriptions = bands
                if colours is not None:
                    target.write_colormap(1, dict(enumerate(colours)))
                yield target
            # a file that a full disk cut short was closed without an error
            with rasterio.open(temporary) as written:
                written.checksum(1)
        except (CPLE_BaseError, RasterioIOError) as error:
            raise OSError(errno.ENOSPC, str(error)) from error


def averaging(source: Any) -> Any:
    """Return the resampling that reads a dataset at fewer pixels.

    It is the mean, or the nearest pixel where numbers stand for colours.
    """
    from rasterio.enums import Resampling

    return Resampling.nearest if source.colorinterp[0].name == "palette" else Resampling.average
