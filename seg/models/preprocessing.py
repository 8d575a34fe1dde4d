"""What a trained network expects of images: normalisation, order of channels, scale and size.

Shapes: H × W pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dem_apps.errors import InputError
from dem_apps.runtime.files import read_json, required
from seg.data.pixel_format import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    PIXELS_FILE,
    RGB,
    PixelFormat,
    normalisation_table,
    normalised,
    read_format,
)

ORDERS = ("rgb", "bgr")
#: In which transformers keeps what is done to images.
PREPROCESSOR_FILE = "preprocessor_config.json"


@dataclass(frozen=True)
class Preprocessing:
    """What a network expects of images, see :meth:`normalised`.

    Args:
        mean: what becomes 0, in RGB on the scale from 0 to 1.
        std: what becomes 1, likewise.
        order: of the channels that the network sees, ``rgb`` or ``bgr``.
        multiple: the network takes sides that are multiples of it; images are continued to such by the caller.
        size: (width, height) that the network was made to see, or None for the images' own.
        origin: where all this was read, for people.
        pixels: of the images; where these are no 8-bit RGB, mean and deviation are its own, one for each band.

    Raises:
        InputError: another number of channels than 3, numbers that are not finite, a deviation that is not positive.
    """

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    order: str = ORDERS[0]
    multiple: int = 1
    size: tuple[int, int] | None = None
    origin: str = "ImageNet's mean and deviation, as nothing else was named"
    pixels: PixelFormat = RGB

    @classmethod
    def of(cls, pixels: PixelFormat, size: tuple[int, int] | None, origin: str) -> Preprocessing:
        """That of a run."""
        if pixels.is_rgb:
            return cls(size=size, origin=origin)
        return cls(pixels.mean, pixels.std, size=size, origin="as its training images were measured", pixels=pixels)

    def __post_init__(self) -> None:
        if not self.pixels.is_rgb:
            return  # it has been looked at
        finite = all(math.isfinite(value) for value in (*self.mean, *self.std))
        if len(self.mean) != 3 or len(self.std) != 3 or not finite or min(self.std) <= 0:
            raise InputError(
                f"mean {list(self.mean)} and std {list(self.std)} ({self.origin}): expected three numbers each, for "
                "red, green and blue on the scale from 0 to 1, with a positive deviation"
            )
        if self.order not in ORDERS:
            raise InputError(f"order '{self.order}' ({self.origin}): expected one of {', '.join(ORDERS)}")
        if self.multiple < 1:
            raise InputError(f"multiple {self.multiple} ({self.origin}): expected 1 or more")

    @property
    def channels(self) -> int:
        """Of an image."""
        return len(self.mean)

    def normalised(self, image_hwc: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> Tensor:
        """(H, W, 3) uint8 RGB, or bands → (3, H, W) float32 as the network takes it; its size is not changed.

        Where ``valid`` is False the image holds no data and becomes 0.
        """
        if not self.pixels.is_rgb:
            return self.pixels.normalised(image_hwc, valid)
        result = normalised(image_hwc, self._table)
        if self.order == "bgr":
            result = result.flip(0)
        if valid is not None:
            result[:, torch.from_numpy(~valid)] = 0.0
        return result

    @cached_property
    def _table(self) -> NDArray[np.float32]:
        return normalisation_table(self.mean, self.std)


def read_preprocessor(folder: Path) -> Preprocessing | None:
    """What the file in a folder says; None where there is none.

    Resizing to a fixed width and height is kept as ``size``; to a shortest edge, and cropping, are left out, since a
    segmentation is wanted of the whole image.

    Raises:
        InputError: a file that cannot be read, or numbers that make no sense.
    """
    file = folder / PREPROCESSOR_FILE
    if not file.is_file():
        return None
    document = read_json(file)
    required(document, str(file))
    if (folder / PIXELS_FILE).is_file():
        size = _size(document) if document.get("do_resize") else None
        return Preprocessing.of(read_format(folder), size, str(file))
    mean, std = _normalisation(document, file)
    return Preprocessing(
        mean, std,
        order=ORDERS[bool(document.get("do_flip_channel_order"))],
        size=_size(document) if document.get("do_resize") else None,
        origin=str(file),
    )  # fmt: skip


def preprocessor_document(preprocessing: Preprocessing) -> dict[str, Any]:
    """The content of such a file."""
    size = preprocessing.size
    return {
        "do_normalize": True,
        "do_rescale": preprocessing.pixels.is_rgb,
        "rescale_factor": 1 / 255,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "do_flip_channel_order": preprocessing.order == "bgr",
        "do_resize": size is not None,
        **({} if size is None else {"size": {"height": size[1], "width": size[0]}}),
    }


def _normalisation(document: dict[str, Any], file: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation on the scale from 0 to 1, whatever the scale on which the file has them."""
    scale = document.get("rescale_factor", 1 / 255) if document.get("do_rescale", True) else 1.0
    mean: Any = (0.0,) * 3
    std: Any = (1.0,) * 3
    if document.get("do_normalize", True):
        mean, std = document.get("image_mean"), document.get("image_std")
    try:
        factor = 255 * float(scale)
        return tuple(float(each) / factor for each in mean), tuple(float(each) / factor for each in std)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(
            f"{file}: expected image_mean and image_std of three numbers each, and a rescale_factor"
        ) from error


def _size(document: dict[str, Any]) -> tuple[int, int] | None:
    size = document.get("size")
    if isinstance(size, int):  # files of old versions
        return size, size
    if isinstance(size, dict) and all(isinstance(size.get(side), int) for side in ("width", "height")):
        return size["width"], size["height"]
    return None
