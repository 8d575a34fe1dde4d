"""The protocol of a score, written beside it."""

from __future__ import annotations

from importlib import metadata

from torch import nn

from dem_apps.runtime.documents import Document
from dem_apps.test_time_methods.normalisation import batch_norms
from seg.config import UNMOVED
from seg.scores.checkpoints import chosen_by
from seg.trained.trained_network import Training

_PACKAGES = ("torch", "torchvision", "segmentation-models-pytorch")


def protocol(settings: Document, training: Training, model: nn.Module) -> Document:
    """What a score of a training with the scored target depends on.

    ``settings`` are those of :meth:`seg.config.TrainConfig.protocol`.
    """
    statistics = settings["batch_norm_statistics"]
    if training.re_estimated_on is not None:
        statistics = f"re-estimated on {training.re_estimated_on} after training"
    elif not training.step:
        statistics = UNMOVED
    batch_norm = f"{settings['batch_norm']}: running statistics {statistics}"
    if not batch_norms(model):
        batch_norm = statistics = "none: the network has no batch normalisation"
    return settings | {
        "score_size": "labels' own; without labels the training size",
        "score_precision": "float32",
        "batch_norm": batch_norm,
        "batch_norm_statistics": statistics,
        "checkpoint": training.checkpoint,
        "chosen_by": chosen_by(training.checkpoint),
        "used_target_labels": training.checkpoint == "best" or settings["labelled_part"] > 0,
        "step": training.step,
        "versions": {package: metadata.version(package) for package in _PACKAGES},
    }
