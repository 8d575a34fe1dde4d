"""``seg.load``: a trained network that predicts images from Python."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from dem_apps.errors import InputError
from dem_apps.runtime.device import torch_device
from seg.models.tiles import tiling
from seg.models.trained import TrainedNetwork, open_trained


def load(
    spec: str | Path,
    weights: str | Path | None = None,
    *,
    device: str = "auto",
    size: tuple[int, int] | str | None = "auto",
    tile: int | None = None,
    tile_overlap: int | None = None,
) -> TrainedNetwork:
    """A trained network that predicts images, see :meth:`seg.models.trained.TrainedNetwork.predict`.

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
    trained.network.to(torch_device(device))
    return dataclasses.replace(trained, size=chosen, cut=tiling(tile, tile_overlap))
