"""The pixel format of a run: 8-bit RGB in its encoder's normalisation, or bands with measured statistics.

Shapes: H × W pixels, B bands.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dem_apps.errors import InputError, passed_on
from dem_apps.runtime.documents import Document, read_json, required, shaped
from seg.data.files import Size

#: Mean and standard deviation of ImageNet in RGB, 0 to 1.
#: Most encoders' published weights expect them.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: File in the folder of a run that does not see 8-bit RGB in ImageNet's normalisation.
PIXELS_FILE = "pixels.json"
MOST_BANDS = 512
Bools = NDArray[np.bool_]
#: (H, W), False where there is no data; None for data everywhere.
Mask = Bools | None
#: Arrays of pixels in a file's own numbers, (H, W, …), of counts and of statistics.
Numbers = NDArray[Any]
Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
#: Bands, from 0, that are red, green and blue.
Channels = tuple[int, int, int]
#: Orientations of EXIF and TIFF that change width for height.
SIDEWAYS = (5, 6, 7, 8)
#: Percentiles of a band that become black and white in previews; most pixels that give them.
_BLACK, _WHITE, _SEEN = 2.0, 98.0, 1 << 20


@dataclass(frozen=True)
class PixelFormat:
    """Number of bands that a network sees, the kind of their numbers, and their normalisation."""

    bands: int = 3  #: B
    dtype: str = "uint8"  #: numpy's name of the numbers that the training images hold
    #: B numbers that become 0, for 8-bit RGB from 0 to 1, for others in the images' own units.
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD  #: B deviations that become 1, in the same units
    #: the bands that are displayed as red, green and blue, counted from 0
    shown: Channels = (0, 1, 2)
    measured_on: str = ""  #: a description of the images that gave mean and deviation
    is_rgb: bool = False  #: whether the images are 8-bit RGB
    #: The bands, from 0, that the training images name red, green and blue; None where they name none.
    colours: Channels | None = None

    def __post_init__(self) -> None:
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        if not finite or not len(self.mean) == len(self.std) == self.bands or min(self.std) <= 0:
            raise InputError(
                f"pixels: expected {self.bands} finite means and deviations above 0, one for each band"
            )
        if not {*self.shown, *(self.colours or ())} <= {*range(self.bands)}:
            raise InputError(f"pixels: expected bands to show of 0 to {self.bands - 1}")

    @property
    def described(self) -> str:
        """Short description of the bands and their numbers."""
        if self.is_rgb:
            return "8-bit RGB"
        return f"{self.bands} band{'s' * (self.bands > 1)} of {self.dtype}"

    def normalised(self, values: Numbers, valid: Mask = None) -> Tensor:
        """Normalise an image for the network.

        Args:
            values: (H, W, B) as read.
            valid: (H, W), False where there is no data.

        Returns:
            (B, H, W) float32 as the network takes it; 0, the mean, where ``valid`` is False.
        """
        if self.is_rgb:
            # the same numbers as by arithmetic, in a fifth of its time
            mapped = cv2.LUT(values, _table(self.mean, self.std))
        else:
            mean, std = np.asarray([self.mean, self.std], np.float32)
            mapped = (values - mean) / std
        result = torch.from_numpy(np.ascontiguousarray(mapped.transpose(2, 0, 1), np.float32))
        if valid is not None:
            result[:, torch.from_numpy(~valid)] = 0.0
        return result

    def preview(self, values: Numbers, valid: Mask = None) -> NDArray[np.uint8]:
        """Convert an image to (H, W, 3) uint8 for display.

        RGB stays as it is. Of other images the ``shown`` bands are each stretched over their
        percentiles. The percentiles, 2 and 98, are the image's own, of the pixels that hold data.
        Pixels without data are black.
        """
        if self.is_rgb:
            return values
        shown = values[..., self.shown].astype(np.float32)
        if valid is not None:
            shown[~valid] = np.nan
        stride = max(1, math.isqrt(values.shape[0] * values.shape[1] // _SEEN))
        sample = shown[::stride, ::stride].astype(np.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a band without data causes one
            low, high = np.nanpercentile(sample, [_BLACK, _WHITE], axis=(0, 1))
        gain = 255 / np.where(high > low, high - low, np.inf)
        stretched = (shown - low.astype(np.float32)) * gain.astype(np.float32)
        return np.asarray(np.nan_to_num(stretched.clip(0, 255)), np.uint8)

    def document(self) -> Document:
        """Return the format as :func:`read_format` reads it.

        Bands are counted from 1 there.
        """
        counted = {"shown": self.shown, "colours": self.colours}
        return {
            **asdict(self),
            **{name: bands and [band + 1 for band in bands] for name, bands in counted.items()},
        }


#: 8-bit RGB in ImageNet's normalisation.
RGB = PixelFormat(is_rgb=True)


def rgb_format(mean: Sequence[float], std: Sequence[float]) -> PixelFormat:
    """Return the format of 8-bit RGB in another normalisation."""
    return PixelFormat(mean=tuple(mean), std=tuple(std), is_rgb=True)


def read_format(folder: Path) -> PixelFormat:
    """Read the format in a folder's file.

    Without a file it is 8-bit RGB in ImageNet's normalisation.
    """
    file = folder / PIXELS_FILE
    if not file.is_file():
        return RGB
    document = required(
        read_json(file), str(file), bands=int, dtype=str, mean=list, std=list, shown=list
    )
    with passed_on(str(file)):
        counted = {
            name: document.get(name) and [band - 1 for band in document[name]]
            for name in ("shown", "colours")
        }
        dtype = np.dtype(document["dtype"]).name
    return shaped(PixelFormat, {**document, **counted, "dtype": dtype}, str(file))


@functools.cache
def _table(mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float32]:
    """(1, 256, 3): what each of the 256 values of a channel becomes."""
    levels = np.arange(256, dtype=np.float32)[None, :, None] / np.float32(255)
    table: NDArray[np.float32] = levels - np.asarray(mean, np.float32)
    table /= np.asarray(std, np.float32)
    return table


def kind_of(dtype: str) -> str:
    """Return the kind of numbers: ``8 bits``, ``integers`` or ``floating point``.

    Numbers of one kind may stand for each other.
    """
    if dtype == "uint8":
        return "8 bits"
    return "integers" if np.dtype(dtype).kind in "iu" else "floating point"


def upright(values: Numbers, orientation: int) -> Numbers:
    """Turn pixels, (H, W, …), upright from how they are stored.

    ``orientation`` is EXIF's and TIFF's, 1 to 8.
    """
    if orientation in SIDEWAYS:
        values = values.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        values = values[::-1]
    return np.ascontiguousarray(values[:, ::-1] if orientation in (2, 3, 6, 7) else values)


def resized(values: Numbers, size: Size) -> Numbers:
    """Resize bicubically with antialiasing.

    Args:
        values: (H, W, 3) uint8 colours, or (H, W, B) numbers.
        size: (width, height).

    Returns:
        The image at this size: uint8 colours, or float32 numbers.
    """
    if values.dtype == np.uint8:
        return np.asarray(Image.fromarray(values).resize(size, Image.Resampling.BICUBIC))
    bands = np.ascontiguousarray(values.transpose(2, 0, 1), np.float32)
    pictures = [Image.fromarray(band).resize(size, Image.Resampling.BICUBIC) for band in bands]
    return np.stack([np.asarray(picture) for picture in pictures], axis=-1)


def resized_ids(ids: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    """Resize ids (H, W) to ``size``, (width, height), by the nearest pixel, as Pillow does.

    The same array is returned where it has that size.
    """
    if size == ids.shape[::-1]:
        return ids
    resized = cv2.resize(ids, size, interpolation=cv2.INTER_NEAREST_EXACT)
    return np.asarray(resized, np.uint8)


def resized_mask(valid: Mask, size: Size) -> Mask:
    """Resize a mask (H, W) to ``size``, (width, height), by the nearest pixel; None stays None."""
    return None if valid is None else resized_ids(valid.view(np.uint8), size).view(np.bool_)
