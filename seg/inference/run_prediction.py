"""What a run's network predicts of an image as it was read, at the image's own resolution.

Shapes: C classes, H × W pixels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import PartialState
from torch import Tensor

from dem_apps.errors import InputError, NotFiniteError
from seg.data.datasets import seen
from seg.data.image_pixels import ImagePixels, read_pixels
from seg.data.spread_batches import spread_batches
from seg.evaluate import predicted
from seg.maps import entropy_maps
from seg.models.adaptive_batch_norm import check_there_are_statistics, re_estimated
from seg.models.load_model import LoadedModel
from seg.models.predictor import upsampled_bands
from seg.models.tiles import TilesOfImage, Tiling, tiled_logits


@torch.inference_mode()
def predict(
    loaded: LoadedModel, image: ImagePixels, size: tuple[int, int] | None, cut: Tiling | None = None
) -> entropy_maps.Prediction:
    """Classes and entropy at the image's own resolution.

    Args:
        loaded: the run's network.
        image: as it was read.
        size: (width, height) that the network sees; None is the image's own.
        cut: tiles that this goes by where it is larger; each is normalised when it is its turn, and the logits are
            upsampled a few rows at a time, so that of all that is large there is one copy.

    Raises:
        NotFiniteError: the network gives NaN or infinity, which would look like class 0 everywhere.
    """
    device, align_corners = next(loaded.model.parameters()).device, loaded.config.model.align_corners
    whole = (image.values.shape[0], image.values.shape[1])
    if cut is None:
        batch = loaded.pixels.normalised(*seen(image, loaded.pixels, size))[None].to(device)
        logits = predicted(loaded.model, batch, whole, align_corners)[1]
    else:
        as_read = size is None or size == whole[::-1]
        values, valid = (image.values, image.valid) if as_read else seen(image, loaded.pixels, size)
        tiles = TilesOfImage(values, valid, loaded.pixels, device)
        logits = tiled_logits(lambda tile: loaded.model(tile)["main"], tiles, cut)
    if not logits.isfinite().all():
        raise NotFiniteError("the network's output is not finite; its weights are no use")
    if cut is None:
        return entropy_maps.Prediction.of(logits[0], image.valid)
    bands = (band[0] for band in upsampled_bands(logits, whole, align_corners))
    return entropy_maps.Prediction.of_bands(bands, image.valid)


def with_statistics_of(
    loaded: LoadedModel, name: str, files: Sequence[Path], size: tuple[int, int] | None, processes: PartialState
) -> LoadedModel:
    """The run with batch norm statistics re-estimated on images; what cannot be read is left out.

    Args:
        loaded: the run.
        name: of the run, for errors.
        files: the images.
        size: (width, height) that the network sees; None is the image's own.
        processes: that share the images.

    Raises:
        InputError: a network without statistics, or images that do not fit into memory.
    """
    check_there_are_statistics(loaded.model, name)

    def read(index: int) -> Tensor | None:
        try:
            return loaded.pixels.normalised(*seen(read_pixels(files[index], loaded.pixels), loaded.pixels, size))
        except InputError:  # said where the image would be exported
            return None

    device = next(loaded.model.parameters()).device
    batches = spread_batches(read, len(files), device, (processes.process_index, processes.num_processes))
    try:
        model = re_estimated(loaded.model, batches)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            "--batch-norm-after: several images do not fit into memory; give a smaller --size W,H"
        ) from error
    return dataclasses.replace(loaded, model=model, re_estimated_on="the exported images")


def is_out_of_memory(error: Exception) -> bool:
    """torch has a class of its own for a full GPU and none for a full main memory."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)
