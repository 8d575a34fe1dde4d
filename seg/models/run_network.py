"""Reads what a run folder holds of its network: architecture, classes, pixels, and the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.files import required
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.settings import from_dict
from seg.config import ModelConfig, TrainConfig
from seg.data.labels import ClassSet, load_classes
from seg.data.pixel_format import PixelFormat, read_format
from seg.models import NETWORK_FILE, build_model
from seg.models.description import CLASSES_FILE
from seg.models.network import SegmentationNetwork

#: How the names of an encoder's tensors begin, in every network here.
ENCODER = "encoder."


def build_network(
    settings: ModelConfig, num_classes: int, own: Path | None = None, weights: str | None = None, bands: int = 3
) -> SegmentationNetwork:
    """The network of a run's settings, or of the description in the run folder ``own``, with random weights."""
    architecture = settings.architecture()
    if own is not None and (own / NETWORK_FILE).is_file():
        architecture["encoder"] = str(own)
    return build_model(**architecture, num_classes=num_classes, weights=weights, bands=bands)


def read_run(run: Path, checkpoint: str = "auto") -> tuple[TrainConfig, ClassSet, str, dict[str, Any]]:
    """The settings of a run, its classes, and the name and content of a checkpoint; ``auto`` is selected, else last."""
    config = from_dict(TrainConfig, read_config(run), str(run / "config.yaml"))
    if checkpoint == "auto":
        checkpoint = "selected" if (run / "checkpoints" / "selected.pt").is_file() else "last"
    state = load_checkpoint(run / "checkpoints", checkpoint)
    required(state, f"{run}, checkpoint {checkpoint}", model=dict)
    return config, load_classes(classes_of_run(run, config.classes)), checkpoint, state


def only_encoder(weights: Mapping[str, Tensor]) -> bool:
    """Whether the weights are of an encoder without heads."""
    return bool(weights) and all(str(name).startswith(ENCODER) for name in weights)


def classes_of_run(run: Path, file: str | None) -> str | None:
    """The file of a run's classes: its own copy, else the ``file`` in its settings."""
    own = run / CLASSES_FILE
    return str(own) if own.is_file() else file


def format_to_resume(run: Path) -> PixelFormat | None:
    """The pixels of a run that is continued; None where the run has not begun."""
    return read_format(run) if (run / CLASSES_FILE).is_file() else None
