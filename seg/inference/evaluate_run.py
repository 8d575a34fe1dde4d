"""The work of ``python -m seg.evaluate``: open a network, score it on labelled images, write scores and predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from PIL import Image
from torch import Tensor, nn

from dem_apps.errors import InputError
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.files import write_json
from dem_apps.runtime.progress import console
from seg.config import TrainConfig
from seg.data.datasets import Sample, SegmentationDataset
from seg.data.domains import open_unlabelled, open_validation
from seg.data.files import find_images, find_labels, flat_names, left_out
from seg.data.label_faults import look_at_labels
from seg.data.labels import IGNORE_INDEX, ClassSet
from seg.data.pixel_format import PixelFormat, resized_mask
from seg.data.read import read_image, read_label, seen
from seg.inference.adaptive_batch_norm import re_estimated_on
from seg.inference.processes import launched_processes, shared_folder
from seg.inference.protocol import protocol
from seg.inference.settings import EvaluateConfig
from seg.models.tiles import tiling
from seg.scores.evaluation import OnSample, evaluate
from seg.scores.tables import score_table
from seg.trained.open import ignoring, open_network
from seg.trained.trained_network import TrainedNetwork


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
    trained = open_network(config, config.run).seeing("auto" if config.size == "run" else config.size, config.tile)
    device, said = torch_device(config.device), trained.description.said
    trained.network.to(device)
    dataset, unlabelled, settings, notes = _data(config, trained)
    if processes.is_main_process:
        print(*trained.description.notes, f"seen as: {said}", *notes, sep="\n", flush=True)
    model: Any = MainHead(trained)
    re_estimated = None
    if config.batch_norm_after == "target":
        adapted = re_estimated_on(unlabelled(), model, device, config.bn_alpha)
        model, re_estimated = adapted.network, adapted.on(_whose(config, trained, settings))
    processes.wait_for_everyone()  # until all have seen that nothing is overwritten
    names = flat_names([dataset.name(index) for index in range(len(dataset))])
    writer = None if predictions is None else prediction_writer(predictions, dataset.classes, names)
    result = evaluate(
        model, dataset, dataset.classes, device, align_corners=trained.description.align_corners,
        scales=config.scales, flip=config.flip, cut=cut, on_sample=writer,
    )  # fmt: skip
    if not processes.is_main_process:
        return
    training, how = trained.training, {"network": trained.spec, "scales": config.scales, "flip": config.flip}
    if training is not None and settings is not None:
        how = protocol(
            settings, model.network, training.checkpoint, training.step, config.scales, config.flip,
            re_estimated or training.re_estimated_on, cut,
        )  # fmt: skip
    where = trained.spec if training is None or config.run is None else f"{config.run}, {training.described}"
    console().print(score_table(result, f"{where}, {len(dataset)} images{left_out([dataset.image_folder])}"))
    best = training is not None and settings is not None and training.checkpoint == "best"
    if best and _whose(config, trained, settings) == "target images":
        print("optimistic:  these images' labels chose the checkpoint; --checkpoint last was chosen without them")
    if settings is not None:
        print(f"batch norm:  {how['batch_norm']}")
    if writer is not None:
        print(f"predictions: {config.save_predictions}")
    if out is not None:
        how |= {"normalisation": trained.description.normalisation}
        document = {**result, "checkpoint": training and training.checkpoint, "protocol": how}
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, document, "--out")
        print(f"scores:      {out}")


def _data(
    config: EvaluateConfig, trained: TrainedNetwork
) -> tuple[SegmentationDataset | LabelledImages, Callable[[], Any], TrainConfig | None, list[str]]:
    """The images to score on, those that AdaBN takes, the settings of a run with its target as scored, and notes."""
    pixels, training = trained.description.pixels, trained.training
    if config.images is not None:
        classes = ignoring(trained.class_set, config.ignore)
        images = LabelledImages(Path(config.images), Path(str(config.labels)), classes, pixels, trained.size)
        return images, lambda: images, None, images.notes
    if training is None:
        raise InputError(f"--images: is missing; {trained.spec} is no run, so give --images DIR and --labels DIR")
    given = {name: value for name, value in dataclasses.asdict(config.target).items() if value is not None}
    if config.tile is not None:  # shrunk to the size of a training image, a large one would be a single tile
        given = {"size": None, **given}
    if isinstance(config.size, list):
        given = {"size": config.size, **given}
    settings = dataclasses.replace(training.config, target=dataclasses.replace(training.config.target, **given))
    dataset = open_validation(settings.target, trained.class_set, settings.validation_part, demo=settings.demo)
    dataset.pixels = pixels
    if config.batch_norm_after == "target":
        settings = dataclasses.replace(settings, bn_alpha=config.bn_alpha)

    def unlabelled() -> SegmentationDataset:
        found = open_unlabelled(settings.target, trained.class_set, demo=settings.demo)
        found.pixels = pixels
        return found

    notes = dataset.look_at_labels("target val") + ([dataset.found_as] if dataset.found_as else [])
    return dataset, unlabelled, settings, notes


def _whose(config: EvaluateConfig, trained: TrainedNetwork, settings: TrainConfig | None) -> str:
    if settings is None or trained.training is None:
        return f"images of {config.images}"
    own = settings.target.root == trained.training.config.target.root
    return "target images" if own else f"training images of {settings.target.root}"


class MainHead(nn.Module):
    """A trained network as scores call it: images in RGB, else as it takes them, to logits under ``main``."""

    def __init__(self, trained: TrainedNetwork) -> None:
        super().__init__()
        self.network, self._trained = trained.network, trained

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) → (B, C, h, w)."""
        description = self._trained.description
        forward = self._trained.logits if description.multiple > 1 else self._trained.raw_logits
        return {"main": forward(images.flip(1) if description.order == "bgr" else images)}


class LabelledImages:
    """The images of a folder that have a label in another, read as a data set's are; ``notes`` are about labels."""

    def __init__(
        self, images: Path, labels: Path, classes: ClassSet, pixels: PixelFormat, size: tuple[int, int] | None
    ) -> None:
        self.classes, self._pixels, self._size = classes, pixels, size
        self.image_folder = images if images.is_dir() else images.parent
        found = [file.relative_to(self.image_folder) for file in find_images(images)]
        places = find_labels(labels, found, self.image_folder)
        self._files = [(image, places[image]) for image in found if places[image].is_file()]
        if not self._files:
            raise InputError(f"--labels: {labels} has no label of any image; that of {found[0]} is {places[found[0]]}")
        labelled = [(self.image_folder / image, label) for image, label in self._files]
        self.notes = look_at_labels("--labels", labelled, classes)

    def __len__(self) -> int:
        return len(self._files)

    def name(self, index: int) -> str:
        """The image's path below the folder."""
        return self._files[index][0].as_posix()

    def __getitem__(self, index: int) -> Sample:
        """One sample, its label at its own size."""
        file = self.image_folder / self._files[index][0]
        picture = read_image(file, self._pixels)
        values, valid = seen(picture, self._pixels, self._size)
        label = read_label(self._files[index][1], self.classes, image=file)
        if valid is not None:
            here = resized_mask(valid, (label.shape[1], label.shape[0]))
            label = np.where(here, label, np.uint8(IGNORE_INDEX))
        return Sample(self.name(index), values, label, valid, self._pixels)


def prediction_writer(folder: Path, classes: ClassSet, names: Sequence[str]) -> OnSample:
    """Writes predictions as ``<name>_pred_labelIds.png`` into a folder, by the classes' ids."""

    def write(index: int, sample: Sample, logits: Tensor) -> None:
        predicted = logits.argmax(0).to(torch.uint8).cpu().numpy()
        valid = None if sample.valid is None else resized_mask(sample.valid, predicted.shape[::-1])
        Image.fromarray(classes.to_ids(predicted, valid)).save(folder / f"{names[index]}_pred_labelIds.png")

    return write
