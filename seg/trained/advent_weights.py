"""The work of ``python -m seg.convert``: a checkpoint in ADVENT's key layout becomes a run folder.

ADVENT and its followers save the weights alone: the encoder's, ``layer5`` the auxiliary head, ``layer6`` the main head.
The file that their trainings start from has a prefix ``Scale.`` on every name and heads of another data set: of it the
encoder alone is taken, as they do.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from dem_apps.errors import passed_on
from dem_apps.runtime.files import new_folder
from dem_apps.runtime.run_folder import RunFolder
from seg.config import TrainConfig
from seg.data.labels import load_classes
from seg.data.settings import SourceConfig, TargetDataConfig
from seg.models.deeplabv2 import ADVENT, AdventDeepLabV2
from seg.models.settings import ModelConfig
from seg.models.weights_file import Tensors, state_dicts
from seg.trained.description import CLASSES_FILE
from seg.trained.run_network import ENCODER, only_encoder

#: How a name begins in ADVENT's layout → here; the encoder's have no prefix there.
_HEADS = {
    "layer5.conv2d_list.": "auxiliary_head.branches.",
    "layer6.conv2d_list.": "main_head.branches.",
}
_START_PREFIX = "Scale."
RECORD_FILE = "converted.json"


def convert(file: Path, run_dir: Path, classes_file: str | None = None) -> str:
    """Write a run folder whose checkpoint ``last`` holds the weights of ``file``; returns ``network`` or ``encoder``.

    How the weights were trained is not known: the method stands as ``source``, the step as 0.
    """
    classes = load_classes(classes_file)
    tensors = next(iter(state_dicts(file, "--advent").values()))
    weights = from_advent(tensors, len(classes), f"--advent: {file}")
    part = "encoder" if only_encoder(weights) else "network"
    config = TrainConfig(
        method="source",
        loss="none",
        batch_size=1,
        classes=classes_file,
        run_dir=str(run_dir),
        source=SourceConfig(size=[1280, 720], augmentation=[], rare_class_temperature=None),
        target=TargetDataConfig(layout="cityscapes", size=[1024, 512], augmentation=[]),
        model=ModelConfig(
            name="deeplabv2-advent",
            **ADVENT,
            batch_norm="affine-frozen",
            start_from=str(file),  # so that a score's protocol names the weights that it belongs to
        ),
    )
    with (
        new_folder(run_dir, "--run-dir") as folder,
        closing(RunFolder.create(folder, asdict(config), config.seed, "cpu")) as run,
    ):
        run.write_json(CLASSES_FILE, classes.document())
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        run.write_json(RECORD_FILE, {"advent": str(file), "sha256": sha256, "part": part})
        run.save_checkpoint("last", {"model": weights, "step": 0})
    return part


def from_advent(advent: Tensors, num_classes: int, where: str) -> dict[str, Tensor]:
    """Weights in ADVENT's names → in ours, float32.

    Args:
        advent: the published weights; of those that trainings start from the encoder's are taken.
        num_classes: C of the heads.
        where: begins an error.

    Raises:
        InputError: no network of ADVENT for C classes.
    """
    short = {name.removeprefix("module."): value for name, value in advent.items()}
    weights = {_our_name(name): value for name, value in short.items()}
    with torch.device("meta"):  # shapes alone
        network = AdventDeepLabV2(num_classes)
    if all(name.startswith(_START_PREFIX) for name in short):  # its heads are of another data set
        del network.main_head, network.auxiliary_head
        weights = {name: value for name, value in weights.items() if name.startswith(ENCODER)}
    with passed_on(
        f"{where} is no ResNet-101 of ADVENT with both heads for {num_classes} classes (--classes)"
    ):
        network.load_state_dict(weights, assign=True)
    return dict(network.float().state_dict())


def _our_name(name: str) -> str:
    """The name here of a tensor that has ``name`` in ADVENT's layout."""
    name = name.removeprefix(_START_PREFIX)
    for theirs, ours in _HEADS.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return ENCODER + name
