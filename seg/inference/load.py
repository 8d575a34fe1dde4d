"""A trained network to predict with from Python, whoever trained it.

Shapes: C classes, H × W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dem_apps.errors import InputError
from dem_apps.runtime.device import torch_device
from seg.data.datasets import seen
from seg.data.image_pixels import ImagePixels
from seg.data.labels import ClassSet, named_classes
from seg.inference.images import each_image, is_many, one_image
from seg.inference.predicted_image import PredictedImage
from seg.models.tiles import Tiling, tiled_logits, tiling
from seg.models.trained import TrainedNetwork, open_trained


class ImagePredictor:
    """Predicts images with a trained network; make one with :func:`load`.

    Args:
        trained: the network.
        device: where it goes.
        size: (width, height) that it sees, or None for each image's own.
        cut: tiles that larger images go by.
    """

    def __init__(
        self, trained: TrainedNetwork, device: torch.device, size: tuple[int, int] | None, cut: Tiling | None
    ) -> None:
        self.trained, self.device, self.size, self.cut = trained, device, size, cut
        trained.network.to(device)

    @property
    def class_set(self) -> ClassSet:
        """What the outputs mean; where that is not known, numbers as names."""
        return self.trained.classes or named_classes([f"class {index}" for index in range(self.trained.num_classes)])

    def predict(self, images: Any) -> Any:
        """One :class:`PredictedImage`, or a list of them where ``images`` are many.

        Args:
            images: a path, a PIL image, an array (H, W, 3) or a tensor (3, H, W), of uint8 or of numbers from 0 to 1;
                or many: a list of these, a folder, an array (B, H, W, 3) or a tensor (B, 3, H, W). Of a network that
                sees other bands: files, arrays (H, W, bands) or tensors (bands, H, W) of the numbers it was trained on.

        Raises:
            InputError: something that is no image, or of a size that the network does not take.
        """
        return (
            list(self.each(images))
            if is_many(images)
            else self._predicted(one_image(images, self.trained.preprocessing.pixels))
        )

    def each(self, images: Any) -> Iterator[PredictedImage]:
        """The same of many images one after the other, for as many as there are."""
        yield from map(self._predicted, each_image(images, self.trained.preprocessing.pixels))

    def __repr__(self) -> str:
        names = ", ".join(self.class_set.names[:4]) + (", …" if self.trained.num_classes > 4 else "")
        return f"ImagePredictor({self.trained.spec}; {self.trained.num_classes} classes: {names})"

    @torch.inference_mode()
    def _predicted(self, image: ImagePixels) -> PredictedImage:
        preprocessing = self.trained.preprocessing
        batch = preprocessing.normalised(*seen(image, preprocessing.pixels, self.size))[None].to(self.device)
        logits = tiled_logits(self._logits, batch, self.cut)
        shown = preprocessing.pixels.preview(image.values, image.valid)
        return PredictedImage(shown, logits.float().cpu(), self.class_set, self.trained.align_corners, image.valid)

    def _logits(self, tile: Tensor) -> Tensor:
        # where sides are continued to multiples, pixels are what can be cut off again
        padded = self.trained.preprocessing.multiple > 1
        return self.trained.logits(tile) if padded else self.trained.raw_logits(tile)


def load(
    spec: str | Path,
    weights: str | Path | None = None,
    *,
    device: str = "auto",
    size: tuple[int, int] | str | None = "auto",
    tile: int | None = None,
    tile_overlap: int | None = None,
) -> ImagePredictor:
    """A trained network that predicts images.

    Args:
        spec: a run folder, a folder of segmentation-models-pytorch's or transformers' ``save_pretrained``, one of
            ``seg.export_model``, or ``package.module:function``.
        weights: file for ``package.module:function``.
        device: ``cpu``, ``cuda``, or ``auto``.
        size: (width, height) that the network sees; ``own`` is what its folder says, a run's target size; None is
            the images'; ``auto`` is ``own``, and None with ``tile``. Predictions have the images' size in any case.
        tile: side of the tiles that larger images go by, see :mod:`seg.models.tiles`.
        tile_overlap: pixels that tiles share; None is a quarter.

    Raises:
        InputError: a network that cannot be read, a size or a tile that makes no sense.

    >>> import tempfile, numpy as np, segmentation_models_pytorch as smp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = smp.Unet("resnet18", encoder_weights=None, classes=3).save_pretrained(folder)
    ...     predictor = load(folder, device="cpu")
    >>> predictor.predict(np.zeros((64, 96, 3), np.uint8)).classes.shape
    (64, 96)
    """
    trained = open_trained(str(spec), None if weights is None else str(weights))
    if size == "auto":
        size = "own" if tile is None else None
    if size == "own":
        size = trained.preprocessing.size
    if isinstance(size, str) or (size is not None and (len(size) != 2 or min(size) < 1)):
        raise InputError(f"size: expected (width, height), 'own', 'auto' or None, got {size!r}")
    chosen = None if size is None else (int(size[0]), int(size[1]))
    return ImagePredictor(trained, torch_device(device), chosen, tiling(tile, tile_overlap))
