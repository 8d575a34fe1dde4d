"""``preprocessor_config.json``, in which transformers keeps what is done to images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dem_apps.errors import InputError
from dem_apps.runtime.files import read_json
from seg.data.pixel_format import PIXELS_FILE, read_format
from seg.models.preprocessing import ORDERS, Preprocessing

PREPROCESSOR_FILE = "preprocessor_config.json"


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
    if not isinstance(document, dict):
        raise InputError(f"{file}: expected a mapping, found {type(document).__name__}")
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
