"""The work of ``python -m seg.evaluate``: open a network, score it on labelled images, write scores and predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from dem_apps.errors import InputError
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.files import new_folder, write_json
from seg.config import TrainConfig
from seg.data.datasets import Sample, SegmentationDataset
from seg.data.domains import open_validation
from seg.data.files import find_images, flat_names, left_out, refuse_long_name
from seg.data.label_faults import labels_of
from seg.data.labels import ClassSet
from seg.data.pixel_format import PixelFormat, resized_mask
from seg.inference.protocol import protocol
from seg.inference.settings import EvaluateConfig
from seg.scores.evaluation import OnSample, evaluate
from seg.scores.report_scores import print_scores
from seg.trained.open import open_network
from seg.trained.run_network import run_settings
from seg.trained.trained_network import TrainedNetwork


def evaluate_run(config: EvaluateConfig) -> None:
    """Open a network, score it on labelled images, and write scores and predictions."""
    folder = config.save_predictions
    with new_folder(Path(folder), "--save-predictions") if folder else nullcontext() as predictions:
        _score(config, predictions)


def _score(config: EvaluateConfig, predictions: Path | None) -> None:
    out = None if config.out is None else Path(config.out)
    # a killed start may have left it
    if out is not None and out.exists() and predictions is None:
        raise InputError(f"--out: {out} exists and is never overwritten; give another file")
    trained = open_network(config, config.run).seeing(config.size, config.tile)
    description, device = trained.description, torch_device(config.device)
    trained.network.to(device)
    dataset, scored, notes = _data(config, trained)
    print(*description.notes, f"seen as: {description.said}", *notes, sep="\n", flush=True)
    forward = trained.logits if description.multiple > 1 else trained.raw_logits
    writer = None
    if predictions is not None:
        names = flat_names([dataset.name(index) for index in range(len(dataset))])
        writer = prediction_writer(predictions, dataset.classes, names)
    result = evaluate(
        trained.network,
        dataset,
        dataset.classes,
        device,
        align_corners=description.align_corners,
        tile=config.tile,
        on_sample=writer,
        forward=lambda images: forward(description.reordered(images)),
    )
    how: dict[str, Any] = {"network": trained.spec}
    training, title, checkpoint = trained.training, trained.spec, None
    if training is not None:
        title, checkpoint = f"{config.run}, {training.described}", training.checkpoint
    print_scores(result, f"{title}, {len(dataset)} images{left_out([dataset.image_folder])}")
    if scored is not None and training is not None:
        how = protocol(scored, training, trained.network, config.tile)
        if checkpoint == "best" and config.target.root is None:
            print(
                "optimistic:  these images' labels chose the checkpoint; --checkpoint last was chosen without them"
            )
        print(f"batch norm:  {how['batch_norm']}")
    if writer is not None:
        print(f"predictions: {config.save_predictions}")
    if out is not None:
        how["normalisation"] = description.normalisation
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, {**result, "checkpoint": checkpoint, "protocol": how}, "--out")
        print(f"scores:      {out}")


def _data(
    config: EvaluateConfig, trained: TrainedNetwork
) -> tuple[SegmentationDataset, TrainConfig | None, list[str]]:
    """The images to score on, the settings of a run with its target as scored, and notes."""
    if config.images is not None:
        classes, pixels = trained.class_set.ignoring(config.ignore), trained.description.pixels
        folders = Path(config.images), Path(str(config.labels))
        images = LabelledImages(*folders, classes, pixels, trained.size)
        return images, None, images.notes
    if trained.training is None:
        raise InputError(
            f"--images: is missing; {trained.spec} is no run, so give --images DIR and --labels DIR"
        )
    settings = run_settings(trained.training.run, trained.network)
    other: dict[str, Any] = {}
    # shrunk to the size of a training image, a large one would be a single tile
    if config.tile is not None:
        other["size"] = None
    if isinstance(config.size, list):
        other["size"] = config.size
    given = dataclasses.asdict(config.target)
    other |= {name: value for name, value in given.items() if value is not None}
    settings = dataclasses.replace(settings, target=dataclasses.replace(settings.target, **other))
    dataset = open_validation(
        settings.target, trained.class_set, settings.validation_part, demo=settings.demo
    )
    dataset.pixels = trained.description.pixels
    notes = dataset.look_at_labels("target val")
    if dataset.found_as:
        notes.append(dataset.found_as)
    return dataset, settings, notes


class LabelledImages(SegmentationDataset):
    """The images of a folder that have a label in another, at its own size; ``notes`` are about them."""

    def __init__(
        self,
        images: Path,
        labels: Path,
        classes: ClassSet,
        pixels: PixelFormat,
        size: tuple[int, int] | None,
    ) -> None:
        self.classes, self.pixels, self.size, self.resize_labels = classes, pixels, size, False
        self.left_out: list[str] = []
        self.root = self.image_folder = images if images.is_dir() else images.parent
        names = [file.relative_to(self.root) for file in find_images(images)]
        found, self.layout, self.notes = labels_of(labels, names, self.root, classes)
        pairs = [(self.root / image, label) for image, label in found.items()]
        self.files = list(self._whole(pairs, labelled=True))


def prediction_writer(folder: Path, classes: ClassSet, names: Sequence[str]) -> OnSample:
    """Writes predictions as ``<name>_pred_labelIds.png`` into a folder, by the classes' ids."""
    for name in names:
        refuse_long_name(Path(name))

    def write(index: int, sample: Sample, logits: Tensor) -> None:
        predicted = logits.argmax(0).to(torch.uint8).cpu().numpy()
        ids = classes.to_ids(predicted, resized_mask(sample.valid, predicted.shape[::-1]))
        Image.fromarray(ids).save(folder / f"{names[index]}_pred_labelIds.png")

    return write
