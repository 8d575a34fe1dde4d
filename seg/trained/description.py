"""Description of a trained network: normalisation and size of its images, meaning of its outputs.

Shapes: B batch, C classes, H × W pixels, h × w the logits' own resolution.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dem_apps.errors import InputError, passed_on
from dem_apps.runtime.documents import read_json, required
from dem_apps.runtime.files import write_json
from dem_apps.test_time_methods.network import find_logits
from seg.data.labels import ClassSet, load_classes, named_classes
from seg.data.pixel_format import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    PIXELS_FILE,
    RGB,
    Mask,
    PixelFormat,
    read_format,
    rgb_format,
)

#: Files beside the weights: transformers' own, and two of ours.
PREPROCESSOR_FILE, CLASSES_FILE = "preprocessor_config.json", "classes.json"
DESCRIPTION_FILES = (PREPROCESSOR_FILE, CLASSES_FILE, PIXELS_FILE)
_ORDERS = ("rgb", "bgr")
#: Of a deviation; less is shown on the scale from 0 to 255.
_FINE = 0.02
#: The content of a preprocessor file where nothing says it.
ASSUMED: dict[str, Any] = {
    "image_mean": IMAGENET_MEAN,
    "image_std": IMAGENET_STD,
    "assumed": "ImageNet's",
}
#: How the origin of a normalisation begins where nothing says it.
GUESS = "a guess: "
#: Switches of a processor that are followed, or that change no pixel but for place and size.
_KNOWN = tuple(
    f"do_{each}"
    for each in (
        "rescale",
        "normalize",
        "flip_channel_order",
        "resize",
        "reduce_labels",
        "center_crop",
        "pad",
        "convert_rgb",
    )
)


@dataclass(frozen=True)
class Description:
    """Input (:meth:`normalised`) and output (:meth:`logits`) of a network."""

    pixels: PixelFormat = RGB  #: of the images, and how they are normalised
    order: str = "rgb"  #: of the channels that the network sees, ``rgb`` or ``bgr``
    #: of mean, deviation and order
    origin: str = dataclasses.field(default="the training", compare=False)
    multiple: int = 1  #: the network takes sides that are multiples of it
    #: (width, height) that the network was trained to see; None is the images' own
    size: tuple[int, int] | None = None
    classes: ClassSet | None = None  #: what the C outputs mean; None where that is not known
    align_corners: bool = True  #: of the upsampling of logits
    #: The key, or place, of the logits in what the network returns; None is ``logits``, ``main`` or ``out``.
    output: str | int | None = None
    probabilities: bool = False  #: whether the network returns probabilities in place of logits
    #: Whether id 0 of a label image is no class and id k is output k - 1, as a processor of transformers may say.
    reduce_labels: bool = False
    #: what was left out, for the user
    notes: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.pixels.is_rgb and max(self.pixels.mean) > 1:
            mean = list(self.pixels.mean)
            raise InputError(
                f"mean {mean}: expected a scale from 0 to 1; of 0 to 255 divide by 255, or say scale"
            )
        if self.order not in _ORDERS or self.multiple < 1:
            raise InputError(
                f"order '{self.order}', multiple {self.multiple}: expected rgb or bgr, and 1 or more"
            )

    @classmethod
    def read(
        cls, folder: Path, document: Mapping[str, Any] | None = None, outputs: int = 0, **known: Any
    ) -> Description:
        """The description in a folder's ``preprocessor_config.json``, ``classes.json`` and ``pixels.json``.

        ``document`` is the library's in place of the first, or ``assumed`` without it; ``known`` are other fields.
        """
        pixels, file, document = (
            read_format(folder),
            folder / PREPROCESSOR_FILE,
            document or ASSUMED,
        )
        if file.is_file() and "assumed" in document:
            own = required(read_json(file), str(file))
            silent = own.get("do_normalize", True) and "image_mean" not in own
            document = {**document, **own, **own.get("guess", {})} if silent else own
        known["origin"] = f"the network's own {file.name if pixels.is_rgb else PIXELS_FILE}"
        if pixels.is_rgb and "assumed" in document:
            known["origin"] = f"{GUESS}{document['assumed']}"
        known["order"] = _ORDERS[pixels.is_rgb and bool(document.get("do_flip_channel_order"))]
        known["notes"] = tuple(_notes(document, folder, pixels))
        known["size"] = _size(document.get("size")) if document.get("do_resize") else None
        known["reduce_labels"] = bool(
            document.get("do_reduce_labels") or document.get("reduce_labels")
        )
        if (folder / CLASSES_FILE).is_file():
            known["classes"] = load_classes(str(folder / CLASSES_FILE))
        elif known["reduce_labels"]:
            classes = known.get("classes") or named_classes(outputs)
            known["classes"] = dataclasses.replace(
                classes, ids=tuple(range(1, outputs + 1)), ignored=(0,)
            )
        with passed_on(
            f"{file}: expected image_mean and image_std of three numbers each, and a rescale_factor"
        ):
            if pixels.is_rgb:
                pixels = rgb_format(*_normalisation(document))
            return cls(pixels, **known)

    @property
    def guessed(self) -> bool:
        """Whether nothing says how images are normalised."""
        return self.origin.startswith(GUESS)

    @property
    def normalisation(self) -> dict[str, Any]:
        """Mean and deviation in RGB, on a ``scale`` of 0 to 1 or 255; order of the channels, and who says so."""
        pixels = self.pixels
        scale = 255 if pixels.is_rgb and max(pixels.std) < _FINE else 1
        mean, std = (
            [float(f"{scale * value:.6g}") for value in each] for each in (pixels.mean, pixels.std)
        )
        numbers = {
            "mean": mean,
            "std": std,
            "channels": self.order,
            "scale": scale if pixels.is_rgb else None,
        }
        return {**numbers, "origin": self.origin}

    @property
    def said(self) -> str:
        """:attr:`normalisation` in words, with its origin."""
        return f"{self.numbers} ({self.origin})"

    @property
    def numbers(self) -> str:
        """:attr:`normalisation` in words."""
        own = self.normalisation
        mean, std = (" ".join(f"{value:.4g}" for value in own[name]) for name in ("mean", "std"))
        order = (
            f"{self.order.upper()} from 0 to {own['scale']}"
            if self.pixels.is_rgb
            else self.pixels.described
        )
        return f"{order}, mean {mean}, deviation {std}"

    def write(self, folder: Path, guess: bool = True) -> None:
        """Write what :meth:`read` reads; a guessed normalisation as a ``guess``, or without that not at all."""
        pixels, size, file = self.pixels, self.size, folder / PREPROCESSOR_FILE
        preprocessor: dict[str, Any] = {
            "do_reduce_labels": self.reduce_labels,
            "do_resize": size is not None,
        }
        if size is not None:
            preprocessor["size"] = {"height": size[1], "width": size[0]}
        numbers = {
            "do_normalize": True,
            "do_rescale": pixels.is_rgb,
            "rescale_factor": 1 / 255,
            "image_mean": list(pixels.mean),
            "image_std": list(pixels.std),
            "do_flip_channel_order": self.order == "bgr",
            "do_center_crop": False,
        }
        if not self.guessed:
            preprocessor |= numbers
        elif guess:
            preprocessor["guess"] = {**numbers, "assumed": self.origin.removeprefix(GUESS)}
        documents: dict[str, Any] = {}
        if any(preprocessor.values()):
            documents[PREPROCESSOR_FILE] = (
                read_json(file) if file.is_file() else {}
            ) | preprocessor
        if self.classes is not None:
            documents[CLASSES_FILE] = self.classes.document()
        if not pixels.is_rgb:
            documents[PIXELS_FILE] = pixels.document()
        for name, document in documents.items():
            write_json(folder / name, document)

    def told(
        self,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
        channels: str | None,
        scale: int | None,
    ) -> Description:
        """The same with what the user says of the normalisation; None is left as it is."""
        numbers, order = (
            any(each is not None for each in (mean, std, scale)),
            channels or self.order,
        )
        if not numbers and channels is None:
            return self
        if not self.pixels.is_rgb:
            raise InputError(
                f"--mean, --std, --channels, --scale: the network sees {self.pixels.described}"
            )
        if not numbers:
            return dataclasses.replace(
                self, order=order, origin=f"{self.origin}; the channels: the user"
            )
        mean, std = (
            [value / (scale or 1) for value in each]
            for each in (mean or [0.0] * 3, std or [1.0] * 3)
        )
        return dataclasses.replace(
            self, pixels=rgb_format(mean, std), order=order, origin="the user"
        )

    def normalised(self, image_hwc: NDArray[Any], valid: Mask = None) -> Tensor:
        """(H, W, 3) uint8 RGB, or bands → (3, H, W) float32 as the network takes it; 0 where ``valid`` is False."""
        return self.reordered(self.pixels.normalised(image_hwc, valid))

    def reordered(self, images: Tensor) -> Tensor:
        """(…, 3, H, W) from RGB to the network's order of channels, or back."""
        return images.flip(-3) if self.order == "bgr" else images

    def logits(self, output: Any) -> Tensor:
        """The logits (B, C, h, w) in what the network returned; a single output z means yes or no, and gives (0, z)."""
        values = found_logits(output, self.output)
        if self.probabilities:  # in float32, since 1 minus a small number is 1 in other dtypes
            values = (
                values.float().logit(1e-7)
                if values.shape[1] == 1
                else values.float().clamp_min(1e-12).log()
            )
        return torch.cat([torch.zeros_like(values), values], 1) if values.shape[1] == 1 else values


def found_logits(output: Any, key: str | int | None) -> Tensor:
    """The logits (B, C, h, w) in what a network returned, under a key or a place of a tuple."""
    try:
        values: Any = find_logits(output) if key is None else output[key]
    except (InputError, KeyError, IndexError, TypeError) as error:
        kind = type(output).__name__
        held = (
            f" with the keys {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
        )
        held = f" of {len(output)} values" if isinstance(output, (tuple, list)) else held
        raise InputError(
            f"the network returns a {kind}{held}, and which of it are logits is unknown; 'output' among a function's "
            "facts is their key or place"
        ) from error
    if not isinstance(values, Tensor):
        raise InputError(
            f"the network returns a {type(values).__name__} in place of logits (B, C, h, w)"
        )
    return values


class PlainLogits(nn.Module):
    """A network that returns logits alone, as its description finds them."""

    def __init__(self, network: nn.Module, description: Description) -> None:
        super().__init__()
        self.network, self.description = network, description

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, C, h, w)."""
        return self.description.logits(self.network(images))


def _notes(document: Mapping[str, Any], folder: Path, pixels: PixelFormat) -> list[str]:
    unknown = [
        key
        for key, value in document.items()
        if key.startswith("do_") and value and key not in _KNOWN
    ]
    notes = (
        [f"{folder}: {PREPROCESSOR_FILE} has {', '.join(unknown)}, unknown here and left out"]
        if unknown
        else []
    )
    if document.get("do_resize") and document.get("size") and _size(document["size"]) is None:
        notes.append(
            f"{folder}: {PREPROCESSOR_FILE} resizes images to {document['size']}, which is not done here; --size W,H "
            "shows them to the network at such a size"
        )
    return notes


def _normalisation(document: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation on the scale from 0 to 1, whatever the scale on which the file has them."""
    factor = 255 * float(
        document.get("rescale_factor", 1 / 255) if document.get("do_rescale", True) else 1.0
    )
    if not document.get("do_normalize", True):
        return (0.0,) * 3, (1.0 / factor,) * 3
    mean, std = document["image_mean"], document["image_std"]
    return tuple(float(each) / factor for each in mean), tuple(float(each) / factor for each in std)


def _size(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int):  # files of old versions
        return size, size
    if isinstance(size, Mapping) and all(
        isinstance(size.get(side), int) for side in ("width", "height")
    ):
        return size["width"], size["height"]
    return None


def copy_files(names: Sequence[str], folder: Path, new: Path) -> None:
    """Copy those of the files that are there."""
    for name in names:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, new / name)
