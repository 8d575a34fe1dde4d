"""Converts paths, PIL images, arrays and tensors, one or many, to the arrays that networks are fed from.

Shapes: B images, H × W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

_EXPECTED = (
    "expected a path, a PIL image, an array (H, W, 3) or a tensor (3, H, W), of uint8 or of numbers from 0 to 1, or a "
    "list of these"
)


def is_many(images: Any) -> bool:
    """Whether it is several images: a list, a folder, or an array or a tensor with a dimension for them."""
    if isinstance(images, (str, Path)):
        return Path(images).is_dir()
    if isinstance(images, (np.ndarray, Tensor)):
        return images.ndim == 4
    return isinstance(images, Sequence)


def each_image(images: Any, pixels: PixelFormat = RGB) -> Iterator[ImagePixels]:
    """Every image of :func:`is_many` kinds, read when it is its turn."""
    files = find_images(Path(images)) if isinstance(images, (str, Path)) else images
    yield from (one_image(image, pixels) for image in files)


def one_image(image: Any, pixels: PixelFormat = RGB) -> ImagePixels:
    """One image as a network sees it: of 8-bit RGB, grey is repeated and an alpha channel is dropped.

    Raises:
        InputError: something else than an image, numbers of unknown scale, or other bands than the network's.
    """
    if isinstance(image, (str, Path)):
        return read_image(Path(image), pixels)
    if pixels.is_rgb:
        return ImagePixels(_rgb(image))
    if isinstance(image, (np.ndarray, Tensor)):
        return _bands(image, pixels)
    raise InputError(
        f"image: got a {type(image).__name__}; expected a path, an array (H, W, {pixels.bands}) or a tensor "
        f"({pixels.bands}, H, W) of {pixels.described}, or a list of these"
    )


def _bands(image: Any, pixels: PixelFormat) -> ImagePixels:
    """NaN holds no data."""
    values = image.detach().cpu().numpy() if isinstance(image, Tensor) else image
    if values.ndim == 3 and isinstance(image, Tensor):
        values = values.transpose(1, 2, 0)
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim != 3 or values.shape[2] != pixels.bands or 0 in values.shape:
        raise InputError(f"image: has shape {tuple(image.shape)}, and the network sees {pixels.described}")
    if kind_of(values.dtype.name) != kind_of(pixels.dtype):
        raise InputError(f"image: holds {values.dtype}, and the network sees {pixels.described}, in the same units")
    valid = np.isfinite(values).all(2)
    return ImagePixels(values, None if valid.all() else valid)


def _rgb(image: Any) -> NDArray[np.uint8]:
    if isinstance(image, Image.Image):
        return as_rgb(image, Path(getattr(image, "filename", None) or "image"))
    if isinstance(image, Tensor):
        values = image.detach().cpu().numpy()
        if values.ndim == 3:
            values = values.transpose(1, 2, 0)
        return _array(values, f"a tensor of shape {tuple(image.shape)}")
    if isinstance(image, np.ndarray):
        return _array(image, f"an array of shape {image.shape}")
    raise InputError(f"image: got a {type(image).__name__}; {_EXPECTED}")


def _array(values: NDArray[Any], what: str) -> NDArray[np.uint8]:
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim != 3 or values.shape[2] not in (1, 3, 4) or 0 in values.shape:
        raise InputError(f"image: got {what}; {_EXPECTED}")
    values = values[..., :3] if values.shape[2] > 1 else values.repeat(3, axis=2)
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    if not np.issubdtype(values.dtype, np.floating):
        raise InputError(f"image: got {what} and {values.dtype}, whose scale is not known; {_EXPECTED}")
    if not np.isfinite(values).all() or values.min() < 0 or values.max() > 1:
        raise InputError(
            f"image: got {what} with values from {values.min():.3g} to {values.max():.3g}; floating point is expected "
            "from 0 to 1, before any normalisation, which the network's own folder knows"
        )
    scaled: NDArray[np.uint8] = (values * 255).round().astype(np.uint8)
    return scaled
