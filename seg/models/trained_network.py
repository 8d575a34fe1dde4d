"""A trained network of any format, with all that is needed to predict with it, to adapt it and to save it.

Shapes: B batch, C classes, h × w the logits' own resolution, H × W the images' size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dem_apps.errors import InputError, NotFiniteError
from dem_apps.runtime.files import new_folder
from dem_apps.test_time_methods.network import find_logits
from seg.config import TrainConfig
from seg.data.labels import ClassSet, named_classes
from seg.data.read import ImagePixels, seen
from seg.inference.images import each_image, is_many, one_image
from seg.inference.predicted_image import PredictedImage
from seg.maps.entropy_maps import Prediction
from seg.models.predictor import upsampled, upsampled_bands
from seg.models.preprocessing import Preprocessing
from seg.models.tiles import TilesOfImage, Tiling, tiled_logits

#: Predictions are bytes, and 255 stands for no class.
_MOST_CLASSES = 255


@dataclass(frozen=True)
class Training:
    """How a run's network was trained.

    Args:
        config: the settings of the run.
        checkpoint: the name of the checkpoint that was read, never ``auto``.
        step: the training step that it was saved at.
        re_estimated_on: the images that batch norm's running statistics were re-estimated on, if they were.
    """

    config: TrainConfig
    checkpoint: str
    step: int
    re_estimated_on: str | None = None


@dataclass(frozen=True)
class TrainedNetwork:
    """A network to predict with, to adapt and to save.

    Args:
        spec: what it was opened as.
        kind: ``run``, ``smp``, ``transformers``, ``exported`` or ``function``.
        network: in ``eval()`` mode. Called with images it gives logits (B, C, h, w), or a dict with ``main``.
        num_classes: C.
        classes: what the outputs mean, where that is known.
        preprocessing: what images go through before.
        align_corners: of the upsampling of logits, as this family of networks has it.
        write: puts the current weights, in the format that they came in, into an empty folder.
        training: how it was trained, of a run.
        size: (width, height) at which :meth:`predict` shows it images; None is each image's own.
        cut: tiles that larger images go by.
    """

    spec: str
    kind: str
    network: nn.Module
    num_classes: int
    classes: ClassSet | None
    preprocessing: Preprocessing
    align_corners: bool
    write: Callable[[Path], None]
    training: Training | None = None
    size: tuple[int, int] | None = None
    cut: Tiling | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.num_classes <= _MOST_CLASSES:
            raise InputError(f"{self.spec}: predicts {self.num_classes} classes; expected 2 to {_MOST_CLASSES}")
        if self.classes is not None and len(self.classes) != self.num_classes:
            raise InputError(
                f"{self.spec}: predicts {self.num_classes} classes, and {len(self.classes)} are named; name as many"
            )
        self.network.eval()

    @property
    def class_set(self) -> ClassSet:
        """What the outputs mean; where that is not known, numbers as names."""
        return self.classes or named_classes([f"class {index}" for index in range(self.num_classes)])

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.parameters()).device

    def logits(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) images, normalised → float32 logits (B, C, H, W).

        Images whose sides are no multiples of ``preprocessing.multiple`` are continued beyond their right and lower
        edge by their last pixels, and the logits there are cut off.

        Raises:
            InputError: images of a size that the network does not take.
        """
        height, width = images.shape[2:]
        below, right = (-side % self.preprocessing.multiple for side in (height, width))
        padded = F.pad(images, (0, right, 0, below), mode="replicate") if below or right else images
        logits = self.raw_logits(padded)
        return upsampled(logits, (padded.shape[2], padded.shape[3]), self.align_corners)[:, :, :height, :width]

    def raw_logits(self, images: Tensor) -> Tensor:
        """(B, C, h, w) at the network's own resolution, of images whose sides are multiples.

        Raises:
            InputError: images of a size that the network does not take.
        """
        try:
            logits: Tensor = find_logits(self.network(images))
        except (torch.OutOfMemoryError, InputError):
            raise
        except (AssertionError, RuntimeError, ValueError) as error:
            if "memory" in str(error):
                raise
            raise InputError(
                f"{self.spec}: cannot take images of {images.shape[3]} × {images.shape[2]} ({error})"
            ) from error
        return logits

    def predict(self, images: Any) -> Any:
        """One :class:`PredictedImage`, or a list of them where ``images`` are many.

        Args:
            images: a path, a PIL image, an array (H, W, 3) or a tensor (3, H, W), of uint8 or of numbers from 0 to 1;
                or many: a list of these, a folder, an array (B, H, W, 3) or a tensor (B, 3, H, W). Of a network that
                sees other bands: files, arrays (H, W, bands) or tensors (bands, H, W) of the numbers it was trained on.

        Raises:
            InputError: something that is no image, or of a size that the network does not take.
        """
        if is_many(images):
            return list(self.each(images))
        return self.predicted(one_image(images, self.preprocessing.pixels))

    def each(self, images: Any) -> Iterator[PredictedImage]:
        """The predictions of many images, one after the other."""
        yield from map(self.predicted, each_image(images, self.preprocessing.pixels))

    def predicted(self, image: ImagePixels) -> PredictedImage:
        """The prediction of an image as it was read.

        Raises:
            NotFiniteError: the network gives NaN or infinity, which would look like class 0 everywhere.
        """
        logits = self._logits_of(image).float().cpu()
        shown = self.preprocessing.pixels.preview(image.values, image.valid)
        return PredictedImage(shown, logits, self.class_set, self.align_corners, image.valid)

    @torch.inference_mode()
    def maps(self, image: ImagePixels) -> Prediction:
        """Classes and entropy of an image at its own resolution; with ``cut`` of all that is large there is one copy.

        Raises:
            NotFiniteError: see :meth:`predicted`.
        """
        logits, size = self._logits_of(image), (image.values.shape[0], image.values.shape[1])
        if self.cut is None:
            return Prediction.of(upsampled(logits, size, self.align_corners)[0], image.valid)
        bands = (band[0] for band in upsampled_bands(logits, size, self.align_corners))
        return Prediction.of_bands(bands, image.valid)

    @torch.inference_mode()
    def _logits_of(self, image: ImagePixels) -> Tensor:
        """(1, C, h, w) of an image at :attr:`size`."""
        # where sides are continued to multiples, pixels are what can be cut off again
        forward = self.logits if self.preprocessing.multiple > 1 else self.raw_logits
        as_read = self.size is None or self.size == image.values.shape[1::-1]
        values, valid = (image.values, image.valid)
        if not as_read or self.cut is None:
            values, valid = seen(image, self.preprocessing.pixels, self.size)
        logits = tiled_logits(forward, TilesOfImage(values, valid, self.preprocessing, self.device), self.cut)
        if not logits.isfinite().all():
            raise NotFiniteError("the network's output is not finite; its weights are no use")
        return logits

    def with_statistics(self, network: nn.Module, images: str) -> tuple[TrainedNetwork, Training]:
        """A run with the batch norm statistics of ``network``, which were re-estimated on ``images``."""
        assert self.training is not None  # of every run
        training = dataclasses.replace(self.training, re_estimated_on=images)
        return dataclasses.replace(self, network=network, training=training), training

    def save(self, folder: Path) -> None:
        """Write the network as it is now to a new folder, in the format that it came in, whole or not at all.

        Of a run, of smp's and of transformers' folders it can be opened as this one was; of a function it holds the
        file of weights.

        Raises:
            InputError: a folder that holds something, or a disk that is full.
        """
        with new_folder(folder, "save") as part:
            self.write(part)

    def __repr__(self) -> str:
        names = ", ".join(self.class_set.names[:4]) + (", …" if self.num_classes > 4 else "")
        return f"TrainedNetwork({self.spec}; {self.num_classes} classes: {names})"


class PlainLogits(nn.Module):
    """A network that returns logits alone: the one place where what networks of others return becomes logits.

    One output per pixel is how a network says yes or no: its logit z becomes (0, z), whose softmax is (1 - σ(z), σ(z)).

    Args:
        network: see :func:`dem_apps.test_time_methods.network.find_logits`.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, C, h, w)."""
        logits: Tensor = find_logits(self.network(images))
        if logits.shape[1] == 1:
            logits = torch.cat([torch.zeros_like(logits), logits], 1)
        return logits
