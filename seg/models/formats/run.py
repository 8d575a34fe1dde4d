"""Our own run folders as trained networks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
import yaml

from dem_apps.runtime.checkpoint import save_checkpoint
from dem_apps.runtime.settings import to_dict
from seg.data.pixel_format import PIXELS_FILE
from seg.models.adaptive_batch_norm import RE_ESTIMATED_ON
from seg.models.formats.trained_network import TrainedNetwork
from seg.models.load_model import CLASSES_FILE, LoadedModel
from seg.models.load_model import open_trained as open_run
from seg.models.preprocessing import Preprocessing
from seg.models.pretrained import NETWORK_FILE


def is_run(folder: Path) -> bool:
    """Whether a folder looks like one."""
    return (folder / "config.yaml").is_file()


def read_run(folder: Path) -> TrainedNetwork:
    """The network of a run: of its ``selected`` checkpoint, else of its last.

    Raises:
        InputError: see :func:`seg.models.load_model.open_trained`.
    """
    loaded = open_run(folder, "auto", torch.device("cpu"))
    config, size = loaded.config, loaded.config.target.size
    preprocessing = Preprocessing.of(
        loaded.pixels, None if size is None else (size[0], size[1]), "ImageNet's, as every run of 8-bit images has it"
    )

    def write(new: Path) -> None:
        _write(loaded, new)
        if (folder / NETWORK_FILE).is_file():
            (new / NETWORK_FILE).write_bytes((folder / NETWORK_FILE).read_bytes())

    return TrainedNetwork(
        str(folder), "run", loaded.model, len(loaded.classes), loaded.classes, preprocessing,
        config.model.align_corners, write,
    )  # fmt: skip


def _write(loaded: LoadedModel, folder: Path) -> None:
    """A run folder with a checkpoint ``last`` and nothing that was logged."""
    config = dataclasses.replace(loaded.config, run_dir=None, resume=False)
    state = {"model": loaded.model.state_dict(), "step": loaded.step}
    if loaded.re_estimated_on is not None:
        state[RE_ESTIMATED_ON] = loaded.re_estimated_on
    save_checkpoint(folder / "checkpoints", "last", state)
    (folder / CLASSES_FILE).write_bytes((json.dumps(loaded.classes.document(), indent=2) + "\n").encode())
    if not loaded.pixels.is_rgb:
        (folder / PIXELS_FILE).write_bytes((json.dumps(loaded.pixels.document(), indent=2) + "\n").encode())
    (folder / "config.yaml").write_bytes(yaml.safe_dump(to_dict(config), sort_keys=False).encode())
