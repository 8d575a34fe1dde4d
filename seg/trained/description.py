"""What a trained network expects of images and what it returns: the one description that every command reads.

Shapes: B batch, C classes, H × W pixels, h × w the logits' own resolution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dem_apps.errors import InputError, passed_on
from dem_apps.runtime.documents import read_json, required
from dem_apps.runtime.files import write_json
from dem_apps.test_time_methods.network import find_logits
from seg.data.labels import ClassSet, load_classes, named_classes
from seg.data.pixel_format import IMAGENET_MEAN, IMAGENET_STD, PIXELS_FILE, RGB, PixelFormat, read_format, rgb_format

#: Files beside the weights: transformers' own, and two of ours.
PREPROCESSOR_FILE, CLASSES_FILE = "preprocessor_config.json", "classes.json"
DESCRIPTION_FILES = (PREPROCESSOR_FILE, CLASSES_FILE, PIXELS_FILE)
_ORDERS = ("rgb", "bgr")
#: The content of a preprocessor file where nothing says it.
ASSUMED: dict[str, Any] = {"image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD, "assumed": "ImageNet's, in RGB"}
#: Switches of a processor that are followed, or that change no pixel but for place and size.
_KNOWN = tuple(
    f"do_{each}" for each in
    ("rescale", "normalize", "flip_channel_order", "resize", "reduce_labels", "center_crop", "pad", "convert_rgb")
)  # fmt: skip


@dataclass(frozen=True)
class Description:
    """What a network expects of images, see :meth:`normalised`, and what it returns, see :meth:`logits`."""

    pixels: PixelFormat = RGB  #: of the images, and how they are normalised
    order: str = "rgb"  #: of the channels that the network sees, ``rgb`` or ``bgr``
    multiple: int = 1  #: the network takes sides that are multiples of it
    size: tuple[int, int] | None = None  #: (width, height) that the network was trained to see; None is the images' own
    classes: ClassSet | None = None  #: what the C outputs mean; None where that is not known
    align_corners: bool = True  #: of the upsampling of logits
    #: The key of the logits in what the network returns; None is ``logits``, ``main`` or ``out``.
    output: str | None = None
    probabilities: bool = False  #: whether the network returns probabilities in place of logits
    #: Whether id 0 of a label image is no class and id k is output k - 1, as a processor of transformers may say.
    reduce_labels: bool = False
    notes: tuple[str, ...] = dataclasses.field(default=(), compare=False)  #: what was assumed or left out, for the user

    def __post_init__(self) -> None:
        if self.pixels.is_rgb and max(self.pixels.mean) > 1:
            raise InputError(f"mean {list(self.pixels.mean)}: expected a scale from 0 to 1; of 0 to 255 divide by 255")
        if self.order not in _ORDERS or self.multiple < 1:
            raise InputError(f"order '{self.order}', multiple {self.multiple}: expected rgb or bgr, and 1 or more")

    def normalised(self, image_hwc: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> Tensor:
        """(H, W, 3) uint8 RGB, or bands → (3, H, W) float32 as the network takes it; 0 where ``valid`` is False."""
        result = self.pixels.normalised(image_hwc, valid)
        return result.flip(0) if self.order == "bgr" else result

    def logits(self, output: Any) -> Tensor:
        """The logits (B, C, h, w) in what the network returned; a single output z means yes or no, and gives (0, z)."""
        values: Tensor = find_logits(output if self.output is None else output[self.output])
        if self.probabilities:  # in float32, since 1 minus a small number is 1 in other dtypes
            values = values.float().logit(1e-7) if values.shape[1] == 1 else values.float().clamp_min(1e-12).log()
        return torch.cat([torch.zeros_like(values), values], 1) if values.shape[1] == 1 else values


class PlainLogits(nn.Module):
    """A network that returns logits alone, as its description finds them."""

    def __init__(self, network: nn.Module, description: Description) -> None:
        super().__init__()
        self.network, self.description = network, description

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, C, h, w)."""
        return self.description.logits(self.network(images))


def read_description(
    folder: Path, document: Mapping[str, Any] | None = None, outputs: int = 0, **known: Any
) -> Description:
    """The description of a folder, by its ``preprocessor_config.json``, ``classes.json`` and ``pixels.json``.

    ``document`` is what the library says in place of the first, or ``assumed`` without it; ``known`` are other fields.
    """
    pixels, file = read_format(folder), folder / PREPROCESSOR_FILE
    if file.is_file() and (document is None or "assumed" in document):
        document = required(read_json(file), str(file))
    document = document or ASSUMED
    known["order"] = _ORDERS[pixels.is_rgb and bool(document.get("do_flip_channel_order"))]
    known["notes"] = tuple(_notes(document, folder, pixels))
    known["size"] = _size(document.get("size")) if document.get("do_resize") else None
    known["reduce_labels"] = bool(document.get("do_reduce_labels") or document.get("reduce_labels"))
    if (folder / CLASSES_FILE).is_file():
        known["classes"] = load_classes(str(folder / CLASSES_FILE))
    elif known["reduce_labels"]:
        classes = known.get("classes") or named_classes([f"class {index}" for index in range(outputs)])
        known["classes"] = dataclasses.replace(classes, ids=tuple(range(1, outputs + 1)), ignored=(0,))
    with passed_on(f"{file}: expected image_mean and image_std of three numbers each, and a rescale_factor"):
        if pixels.is_rgb:
            pixels = rgb_format(*_normalisation(document))
        return Description(pixels, **known)


def _notes(document: Mapping[str, Any], folder: Path, pixels: PixelFormat) -> list[str]:
    unknown = [key for key, value in document.items() if key.startswith("do_") and value and key not in _KNOWN]
    notes = [f"{folder}: {PREPROCESSOR_FILE} has {', '.join(unknown)}, unknown here and left out"] if unknown else []
    if document.get("do_resize") and document.get("size") and _size(document["size"]) is None:
        notes.append(
            f"{folder}: {PREPROCESSOR_FILE} resizes images to {document['size']}, which is not done here; --size W,H "
            "shows them to the network at such a size"
        )
    if "assumed" in document and pixels.is_rgb:
        notes.append(
            f"{folder} does not say how images are normalised: assumed is {document['assumed']}; {PREPROCESSOR_FILE} "
            "beside its weights, with image_mean and image_std, would say another"
        )
    return notes


def write_description(description: Description, folder: Path) -> None:
    """Write the files that :func:`read_description` reads."""
    pixels, size = description.pixels, description.size
    sizes = {} if size is None else {"size": {"height": size[1], "width": size[0]}}
    preprocessor = {
        "do_normalize": True, "do_rescale": pixels.is_rgb, "rescale_factor": 1 / 255,
        "image_mean": list(pixels.mean), "image_std": list(pixels.std),
        "do_flip_channel_order": description.order == "bgr", "do_resize": bool(sizes), **sizes,
        "do_center_crop": False, "do_reduce_labels": description.reduce_labels,
    }  # fmt: skip
    documents: dict[str, Any] = {PREPROCESSOR_FILE: preprocessor}
    if description.classes is not None:
        documents[CLASSES_FILE] = description.classes.document()
    if not pixels.is_rgb:
        documents[PIXELS_FILE] = pixels.document()
    for name, document in documents.items():
        write_json(folder / name, document)


def _normalisation(document: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation on the scale from 0 to 1, whatever the scale on which the file has them."""
    factor = 255 * float(document.get("rescale_factor", 1 / 255) if document.get("do_rescale", True) else 1.0)
    if not document.get("do_normalize", True):
        return (0.0,) * 3, (1.0 / factor,) * 3
    mean, std = document["image_mean"], document["image_std"]
    return tuple(float(each) / factor for each in mean), tuple(float(each) / factor for each in std)


def _size(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int):  # files of old versions
        return size, size
    if isinstance(size, Mapping) and all(isinstance(size.get(side), int) for side in ("width", "height")):
        return size["width"], size["height"]
    return None
