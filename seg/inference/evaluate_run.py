"""The work of ``python -m seg.evaluate``: open a run, score it on its target, write scores and predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from accelerate import PartialState
from PIL import Image
from torch import Tensor

from dem_apps.errors import InputError
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.files import write_json
from dem_apps.runtime.terminal import console
from seg.data.datasets import Sample
from seg.data.domains import open_unlabelled, open_validation
from seg.data.files import flat_names, left_out
from seg.data.labels import ClassSet
from seg.data.pixel_format import resized_mask
from seg.inference.adaptive_batch_norm import re_estimated_on
from seg.inference.processes import launched_processes, shared_folder
from seg.inference.protocol import protocol
from seg.inference.settings import EvaluateConfig
from seg.models.tiles import tiling
from seg.scores.evaluation import OnSample, evaluate
from seg.scores.tables import score_table
from seg.trained.open import open_run


def evaluate_run(config: EvaluateConfig) -> None:
    """Do what the command does; the processes of a launcher share the images, and the main rank writes."""
    folder = config.save_predictions
    with (
        launched_processes(config.device) as processes,
        shared_folder(Path(folder), "--save-predictions", processes) if folder else nullcontext() as predictions,
    ):
        _score(config, processes, predictions)


def _score(config: EvaluateConfig, processes: PartialState, predictions: Path | None) -> None:
    cut, out = tiling(config.tile, config.tile_overlap), None if config.out is None else Path(config.out)
    if not config.scales:
        raise InputError("--scales: expected factors such as [0.75,1.0,1.25], got none")
    if out is not None and out.exists() and not config.save_predictions:  # a killed start may have left it
        raise InputError(f"--out: {out} exists and is never overwritten; give another file")
    trained, training = open_run(Path(config.run), config.checkpoint)
    device, classes, pixels = torch_device(config.device), trained.class_set, trained.description.pixels
    trained.network.to(device)
    given = {name: value for name, value in dataclasses.asdict(config.target).items() if value is not None}
    if config.tile is not None:  # shrunk to the size of a training image, a large one would be a single tile
        given = {"size": None, **given}
    settings = dataclasses.replace(training.config, target=dataclasses.replace(training.config.target, **given))
    dataset = open_validation(settings.target, classes, settings.validation_part, demo=settings.demo)
    dataset.pixels = pixels
    for line in dataset.look_at_labels("target val") + ([dataset.found_as] if dataset.found_as else []):
        if processes.is_main_process:
            print(line, flush=True)
    if config.batch_norm_after == "target":
        settings = dataclasses.replace(settings, bn_alpha=config.bn_alpha)
        unlabelled = open_unlabelled(settings.target, classes, demo=settings.demo)
        unlabelled.pixels = pixels
        own = settings.target == training.config.target
        images = "target images" if own else f"training images of {settings.target.root}"
        adapted = re_estimated_on(unlabelled, trained.network, device, config.bn_alpha)
        trained = dataclasses.replace(trained, network=adapted.network)
        training = dataclasses.replace(training, re_estimated_on=adapted.on(images))
    processes.wait_for_everyone()  # until all have seen that nothing is overwritten
    names = flat_names([dataset.name(index) for index in range(len(dataset))])
    writer = None if predictions is None else prediction_writer(predictions, classes, names)
    result = evaluate(
        trained.network, dataset, classes, device, align_corners=trained.description.align_corners,
        scales=config.scales, flip=config.flip, cut=cut, on_sample=writer,
    )  # fmt: skip
    if not processes.is_main_process:
        return
    how = protocol(
        settings, trained.network, training.checkpoint, training.step, config.scales, config.flip,
        training.re_estimated_on, cut,
    )  # fmt: skip
    title = f"{config.run}, {training.described}, {len(dataset)} images{left_out([dataset.image_folder])}"
    console().print(score_table(result, title))
    if training.checkpoint == "best" and settings.target.root == training.config.target.root:
        print("optimistic:  these images' labels chose the checkpoint; --checkpoint last was chosen without them")
    print(f"batch norm:  {how['batch_norm']}")
    if writer is not None:
        print(f"predictions: {config.save_predictions}")
    if out is not None:
        document = {**result, "checkpoint": training.checkpoint, "protocol": how}
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, document, "--out")
        print(f"scores:      {out}")


def prediction_writer(folder: Path, classes: ClassSet, names: Sequence[str]) -> OnSample:
    """Writes predictions as ``<name>_pred_labelIds.png`` into a folder, by the classes' ids."""

    def write(index: int, sample: Sample, logits: Tensor) -> None:
        predicted = logits.argmax(0).to(torch.uint8).cpu().numpy()
        valid = None if sample.valid is None else resized_mask(sample.valid, predicted.shape[::-1])
        Image.fromarray(classes.to_ids(predicted, valid)).save(folder / f"{names[index]}_pred_labelIds.png")

    return write
