"""The work of ``python -m seg.evaluate``: open a network, score it on labelled images, write scores and predictions."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from dem_apps.errors import InputError
from dem_apps.runtime.documents import Document
from dem_apps.runtime.files import new_folder, write_json
from seg.data.datasets import Sample, SegmentationDataset
from seg.data.domains import open_validation
from seg.data.files import find_images, flat_names, left_out, refuse_long_name
from seg.data.label_faults import labels_of
from seg.data.pixel_format import resized_ids, resized_mask
from seg.data.read_images import read_header
from seg.inference.protocol import protocol
from seg.inference.settings import EvaluateConfig, next_command
from seg.scores.evaluation import OnSample, evaluate
from seg.scores.report_scores import main_score, print_scores
from seg.trained.open import open_to_predict
from seg.trained.trained_network import TrainedNetwork


def evaluate_run(config: EvaluateConfig) -> None:
    """Open a network, score it on labelled images, print the answer, and write scores and predictions."""
    folder, out = config.save_predictions, None if config.out is None else Path(config.out)
    with new_folder(Path(folder), "--save-predictions") if folder else nullcontext() as predictions:
        # a killed start may have left it
        if out is not None and out.exists() and predictions is None:
            raise InputError(f"--out: {out} exists and is never overwritten; give another file")
        trained = open_to_predict(config)
        dataset: SegmentationDataset
        how: Document = {"network": trained.spec}
        if config.images is None:
            dataset, how = _target_of_run(trained, config)
            kind = "target images"
        else:
            dataset = LabelledImages(trained, config)
            kind = f"images of {config.images}"
        result = _scores(trained, dataset, predictions)
        _print_answer(trained, dataset, kind, result)
        if predictions is not None:
            print(f"predictions: {folder}")
        if out is not None:
            how["normalisation"] = trained.description.normalisation
            out.parent.mkdir(parents=True, exist_ok=True)
            checkpoint = trained.training and trained.training.checkpoint
            write_json(out, {**result, "checkpoint": checkpoint, "protocol": how}, "--out")
            print(f"scores:      {out}")
    print(f"next:        {next_command('seg.export', config)} --images DIR --out DIR")


def _print_answer(
    trained: TrainedNetwork, dataset: SegmentationDataset, kind: str, result: Document
) -> None:
    """Print the scores of images of a ``kind``, and what they assume."""
    training, description = trained.training, trained.description
    network = trained.spec if training is None else f"checkpoint {training.checkpoint}"
    print(f"result:      {main_score(result)} on {len(dataset)} {kind} ({network})")
    print(f"seen as:     {description.described}", *description.notes, *dataset.notes, sep="\n")
    left = left_out([dataset.image_folder], [label for _, label in dataset.files])
    print_scores(result, f"{trained.spec}, {len(dataset)} images{left}")


def _scores(
    trained: TrainedNetwork, dataset: SegmentationDataset, predictions: Path | None
) -> Document:
    """Score the images, and write predictions into a folder where there is one."""
    description = trained.description
    forward = trained.logits if description.multiple > 1 else trained.raw_logits
    return evaluate(
        lambda images: forward(description.reordered(images)),
        dataset,
        trained.device,
        align_corners=description.align_corners,
        tile=trained.tile,
        on_sample=None if predictions is None else prediction_writer(predictions, dataset),
    )


def _target_of_run(
    trained: TrainedNetwork, settings: EvaluateConfig
) -> tuple[SegmentationDataset, Document]:
    """The validation images of a run's target, or of the data set that the settings name in its place.

    Returns:
        The images, and the protocol of their scores.
    """
    if trained.training is None or trained.config is None:
        raise InputError(
            f"--images: is missing; {trained.spec} is no run, so give --images DIR and --labels DIR"
        )
    # the size that the network sees; with tiles the images' own unless another was given
    changed: Document = {"size": trained.size and list(trained.size)}
    stated = asdict(settings.target)
    changed |= {name: value for name, value in stated.items() if value is not None}
    config = replace(trained.config, target=replace(trained.config.target, **changed))
    dataset = open_validation(
        config.target, trained.class_set, config.validation_part, demo=config.demo
    )
    dataset.pixels = trained.description.pixels
    how = protocol(config.protocol(), trained.training, trained.network)
    if settings.tile is not None:
        how["tile"] = settings.tile
    notes = [*dataset.look_at_labels("target val"), dataset.found_as]
    notes.append(f"batch norm:  {how['batch_norm']}")
    if trained.training.checkpoint == "best" and settings.target.root is None:
        notes.append(
            "optimistic:  these images' labels chose the checkpoint; --checkpoint last was chosen without them"
        )
    dataset.notes = [note for note in notes if note]
    return dataset, how


class LabelledImages(SegmentationDataset):
    """The images of a folder that have a label in another, at its own size; ``notes`` are about them."""

    def __init__(self, trained: TrainedNetwork, settings: EvaluateConfig) -> None:
        self.classes = trained.class_set.ignoring(settings.ignore)
        self.pixels, self.size = trained.description.pixels, trained.size
        self.resize_labels, self.left_out = False, []
        images, labels = Path(str(settings.images)), Path(str(settings.labels))
        self.root = self.image_folder = images if images.is_dir() else images.parent
        names = [file.relative_to(self.root) for file in find_images(images)]
        label_of, self.layout, self.notes = labels_of(labels, names, self.root, self.classes)
        pairs = [(self.root / image, label) for image, label in label_of.items()]
        self.files = list(self._whole(pairs, labelled=True))


def prediction_writer(folder: Path, dataset: SegmentationDataset) -> OnSample:
    """Writes predictions as ``<name>_pred_labelIds.png`` into a folder, by the ids of the data set's classes.

    They have the size of their label, or of an image without one.
    """
    names = flat_names([dataset.name(index) for index in range(len(dataset))])
    for name in names:
        refuse_long_name(Path(name))

    def write(index: int, sample: Sample, logits: Tensor) -> None:
        predicted = logits.argmax(0).to(torch.uint8).cpu().numpy()
        ids = dataset.classes.to_ids(predicted, resized_mask(sample.valid, predicted.shape[::-1]))
        if sample.label is None:  # a label has its own size, and the sample that of the training
            ids = resized_ids(ids, read_header(dataset.images[index]).size)
        Image.fromarray(ids).save(folder / f"{names[index]}_pred_labelIds.png")

    return write
