"""The work of ``python -m seg.convert``: a checkpoint in ADVENT's key layout becomes a run folder.

ADVENT, AdaptSegNet and their followers save the weights alone: ``conv1``, ``bn1``, ``layer1`` to ``layer4`` of the
encoder, ``layer5`` the auxiliary head, ``layer6`` the main head, whose branches are ``conv2d_list.0`` to ``.3``.

The file that their trainings start from has a prefix ``Scale.`` on every name and a ``layer5`` of another data set. Of
it they take the encoder, and so does this: heads are drawn by the seed of the training that starts from the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dem_apps.errors import InputError
from dem_apps.runtime.run_folder import RunFolder
from dem_apps.runtime.settings import to_dict
from seg.config import ModelConfig, SourceConfig, TargetDataConfig, TrainConfig
from seg.data.labels import load_classes
from seg.models.deeplabv2_advent import DEPTH, ENCODER, OUTPUT_STRIDE, AdventDeepLabV2
from seg.models.description import CLASSES_FILE
from seg.models.run_network import only_encoder
from seg.models.weights_file import read_torch, tensors_by_name

#: How a name begins here → in ADVENT's layout.
_PREFIXES = {
    "auxiliary_head.branches.": "layer5.conv2d_list.",
    "main_head.branches.": "layer6.conv2d_list.",
    "encoder.": "",
}
_HEADS = ("layer5.", "layer6.")
RECORD_FILE = "converted.json"
_START_PREFIX = "Scale."
_COUNTER = ".num_batches_tracked"
_SHOWN = 3


def convert(file: Path, run_dir: Path, classes_file: str | None = None) -> str:
    """Write a run folder whose checkpoint ``last`` holds the weights of ``file``.

    ``config.yaml`` has the network and the image sizes of ADVENT's protocol, ``converted.json`` the file's name and
    checksum, and whether it held the whole network or an encoder to start from. How the weights were trained is not
    known: the method stands as ``source``, the step as 0.

    Returns:
        ``network``, or ``encoder`` of a file that holds weights to start from.

    Raises:
        InputError: a file that is no such checkpoint, another number of classes, or a folder that is in use.
    """
    classes = load_classes(classes_file)
    weights = from_advent(read_state_dict(file), len(classes), str(file))
    part = "encoder" if only_encoder(weights) else "network"
    config = _run_config(file, run_dir, classes_file)
    run = RunFolder.create(run_dir, to_dict(config), config.seed, "cpu")
    try:
        run.write_json(CLASSES_FILE, classes.document())
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        run.write_json(RECORD_FILE, {"advent": str(file), "sha256": sha256, "part": part})
        run.save_checkpoint("last", {"model": weights, "step": 0})
    finally:
        run.close()
    return part


def read_state_dict(file: Path) -> dict[str, Tensor]:
    """The tensors of a ``.pth`` file by name. Code in the file is not run.

    Raises:
        InputError: it cannot be read, holds code, or is no flat mapping of names to tensors.
    """
    content = read_torch(file, "--advent")
    if not tensors_by_name(content):
        raise InputError(f"--advent: {file} holds no flat mapping of names to tensors, as a state_dict() is")
    return dict(content)


def from_advent(advent: Mapping[str, Tensor], num_classes: int, where: str) -> dict[str, Tensor]:
    """Weights in ADVENT's names → weights for :class:`seg.models.deeplabv2_advent.AdventDeepLabV2`, float32.

    A prefix ``module.`` on every name, which data-parallel training leaves, is dropped. Files older than torch 0.4.1
    have no count of the batches that batch normalisation saw; it is taken as 0, since nothing here depends on it.
    Of weights to start from (prefix ``Scale.``) the encoder alone is returned.

    Args:
        advent: as of :func:`read_state_dict`.
        num_classes: C that is expected.
        where: what to call the weights in errors.

    Raises:
        InputError: names that are missing or unknown, or a tensor of another shape.
    """
    with torch.device("meta"):  # shapes and types without values
        ours = AdventDeepLabV2(num_classes).state_dict()
    expected = {_advent_name(name): name for name in ours}
    if all(name.startswith("module.") for name in advent):
        advent = {name.removeprefix("module."): value for name, value in advent.items()}
    if all(name.startswith(_START_PREFIX) for name in advent):
        advent = {name.removeprefix(_START_PREFIX): value for name, value in advent.items()}
        advent, expected = _without_heads(advent), _without_heads(expected)
    advent = {name: torch.zeros(()) for name in expected if name.endswith(_COUNTER)} | dict(advent)
    _check_names(advent, expected, where)
    for name, own in expected.items():
        if advent[name].shape != ours[own].shape:
            hint = "; give --classes FILE with as many classes as it has" if name.startswith(_HEADS) else ""
            raise InputError(
                f"{where}: {name} has shape {list(advent[name].shape)} instead of {list(ours[own].shape)}{hint}"
            )
    return {own: advent[name].to(ours[own].dtype) for name, own in expected.items()}


def _advent_name(name: str) -> str:
    for ours, advent in _PREFIXES.items():
        if name.startswith(ours):
            return advent + name.removeprefix(ours)
    return name


def _without_heads(named: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if not name.startswith(_HEADS)}


def _check_names(advent: Mapping[str, Tensor], expected: Mapping[str, str], where: str) -> None:
    missing = [name for name in expected if name not in advent]
    unknown = [name for name in advent if name not in expected]
    for what, names in (("missing", missing), ("unknown", unknown)):
        if names:
            shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
            raise InputError(
                f"{where}: {len(names)} names are {what} ({shown}); expected ADVENT's ResNet-101 with conv1, bn1, "
                "layer1 to layer4 and both heads, the auxiliary layer5 and layer6"
            )


def _run_config(file: Path, run_dir: Path, classes_file: str | None) -> TrainConfig:
    return TrainConfig(
        method="source",
        loss="none",
        batch_size=1,
        classes=classes_file,
        run_dir=str(run_dir),
        source=SourceConfig(size=[1280, 720], augmentation=[]),
        target=TargetDataConfig(layout="cityscapes", size=[1024, 512], augmentation=[]),
        model=ModelConfig(
            name="deeplabv2-advent",
            encoder=ENCODER,
            depth=DEPTH,
            output_stride=OUTPUT_STRIDE,
            batch_norm="affine-frozen",
            align_corners=True,
            # so that a score's protocol names the weights that it belongs to
            start_from=str(file),
        ),
    )
