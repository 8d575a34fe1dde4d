"""What a run folder says about its network: architecture, classes, pixels, and the weights to start from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import load_checkpoint, load_state
from dem_apps.runtime.files import required
from dem_apps.runtime.run_reader import read_config
from seg.config import ModelConfig
from seg.data.labels import ClassSet, load_classes
from seg.data.pixel_format import PixelFormat, read_format
from seg.models import build_model
from seg.models.network import SegmentationNetwork
from seg.models.pretrained import NETWORK_FILE

CLASSES_FILE = "classes.json"
#: Of its tensors' names, in every network here.
ENCODER = "encoder."


def build_network(
    settings: ModelConfig, num_classes: int, own: Path | None = None, weights: str | None = None, bands: int = 3
) -> SegmentationNetwork:
    """The network of a run's settings, with random weights.

    Args:
        settings: of the network.
        num_classes: C.
        own: the run folder, whose copy of a description wins over the folder that the settings name.
        weights: of the encoder, by name.
        bands: of the images.
    """
    architecture = settings.architecture()
    if own is not None and (own / NETWORK_FILE).is_file():
        architecture["encoder"] = str(own)
    return build_model(**architecture, num_classes=num_classes, weights=weights, bands=bands)


def run_classes(run: Path, file: str | None) -> ClassSet:
    """The classes of a run's own copy, else of the ``file`` that its settings name."""
    own = run / CLASSES_FILE
    return load_classes(str(own) if own.is_file() else file)


def classes_to_resume(run: Path, file: str | None) -> str | None:
    """The file of classes for a run that is continued: its own copy.

    Raises:
        InputError: the ``file`` that its settings name is there and says something else now.
    """
    own = run / CLASSES_FILE
    if not own.is_file():
        return file
    if file is not None and Path(file).exists() and _meaning(load_classes(file)) != _meaning(load_classes(str(own))):
        raise InputError(
            f"--resume: {file} has changed since the run was started with the classes in {own}; put it back, or start "
            "another run"
        )
    return str(own)


def _meaning(classes: ClassSet) -> ClassSet:
    """All but colours for display."""
    return classes if classes.by_color else dataclasses.replace(classes, colors=())


def format_to_resume(run: Path) -> PixelFormat | None:
    """The pixels of a run that is continued; None where the run has not begun."""
    return read_format(run) if (run / CLASSES_FILE).is_file() else None


def saved_weights(run: Path) -> dict[str, Tensor]:
    """The weights that another training starts from: of the run's ``selected`` checkpoint, else of its last.

    Raises:
        InputError: no run folder, or one without a checkpoint.
    """
    read_config(run)
    state = load_checkpoint(run / "checkpoints", chosen_checkpoint(run, "auto"))
    required(state, str(run), model=dict)
    weights: dict[str, Tensor] = state["model"]
    return weights


def chosen_checkpoint(run: Path, checkpoint: str) -> str:
    """The checkpoint that ``auto`` stands for: ``selected`` where there is one, else ``last``."""
    if checkpoint != "auto":
        return checkpoint
    return "selected" if (run / "checkpoints" / "selected.pt").is_file() else "last"


def only_encoder(weights: Mapping[str, Tensor]) -> bool:
    """Whether the weights are of an encoder without heads."""
    return bool(weights) and all(str(name).startswith(ENCODER) for name in weights)


def load_weights(model: nn.Module, state: dict[str, Tensor], where: str) -> None:
    """Put weights into a network.

    Raises:
        InputError: weights of another network or another number of classes.
    """
    try:
        load_state(model, state, where)
    except InputError as error:
        raise InputError(f"{error}; these weights do not fit the network in its settings") from error
