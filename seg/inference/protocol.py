"""The protocol of a score, written beside it."""

from __future__ import annotations

from dataclasses import asdict
from importlib import metadata

from torch import nn

from dem_apps.objectives.flags import given_options
from dem_apps.runtime.documents import Document
from dem_apps.test_time_methods.normalisation import batch_norms
from seg.config import TrainConfig
from seg.data.settings import TargetDataConfig
from seg.methods import METHODS
from seg.scores.checkpoints import chosen_by
from seg.trained.trained_network import Training

_SETTINGS = (
    "method",
    "batch_size",
    "accumulate",
    "precision",
    "seed",
    "deterministic",
    "validation_part",
)
_PACKAGES = ("torch", "torchvision", "segmentation-models-pytorch")


def batch_norm_statistics(config: TrainConfig, training: Training, model: nn.Module) -> str:
    """The images that a run's running statistics are of, in a few words."""
    if not batch_norms(model):
        return "none: the network has no batch normalisation"
    if training.re_estimated_on is not None:
        return f"re-estimated on {training.re_estimated_on} after training"
    policy, moved_by = config.model.batch_norm, set[str]()
    if training.step and policy not in ("frozen", "target"):
        moved_by.update(config.target.labelled_domains())
    if training.step and policy not in ("frozen", "source") and METHODS[config.method].uses_target:
        moved_by.add("target")
    if len(moved_by) == 2:
        return "moved by both domains"
    return f"moved by {moved_by.pop()} alone" if moved_by else "those it started with"


def protocol(config: TrainConfig, training: Training, model: nn.Module) -> Document:
    """The settings that a score depends on, of a training with the scored target."""
    statistics = batch_norm_statistics(config, training, model)
    batch_norm = statistics
    if batch_norms(model):
        batch_norm = f"{config.model.batch_norm}: running statistics {statistics}"
    document: Document = {
        "train_size": {"source": config.source.size, "target": config.target.size},
        "source_style": config.source.described_style(),
        "score_size": "labels' own; without labels the image's",
        "upsampling": f"bilinear, align_corners={config.model.align_corners}",
        "score_precision": "float32",
        "batch_norm": batch_norm,
        "batch_norm_statistics": statistics,
        "initialisation": config.model.start_from or config.model.encoder_weights or "random",
        "network": config.model.architecture(),
        "checkpoint": training.checkpoint,
        "chosen_by": chosen_by(training.checkpoint),
        **_of_labels(config.target, training.checkpoint),
        "rare_class_temperature": config.source.rare_class_temperature,
        "step": training.step,
        **{name: getattr(config, name) for name in _SETTINGS},
        **_of_objective(config),
        "optimizer": asdict(config.optimizer),
        "method_options": {name: asdict(each) for name, each in config.method_options().items()},
        "options": given_options(config),
        "weights": asdict(config.weights),
        "versions": {package: metadata.version(package) for package in _PACKAGES},
    }
    if training.re_estimated_on is not None:
        document["bn_alpha"] = config.bn_alpha
    if config.uses_demo():
        document["demo"] = asdict(config.demo)
    return document


def _of_labels(target: TargetDataConfig, checkpoint: str) -> Document:
    """The use that a training made of target labels."""
    part = target.labelled_part or 0.0
    return {
        "used_target_labels": checkpoint == "best" or part > 0,
        "labelled_part": part,
        "labelled_use": target.labelled_use if part else None,
    }


def _of_objective(config: TrainConfig) -> Document:
    """The objective and how its pixels are averaged; None where they have no effect."""
    if METHODS[config.method].loss is None:
        return dict.fromkeys(("loss", "reduction", "balance"))
    balanced = config.loss != "none" and config.reduction == "balanced"
    balance = config.balance if balanced else None
    return {"loss": config.loss, "reduction": config.reduction, "balance": balance}
