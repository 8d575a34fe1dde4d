"""Description of a trained network: normalisation and size of its images, meaning of its outputs.

Shapes: B batch, C classes, H × W pixels, h × w the logits' own resolution.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dem_apps.errors import InputError, passed_on
from dem_apps.runtime.documents import Document, read_json, required
from dem_apps.runtime.files import write_json
from dem_apps.test_time_methods.network import find_logits
from seg.data.files import Size
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

#: Numbers of R, G and B.
Triple = Sequence[float]
_ZEROS, _ONES = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
#: Files beside the weights: transformers' own, and two of ours.
PREPROCESSOR_FILE, CLASSES_FILE = "preprocessor_config.json", "classes.json"
DESCRIPTION_FILES = (PREPROCESSOR_FILE, CLASSES_FILE, PIXELS_FILE)
_ORDERS = ("rgb", "bgr")
#: Settings of a processor by which id 0 of a label image is no class; the second is an older name.
_REDUCES = ("do_reduce_labels", "reduce_labels")
#: A normalisation with a smaller deviation is shown on the scale from 0 to 255.
_FINE = 0.02
#: The content of a preprocessor file where no file and no encoder says it.
ASSUMED: Document = {
    "image_mean": IMAGENET_MEAN,
    "image_std": IMAGENET_STD,
    "assumed": "ImageNet's",
}
#: How the origin of a normalisation begins where no file and no user says it.
GUESS = "a guess: "


@dataclass(frozen=True)
class Description:
    """How a network sees images, and what its outputs mean.

    :meth:`normalised` makes the input.
    """

    pixels: PixelFormat = RGB  #: format and normalisation of the images
    order: str = "rgb"  #: order of the channels that the network sees, ``rgb`` or ``bgr``
    #: who says mean, deviation and order
    origin: str = field(default="the training", compare=False)
    multiple: int = 1  #: the network takes sides that are multiples of it
    #: (width, height) that the network was trained to see; None is the images' own
    size: Size | None = None
    classes: ClassSet | None = None  #: meaning of the C outputs; None where it is not known
    align_corners: bool = True  #: whether upsampling of the logits aligns corners
    #: True if id 0 of a label image is no class and id k is output k - 1.
    #: A processor of transformers may say so.
    reduce_labels: bool = False
    #: what was left out, for the user
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.pixels.is_rgb and max(self.pixels.mean) > 1:
            raise InputError(
                f"mean {list(self.pixels.mean)} is above 1; give it on the scale from 0 to 1, or add scale 255"
            )
        if self.order not in _ORDERS or self.multiple < 1:
            raise InputError(
                f"channels '{self.order}', multiple {self.multiple}: expected rgb or bgr, and 1 or more"
            )

    @classmethod
    def read(
        cls, folder: Path, document: Document | None = None, outputs: int = 0, **known: Any
    ) -> Description:
        """Read a folder's ``preprocessor_config.json``, ``classes.json`` and ``pixels.json``.

        Args:
            folder: holds the weights.
            document: content of the first file as the library reads it, or a guess with the key ``assumed``.
            outputs: number of the network's outputs.
            known: other fields.
        """
        file, pixels = folder / PREPROCESSOR_FILE, read_format(folder)
        document = _with_file(document or ASSUMED, file)
        origin = f"the network's own {PIXELS_FILE}"
        fields: Document = {"pixels": pixels, "origin": origin, **known}
        if pixels.is_rgb:
            fields |= _input_fields(document, file)
        reduces = fields["reduce_labels"] = any(map(document.get, _REDUCES))
        if (folder / CLASSES_FILE).is_file():
            fields["classes"] = load_classes(str(folder / CLASSES_FILE))
        elif reduces:
            classes, ids = known.get("classes") or named_classes(outputs), range(1, outputs + 1)
            fields["classes"] = replace(classes, ids=tuple(ids), ignored=(0,))
        description = cls(**fields)
        if not document.get("do_resize"):
            return description
        match document.get("size"):
            case {"width": int(width), "height": int(height)}:
                return replace(description, size=(width, height))
            case size:  # depends on the image
                note = f"{file}: resizes images to {size}, which is not done here; give --size W,H"
                return replace(description, notes=(*description.notes, note))

    @property
    def guessed(self) -> bool:
        """Return whether nothing says how images are normalised."""
        return self.origin.startswith(GUESS)

    @property
    def normalisation(self) -> Document:
        """Mean and deviation in RGB, on a ``scale`` of 0 to 1 or 255; order of the channels, and who says so."""
        pixels = self.pixels
        scale = 255 if pixels.is_rgb and max(pixels.std) < _FINE else 1
        mean, std = (
            [float(f"{scale * value:.6g}") for value in values]
            for values in (pixels.mean, pixels.std)
        )
        return {
            "mean": mean,
            "std": std,
            "channels": self.order,
            "scale": scale if pixels.is_rgb else None,
            "origin": self.origin,
        }

    @property
    def described(self) -> str:
        """:attr:`normalisation` in words, with its origin."""
        return f"{self.numbers} ({self.origin})"

    @property
    def numbers(self) -> str:
        """:attr:`normalisation` in words."""
        numbers, bands = self.normalisation, self.pixels.described
        if self.pixels.is_rgb:
            bands = f"{self.order.upper()} from 0 to {numbers['scale']}"
        mean, std = (
            " ".join(f"{value:.4g}" for value in numbers[name]) for name in ("mean", "std")
        )
        return f"{bands}, mean {mean}, deviation {std}"

    def write(self, folder: Path) -> None:
        """Write the files that :meth:`read` reads.

        A guessed normalisation is not written.
        """
        pixels, file = self.pixels, folder / PREPROCESSOR_FILE
        preprocessor: Document = {
            "do_reduce_labels": self.reduce_labels,
            "do_flip_channel_order": self.order == "bgr",
            "do_resize": self.size is not None,
        }
        if self.size is not None:
            preprocessor["size"] = {"height": self.size[1], "width": self.size[0]}
        if not self.guessed:
            preprocessor |= {
                "do_normalize": True,
                "do_rescale": pixels.is_rgb,
                "rescale_factor": 1 / 255,
                "image_mean": list(pixels.mean),
                "image_std": list(pixels.std),
                "do_center_crop": False,
            }
        if any(preprocessor.values()):
            before = read_json(file) if file.is_file() else {}
            write_json(file, before | preprocessor)
        if self.classes is not None:
            write_json(folder / CLASSES_FILE, self.classes.document())
        if not pixels.is_rgb:
            write_json(folder / PIXELS_FILE, pixels.document())

    def told(
        self,
        mean: Triple | None,
        std: Triple | None,
        channels: str | None,
        scale: int | None,
        origin: str = "the user",
    ) -> Description:
        """The same with what the user says of the normalisation; None leaves a part as it is.

        Args:
            mean: what becomes 0 in R, G and B, on ``scale``; with ``std``.
            std: what becomes 1 above it.
            channels: ``rgb`` or ``bgr``.
            scale: 255 or 1; without mean and deviation pixels reach from 0 to it.
            origin: names the user.

        Raises:
            InputError: the network sees other bands than 8-bit RGB.
        """
        if not any((mean, channels, scale)):
            return self
        if not self.pixels.is_rgb:
            raise InputError(
                f"--mean, --std, --channels, --scale: the network sees {self.pixels.described}"
            )
        order = channels or self.order
        if mean is None and scale is None:
            origin = f"{self.origin}; the channels: {origin}"
            return replace(self, order=order, origin=origin)
        pixels = _rgb_on(scale or 1, mean or _ZEROS, std or _ONES)
        return replace(self, pixels=pixels, order=order, origin=origin)

    def normalised(self, image_hwc: NDArray[Any], valid: Mask = None) -> Tensor:
        """Normalise an image as the network takes it.

        Args:
            image_hwc: (H, W, 3) uint8 RGB, or bands.
            valid: False where the result is 0.

        Returns:
            (3, H, W) float32.
        """
        return self.reordered(self.pixels.normalised(image_hwc, valid))

    def reordered(self, images: Tensor) -> Tensor:
        """Reorder the channels of (…, 3, H, W) from RGB to the network's order, or back."""
        return images.flip(-3) if self.order == "bgr" else images


def class_logits(output: Any) -> Tensor:
    """Return the logits (B, C, h, w) in what a network returned.

    A single output z means yes or no, and gives (0, z).
    """
    values = find_logits(output)
    return torch.cat([torch.zeros_like(values), values], 1) if values.shape[1] == 1 else values


class PlainLogits(nn.Module):
    """A network that returns logits alone, two for a single output."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits.

        Args:
            images: (B, 3, H, W).

        Returns:
            (B, C, h, w).
        """
        return class_logits(self.network(images))


def _with_file(document: Document, file: Path) -> Document:
    """Content of a preprocessor ``file`` in place of a guess, which stands where the file has no numbers."""
    if not file.is_file() or "assumed" not in document:
        return document
    stated = required(read_json(file), str(file))
    has_numbers = "image_mean" in stated or not stated.get("do_normalize", True)
    return stated if has_numbers else {**document, **stated}


def _input_fields(document: Document, file: Path) -> Document:
    """Format, order and origin of 8-bit RGB by the content of a preprocessor ``file``."""
    with passed_on(
        f"{file}: expected image_mean and image_std of three numbers each, and a rescale_factor"
    ):
        # on the scale from 0 to 1, whatever the scale on which the file has them
        rescale = document.get("rescale_factor", 1 / 255) if document.get("do_rescale", True) else 1
        mean, std = _ZEROS, _ONES
        if document.get("do_normalize", True):
            mean, std = document["image_mean"], document["image_std"]
        pixels = _rgb_on(255 * float(rescale), mean, std)
    origin = f"the network's own {file.name}"
    if "assumed" in document:
        origin = f"{GUESS}{document['assumed']}"
    order = _ORDERS[bool(document.get("do_flip_channel_order"))]
    return {"pixels": pixels, "order": order, "origin": origin}


def _rgb_on(scale: float, mean: Triple, std: Triple) -> PixelFormat:
    """8-bit RGB with a mean and a deviation on a scale that is not 0 to 1."""
    return rgb_format(*([value / scale for value in values] for values in (mean, std)))


def copy_files(names: Sequence[str], folder: Path, new: Path) -> None:
    """Copy the files that are there."""
    for name in names:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, new / name)
