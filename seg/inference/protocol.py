"""The protocol of a score, written beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from torch import nn

from dem_apps.objectives.flags import given_options
from seg.config import TrainConfig
from seg.methods import METHODS
from seg.models.batch_norm import describe, statistics
from seg.models.tiles import Tiling
from seg.scores.checkpoints import chosen_by

_PACKAGES = ("torch", "torchvision", "segmentation-models-pytorch")


def batch_norm_statistics(config: TrainConfig, model: nn.Module, step: int, re_estimated_on: str | None = None) -> str:
    """The images that a run's running statistics are of, in a few words; arguments as of :func:`protocol`."""
    return statistics(
        str(config.model.batch_norm), model, labelled=config.target.labelled_domains(),
        uses_target=METHODS[config.method].uses_target, trained=step > 0, re_estimated_on=re_estimated_on,
    )  # fmt: skip


def protocol(
    config: TrainConfig, model: nn.Module, checkpoint: str, step: int, scales: Sequence[float] = (1.0,),
    flip: bool = False, re_estimated_on: str | None = None, cut: Tiling | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The settings that a score depends on, to compare it with another; ``config`` has the target that was scored.

    ``scales``, ``flip`` and ``cut`` are of :func:`seg.scores.evaluation.predicted`, ``re_estimated_on`` is of AdaBN.
    """
    whose = batch_norm_statistics(config, model, step, re_estimated_on)
    settings = (
        "method", "loss", "reduction", "balance", "least_share", "batch_size", "accumulate", "precision", "seed",
        "deterministic", "validation_part",
    )  # fmt: skip
    unused: set[str] = set() if METHODS[config.method].uses_target else {"loss", "reduction", "balance", "least_share"}
    if config.loss == "none" or config.reduction != "balanced":
        unused |= {"balance", "least_share"}
    return {
        **({} if re_estimated_on is None else {"bn_alpha": config.bn_alpha}),
        **({"demo": dataclasses.asdict(config.demo)} if config.uses_demo() else {}),
        "train_size": {"source": config.source.size, "target": config.target.size},
        "source_style": config.source.described_style(),
        "score_size": "labels' own; without labels the image's",
        "upsampling": f"bilinear, align_corners={config.model.align_corners}",
        "scales": list(scales),
        "flip": flip,
        **({} if cut is None else {"tile": cut.side, "tile_overlap": cut.overlap}),
        "score_precision": "float32",
        "batch_norm": describe(str(config.model.batch_norm), model, whose),
        "batch_norm_statistics": whose,
        "initialisation": config.model.start_from or config.model.encoder_weights or "random",
        "network": config.model.architecture(),
        "checkpoint": checkpoint,
        "chosen_by": chosen_by(checkpoint, config.selection),
        "used_target_labels": checkpoint == "best" or bool(config.target.labelled_part),
        "labelled_part": config.target.labelled_part or 0.0,
        "labelled_use": config.target.labelled_use if config.target.labelled_part else None,
        "rare_class_temperature": config.source.rare_class_temperature,
        "step": step,
        **{name: None if name in unused else getattr(config, name) for name in settings},
        "optimizer": dataclasses.asdict(config.optimizer),
        "method_options": {
            name: dataclasses.asdict(each) for name, each in config.method_options().items() if name != "weights"
        },
        "options": given_options(config),
        "weights": dataclasses.asdict(config.weights),
        "versions": {package: metadata.version(package) for package in _PACKAGES},
    }
