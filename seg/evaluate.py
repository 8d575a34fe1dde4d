"""Scores of a model on labelled images, and ``python -m seg.evaluate --run DIR`` for a finished run.

Protocol: the image at the training size, logits upsampled to the label's own size (bilinear, corners aligned),
argmax, every pixel whose label is not ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from dem_apps.checkpoint import load_checkpoint
from dem_apps.config import from_dict, option, parse_config
from dem_apps.device import torch_device
from dem_apps.errors import InputError, run_command
from dem_apps.run import read_config
from seg.config import TrainConfig
from seg.data.datasets import Sample, SegmentationDataset
from seg.data.labels import CLASS_NAMES, IGNORE_INDEX, train_id_to_id
from seg.data.pair import open_validation
from seg.data.stream import normalised
from seg.deeplabv2 import build_model
from seg.metrics import SegmentationScores
from seg.minent import upsampled

OnSample = Callable[[int, Sample, Tensor], None]


@dataclass(frozen=True)
class EvaluateConfig:
    """Score a run on the target's validation set."""

    run: str | None = option(None, "run folder to score")
    checkpoint: str = option("last", "which of its checkpoints; best was chosen with target labels", ("last", "best"))
    save_predictions: str | None = option(None, "folder for predictions as Cityscapes label ids, or null")
    device: str = option("cpu", "cpu or cuda")


@torch.no_grad()
def evaluate(
    model: nn.Module, dataset: SegmentationDataset, device: torch.device, on_sample: OnSample | None = None
) -> dict[str, Any]:
    """Scores over a labelled data set; see :meth:`seg.metrics.SegmentationScores.result`.

    Args:
        model: as of :func:`seg.build_model`; put into ``eval()`` for the duration.
        dataset: labelled.
        device: where the model is.
        on_sample: called with (index, sample, logits (C, H, W) at the label's size).
    """
    was_training = model.training
    model.eval()
    scores = SegmentationScores(CLASS_NAMES, IGNORE_INDEX)
    for index in range(len(dataset)):
        sample = dataset[index]
        if sample.label is None:
            raise InputError(f"{dataset.root}: scores need labels, and this data set was opened without")
        height, width = sample.label.shape
        logits = upsampled(model(normalised(sample.image)[None].to(device))["main"], (height, width))
        scores.update(logits, torch.from_numpy(sample.label.astype(np.int64))[None])
        if on_sample is not None:
            on_sample(index, sample, logits[0])
    model.train(was_training)
    return scores.result()


def protocol(config: TrainConfig, checkpoint: str, step: int) -> dict[str, Any]:
    """How a score came about: what somebody needs to compare it with another."""
    return {
        "train_size": {"source": config.source.size, "target": config.target.size},
        "score_size": "labels' own",
        "upsampling": "bilinear, align_corners=True",
        "batch_norm": "trainable; running statistics updated by source, then target batches",
        "initialisation": config.model.encoder_weights or "random",
        "checkpoint": checkpoint,
        "step": step,
        "method": config.method,
        "loss": config.loss if config.method != "source" else None,
        "reduction": config.reduction,
        "weights": {"target_main": config.weights.target_main, "target_aux": config.weights.target_aux},
        "seed": config.seed,
        "torch": torch.__version__,
    }


def score_table(result: dict[str, Any], title: str) -> Table:
    """The scores for a terminal."""
    table = Table(title=title)
    table.add_column("class")
    table.add_column("IoU %", justify="right")
    for name, iou in result["per_class_iu"].items():
        table.add_row(name, "-" if iou is None else f"{100 * iou:.1f}")
    table.add_section()
    table.add_row("mean IoU", f"{100 * result['miou']:.2f}", style="bold")
    table.add_row("pixel accuracy", f"{100 * result['pixel_accuracy']:.2f}")
    table.add_row("mean entropy / log C", f"{result['mean_entropy_normalised']:.3f}")
    table.add_row("calibration error", f"{result['calibration_error']:.3f}")
    return table


def load_model(config: TrainConfig, state: dict[str, Tensor], where: str) -> nn.Module:
    """The network of a run with the given weights.

    Raises:
        InputError: weights of another network or class count.
    """
    settings = config.model
    model = build_model(settings.name, settings.encoder, len(CLASS_NAMES), settings.output_stride, settings.depth)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise InputError(f"{where}: its weights do not fit the network in config.yaml ({str(error)[:200]})") from error
    return model


def _save_prediction(folder: Path, sample: Sample, logits: Tensor) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ids = train_id_to_id()[logits.argmax(0).cpu().numpy().astype(np.uint8)]
    Image.fromarray(ids).save(folder / f"{Path(sample.name).stem}_pred_labelIds.png")


def _main() -> None:
    config = parse_config(EvaluateConfig, "python -m seg.evaluate", "python -m seg.evaluate --run runs/my-run")
    if config.run is None:
        raise InputError("--run: the folder of the run to score is missing")
    run = Path(config.run)
    trained = from_dict(TrainConfig, read_config(run), str(run / "config.yaml"))
    state = load_checkpoint(run / "checkpoints", config.checkpoint)
    device = torch_device(config.device)
    model = load_model(trained, state["model"], str(run)).to(device)
    dataset = open_validation(trained.target)
    on_sample: OnSample | None = None
    if config.save_predictions is not None:
        folder = Path(config.save_predictions)

        def on_sample(_index: int, sample: Sample, logits: Tensor) -> None:
            _save_prediction(folder, sample, logits)

    result = evaluate(model, dataset, device, on_sample)
    Console().print(score_table(result, f"{run}, checkpoint {config.checkpoint}, step {state['step']}"))
    if config.save_predictions is not None:
        print(f"predictions: {config.save_predictions}")


if __name__ == "__main__":
    run_command(_main)
