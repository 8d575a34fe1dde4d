"""Scores of a model on images, with labels or without, and ``python -m seg.evaluate --run DIR`` for a finished run.

Protocol: the image at the training size, logits upsampled to the label's own size (bilinear, corners aligned as in
training), argmax, every pixel whose label is not ignored; without labels, logits at the image's size.
Shapes: C classes, h × w feature resolution, H × W the label's size.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor, nn
from torch.nn import functional as F

from dem_apps.errors import InputError, NotFiniteError
from dem_apps.reduction import summed_over_processes, world_size
from dem_apps.runtime.command import run_command
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.files import write_new
from dem_apps.runtime.processes import launched_processes
from dem_apps.runtime.settings import option, parse_config, section
from dem_apps.runtime.terminal import console
from seg.config import BATCH_NORM_AFTER, LAYOUT_CHOICES, LAYOUT_HELP, TargetDataConfig
from seg.data.datasets import Sample
from seg.data.domains import open_unlabelled, open_validation
from seg.data.labels import IGNORE_INDEX, ClassSet
from seg.data.pixel_format import resized_mask
from seg.maps.label_ids import PredictionWriter
from seg.models.adaptive_batch_norm import check_there_are_statistics, re_estimated_on
from seg.models.load_model import LoadedModel, open_trained
from seg.models.predictor import upsampled
from seg.models.tiles import LEAST_TILE, OVERLAP_HELP, TILE_HELP, Tiling, tiled_logits, tiling
from seg.scores.metrics import SegmentationScores
from seg.scores.protocol import protocol
from seg.scores.tables import score_table
from seg.scores.unsupervised_scores import LabelFreeScores

OnSample = Callable[[int, Sample, Tensor], None]


@dataclass(frozen=True)
class TargetConfig:
    """Other data than the run's own target."""

    root: str | None = option(None, "folder of the data set to score on; default: the run's", value="DIR")
    layout: str | None = option(None, f"{LAYOUT_HELP}; default: as the run's", LAYOUT_CHOICES, value="NAME")
    size: list[int] | None = option(
        None,
        "width and height to resize images to; default: the run's, with --tile the images'",
        at_least=1,
        value="W,H",
    )


@dataclass(frozen=True)
class EvaluateConfig:
    """Score a run on the target's validation set."""

    run: str = option("", "run folder to score", value="RUN", group="what is scored", needed=True)
    checkpoint: Literal["auto", "last", "selected", "best"] = option(
        "auto", "which of its checkpoints; auto: selected, else last; best was chosen with target labels"
    )
    scales: list[float] = option(
        [1.0], "sizes of the image whose predictions are averaged, such as 0.75,1,1.25", above=0, at_most=16,
        value="X,X", group="how",
    )  # fmt: skip
    flip: bool = option(False, "average with the predictions of the mirrored image")
    tile: int | None = option(None, TILE_HELP, at_least=LEAST_TILE)
    tile_overlap: int | None = option(None, OVERLAP_HELP, at_least=0)
    batch_norm_after: str = option(
        "none", "target: batch norm statistics re-estimated on the target's training images; none: the checkpoint's",
        BATCH_NORM_AFTER,
    )  # fmt: skip
    device: str = option("auto", "cpu, cuda, or auto")
    save_predictions: str | None = option(
        None, "folder for predictions as label ids, one PNG an image; default: none are written", value="DIR",
        group="what is written",
    )  # fmt: skip
    out: str | None = option(
        None, "JSON file for the scores and how they came about, never overwritten; default: none", value="FILE"
    )
    target: TargetConfig = section(TargetConfig, "other images than the run's own target")


class Images(Protocol):
    """What :func:`evaluate` reads: :class:`seg.data.datasets.SegmentationDataset` and whatever looks like it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


@torch.no_grad()
def evaluate(
    model: nn.Module,
    dataset: Images,
    classes: ClassSet,
    device: torch.device,
    *,
    align_corners: bool = True,
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
    cut: Tiling | None = None,
    on_sample: OnSample | None = None,
) -> dict[str, Any]:
    """Scores over a data set: those of :meth:`seg.scores.metrics.SegmentationScores.result`, ``label_free`` and
    ``predicted_share``, by class.

    With torch.distributed initialised each process takes every n-th image, and every one returns the scores of all
    images together. The model must hold the same weights in each of them.

    Args:
        model: as of :func:`seg.build_model`, not wrapped for several processes; in ``eval()`` for the duration.
        dataset: samples without a label count as ignored everywhere.
        classes: what the model's C outputs mean.
        device: where the model is.
        align_corners: of the upsampling, as the model was trained.
        scales: see :func:`predicted`; the label-free scores are always those of the plain prediction.
        flip: see :func:`predicted`.
        cut: see :func:`predicted`.
        on_sample: called with (index, sample, logits (C, H, W)) for each image that this process takes.

    Raises:
        NotFiniteError: a sample for which the network gives NaN or infinity.
    """
    was_training = model.training
    model.eval()
    scores, label_free = SegmentationScores(classes.names, IGNORE_INDEX), LabelFreeScores(len(classes))
    rank = dist.get_rank() if world_size() > 1 else 0
    for index in range(rank, len(dataset), world_size()):
        sample = dataset[index]
        ignored = np.full(sample.image.shape[:2], IGNORE_INDEX, np.uint8)
        label = torch.from_numpy(ignored if sample.label is None else sample.label)
        size = (label.shape[0], label.shape[1])
        image = sample.normalised()[None].to(device)
        features, logits = predicted(model, image, size, align_corners, scales, flip, cut)
        if not features.isfinite().all():
            raise NotFiniteError(f"{sample.name}: the network's output is not finite; its weights are no use")
        valid = None if sample.valid is None else torch.from_numpy(resized_mask(sample.valid, size[::-1]))[None]
        label_free.update(features, valid)
        scores.update(logits, label[None], valid)
        if on_sample is not None:
            on_sample(index, sample, logits[0])
    model.train(was_training)
    if world_size() > 1:
        # on the device, since not every backend adds up tensors of the CPU
        joined = summed_over_processes(scores.sums.to(device), label_free.sums.to(device))
        scores.sums, label_free.sums = (part.cpu() for part in joined)
    shares = dict(zip(classes.names, label_free.predicted_shares(), strict=True))
    return {**scores.result(), "label_free": label_free.result(), "predicted_share": shares}


def predicted(
    model: nn.Module,
    image: Tensor,
    size: tuple[int, int],
    align_corners: bool = True,
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
    cut: Tiling | None = None,
) -> tuple[Tensor, Tensor]:
    """The main head's logits on images as they are, (B, C, h, w), and those to score, (B, C, H, W).

    The second are the first at ``size``. With other scales than 1, or with ``flip``, they are the logarithm of the
    mean of the softmax probabilities at ``size``, over all scales, each one also mirrored.

    Args:
        model: in ``eval()`` mode.
        image: (B, 3, height, width), normalised.
        size: (H, W).
        align_corners: of the upsampling of logits.
        scales: factors by which the image is resized (bilinear, corners not aligned).
        flip: whether the mirrored image counts as well.
        cut: tiles that larger images go by, see :mod:`seg.models.tiles`; the logits are then on the CPU.
    """

    def forward(images: Tensor) -> Tensor:
        return tiled_logits(lambda tile: model(tile)["main"], images, cut)

    plain = forward(image)
    if tuple(scales) == (1.0,) and not flip:
        return plain, upsampled(plain, size, align_corners)
    total = None
    for scale, mirrored in itertools.product(scales, (False, True) if flip else (False,)):
        logits = plain
        if scale != 1.0 or mirrored:
            logits = _mirrored(forward(_mirrored(_resized(image, scale), mirrored)), mirrored)
        log_p = upsampled(logits, size, align_corners).log_softmax(1)
        total = log_p if total is None else torch.logaddexp(total, log_p)
    if total is None:
        raise ValueError("scales: expected at least one")
    return plain, total - math.log(len(scales) * (1 + flip))


def _resized(image: Tensor, scale: float) -> Tensor:
    if scale == 1.0:
        return image
    height, width = (max(1, round(scale * side)) for side in image.shape[2:])
    return F.interpolate(image, size=(height, width), mode="bilinear", align_corners=False)


def _mirrored(maps: Tensor, mirrored: bool) -> Tensor:
    return maps.flip(3) if mirrored else maps


def _main() -> None:
    config = parse_config(EvaluateConfig, "python -m seg.evaluate", "python -m seg.evaluate --run runs/my-run")
    with launched_processes(config.device) as processes:
        _score(config, processes)


def _score(config: EvaluateConfig, processes: PartialState) -> None:
    """Do what the command does, each process with its share of the images, and the first with the results."""
    _check(config)
    run, device = Path(config.run), torch_device(config.device)
    loaded = open_trained(run, config.checkpoint, device)
    writer = PredictionWriter(Path(config.save_predictions), loaded.classes) if config.save_predictions else None
    settings = dataclasses.replace(loaded.config, target=_target(loaded.config.target, config))
    dataset = open_validation(settings.target, loaded.classes, settings.validation_part, demo=settings.demo)
    dataset.pixels = loaded.pixels
    if config.batch_norm_after == "target":
        loaded = _adapted(loaded, settings.target, device)
    processes.wait_for_everyone()  # until all have seen that nothing is overwritten
    result = evaluate(
        loaded.model, dataset, loaded.classes, device, align_corners=settings.model.align_corners,
        scales=config.scales, flip=config.flip, cut=tiling(config.tile, config.tile_overlap), on_sample=writer,
    )  # fmt: skip
    if not processes.is_main_process:
        return
    how = protocol(
        settings, loaded.model, loaded.checkpoint, loaded.step, config.scales, config.flip, loaded.re_estimated_on,
        tiling(config.tile, config.tile_overlap),
    )  # fmt: skip
    title = f"{run}, checkpoint {loaded.checkpoint} ({how['chosen_by']}), step {loaded.step}"
    console().print(score_table(result, title))
    print(f"batch norm:  {how['batch_norm']}")
    if writer is not None:
        print(f"predictions: {config.save_predictions}")
    if config.out is not None:
        document = {**result, "checkpoint": loaded.checkpoint, "protocol": how}
        Path(config.out).parent.mkdir(parents=True, exist_ok=True)
        write_new(Path(config.out), (json.dumps(document, indent=2) + "\n").encode(), "--out")
        print(f"scores:      {config.out}")


def _check(config: EvaluateConfig) -> None:
    tiling(config.tile, config.tile_overlap)
    if not config.scales:
        raise InputError("--scales: expected factors such as [0.75,1.0,1.25], got none")
    if config.out is not None and Path(config.out).exists():
        raise InputError(f"--out: {config.out} exists and is never overwritten; give another file")


def _adapted(loaded: LoadedModel, target: TargetDataConfig, device: torch.device) -> LoadedModel:
    """The network with the statistics of the target's training images."""
    check_there_are_statistics(loaded.model, "the run's network")
    images = "target images" if target == loaded.config.target else f"training images of {target.root}"
    dataset = open_unlabelled(target, loaded.classes, demo=loaded.config.demo)
    dataset.pixels = loaded.pixels
    model = re_estimated_on(dataset, loaded.model, device)
    return dataclasses.replace(loaded, model=model, re_estimated_on=images)


def _target(own: TargetDataConfig, config: EvaluateConfig) -> TargetDataConfig:
    # shrunk to the size of a training image, a large one would be a single tile
    by_default = {} if config.tile is None else {"size": None}
    given = {name: value for name, value in dataclasses.asdict(config.target).items() if value is not None}
    return dataclasses.replace(own, **{**by_default, **given})


if __name__ == "__main__":
    run_command(_main)
