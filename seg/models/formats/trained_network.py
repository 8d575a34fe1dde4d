"""A trained network of whatever origin, with all that is needed to use it and to give it back.

Shapes: B batch, C classes, h × w the logits' own resolution, H × W the images' size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dem_apps.errors import InputError
from dem_apps.runtime.files import new_folder
from dem_apps.test_time_methods.network import find_logits
from seg.data.labels import ClassSet
from seg.models.predictor import upsampled
from seg.models.preprocessing import Preprocessing

#: Predictions are bytes, and 255 stands for no class.
_MOST_CLASSES = 255


@dataclass(frozen=True)
class TrainedNetwork:
    """A network to predict with, to adapt and to save.

    Args:
        spec: what it was opened as.
        kind: ``run``, ``smp``, ``transformers``, ``exported`` or ``function``.
        network: in ``eval()`` mode, on the CPU. Called with images it gives logits (B, C, h, w), or a dict with
            ``main``. Who changes its weights changes what :meth:`save` writes.
        num_classes: C.
        classes: what the outputs mean, where that is known.
        preprocessing: what images go through before.
        align_corners: of the upsampling of logits, as this family of networks has it.
        write: puts the current weights, in the format that they came in, into a folder that is empty.
    """

    spec: str
    kind: str
    network: nn.Module
    num_classes: int
    classes: ClassSet | None
    preprocessing: Preprocessing
    align_corners: bool
    write: Callable[[Path], None]

    def __post_init__(self) -> None:
        if not 2 <= self.num_classes <= _MOST_CLASSES:
            raise InputError(f"{self.spec}: predicts {self.num_classes} classes; expected 2 to {_MOST_CLASSES}")
        if self.classes is not None and len(self.classes) != self.num_classes:
            raise InputError(
                f"{self.spec}: predicts {self.num_classes} classes, and {len(self.classes)} are named; name as many"
            )
        self.network.eval()

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

    def save(self, folder: Path) -> None:
        """Write the network as it is now to a new folder, in the format that it came in, whole or not at all.

        Of a run, of smp's and of transformers' folders it can be opened as this one was; of a function it holds the
        file of weights.

        Raises:
            InputError: a folder that holds something, or a disk that is full.
        """
        with new_folder(folder, "save") as part:
            self.write(part)


class PlainLogits(nn.Module):
    """A network whose output holds logits somewhere, as one that returns them alone.

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


def plain_logits(network: nn.Module, output: Any) -> nn.Module:
    """The network, wrapped where its ``output`` is not already what a :class:`TrainedNetwork` gives."""
    ours = isinstance(output, Tensor) or (isinstance(output, dict) and "main" in output)
    return network if ours and find_logits(output).shape[1] > 1 else PlainLogits(network)
