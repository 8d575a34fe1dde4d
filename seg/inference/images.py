"""Converts paths, PIL images, arrays and tensors, one or many, to the arrays that networks are fed from.

Shapes: B images, H × W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dem_apps.errors import InputError
from seg.data.files import find_images
from seg.data.pixel_format import RGB, PixelFormat, kind_of
from seg.data.read import ImagePixels, as_rgb, read_image


def listed(images: Any) -> Any:
    """Several images as a sequence: a list, a folder, an array or a tensor (B, …); None where it is one image."""
    if isinstance(images, (str, Path)):
        return find_images(Path(images)) if Path(images).is_dir() else None
    many = images.ndim == 4 if isinstance(images, (np.ndarray, Tensor)) else isinstance(images, Sequence)
    return images if many else None


def one_image(image: Any, pixels: PixelFormat = RGB) -> ImagePixels:
    """One image as a network sees it: of 8-bit RGB, grey is repeated and an alpha channel is dropped.

    Raises:
        InputError: something else than an image, numbers of unknown scale, or other bands than the network's.
    """
    if isinstance(image, (str, Path)):
        return read_image(Path(image), pixels)
    if isinstance(image, Image.Image) and pixels.is_rgb:
        return ImagePixels(as_rgb(image, Path(getattr(image, "filename", None) or "image")))
    if not isinstance(image, (np.ndarray, Tensor)):
        raise InputError(
            f"image: got a {type(image).__name__}; expected a path, an array (H, W, {pixels.bands}) or a tensor "
            f"({pixels.bands}, H, W) of {pixels.described}, a PIL image of 8-bit RGB, or a list of these"
        )
    values = image.detach().cpu().numpy() if isinstance(image, Tensor) else image
    if isinstance(image, Tensor) and values.ndim == 3:
        values = values.transpose(1, 2, 0)
    values = values[..., None] if values.ndim == 2 else values
    channels = (1, 3, 4) if pixels.is_rgb else (pixels.bands,)
    if values.ndim != 3 or values.shape[2] not in channels or 0 in values.shape:
        raise InputError(f"image: has shape {tuple(image.shape)}, and the network sees {pixels.described}")
    return ImagePixels(_rgb(values)) if pixels.is_rgb else _bands(values, pixels)


def _bands(values: NDArray[Any], pixels: PixelFormat) -> ImagePixels:
    """NaN holds no data."""
    if kind_of(values.dtype.name) != kind_of(pixels.dtype):
        raise InputError(f"image: holds {values.dtype}, and the network sees {pixels.described}, in the same units")
    valid = np.isfinite(values).all(2)
    return ImagePixels(values, None if valid.all() else valid)


def _rgb(values: NDArray[Any]) -> NDArray[np.uint8]:
    values = values[..., :3] if values.shape[2] > 1 else values.repeat(3, axis=2)
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    low, high = values.min(), values.max()
    if not np.issubdtype(values.dtype, np.floating) or not (low >= 0 and high <= 1):  # NaN is neither
        raise InputError(
            f"image: holds {values.dtype} from {low:.3g} to {high:.3g}; expected uint8, or floating point from 0 to 1 "
            "before any normalisation"
        )
    scaled: NDArray[np.uint8] = (values * 255).round().astype(np.uint8)
    return scaled
