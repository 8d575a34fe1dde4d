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
from seg.models.load_model import CLASSES_FILE
from seg.models.weights_file import read_torch, tensors_by_name

#: How a name begins in ADVENT's layout → here; the first that fits counts.
_PREFIXES = {
    "layer5.conv2d_list.": "auxiliary_head.branches.",
    "layer6.conv2d_list.": "main_head.branches.",
    "": "encoder.",
}
_HEADS = ("layer5.", "layer6.")
RECORD_FILE = "converted.json"
_START_PREFIX = "Scale."
_COUNTER = ".num_batches_tracked"
_SHOWN = 3


def convert(file: Path, run_dir: Path, classes_file: str | None = None) -> str:
    """Write a run folder whose checkpoint ``last`` holds the weights of ``file``.

    ``config.yaml`` has the network and the image sizes of ADVENT's protocol, ``converted.json`` the file's name and
    checksum, and whether it held the whole network or an encoder to start from. Nothing is known about how the weights
    were trained: the method stands as ``source``, the step as 0.

    Returns:
        ``network``, or ``encoder`` of a file that holds weights to start from.

    Raises:
        InputError: a file that is no such checkpoint, another number of classes, or a folder that is in use.
    """
    if (run_dir / "config.yaml").is_file():
        raise InputError(f"--run-dir: {run_dir} holds another run, which is never overwritten; give another folder")
    advent = read_state_dict(file)
    classes = load_classes(classes_file)
    weights = from_advent(advent, len(classes), str(file))
    part = "network" if any(name.startswith("main_head.") for name in weights) else "encoder"
    config = _run_config(file, run_dir, classes_file)
    run = RunFolder.create(run_dir, to_dict(config), config.seed, "cpu")
    try:
        run.write_json(CLASSES_FILE, classes.document())
        run.write_json(RECORD_FILE, {"advent": str(file), "sha256": _sha256(file), "part": part})
        run.save_checkpoint("last", {"model": weights, "step": 0})
    finally:
        run.close()
    return part


def read_state_dict(file: Path) -> Mapping[str, Tensor]:
    """The tensors of a ``.pth`` file by name. Code in the file is not run.

    Raises:
        InputError: it cannot be read, holds code, or is no flat mapping of names to tensors.
    """
    content = read_torch(file, "--advent", "checkpoint")
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
    if all(name.startswith("module.") for name in advent):
        advent = {name.removeprefix("module."): value for name, value in advent.items()}
    expected = _advent_layout(num_classes)
    if all(name.startswith(_START_PREFIX) for name in advent):
        advent = _encoder({name.removeprefix(_START_PREFIX): value for name, value in advent.items()})
        expected = _encoder(expected)
    _check_names(advent, expected, where)
    converted = {}
    for name, ours in expected.items():
        value = advent[name] if name in advent else torch.zeros_like(ours, device="cpu")
        if value.shape != ours.shape:
            raise InputError(f"{where}: {_wrong_shape(name, value, ours, num_classes)}")
        if value.layout != torch.strided or value.is_quantized or value.is_complex():
            raise InputError(f"{where}: {name} is {value.dtype}, {value.layout}, and no plain tensor of real numbers")
        if not value.isfinite().all():
            raise InputError(f"{where}: {name} holds NaN or infinite values")
        converted[_renamed(name, _PREFIXES)] = value.to(ours.dtype)
    return converted


def _advent_layout(num_classes: int) -> dict[str, Tensor]:
    """Every tensor of the network under ADVENT's name: shapes and types without values."""
    with torch.device("meta"):
        ours = AdventDeepLabV2(num_classes).state_dict()
    advent_prefixes = {ours: advent for advent, ours in _PREFIXES.items()}
    return {_renamed(name, advent_prefixes): value for name, value in ours.items()}


def _encoder(advent: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in advent.items() if not name.startswith(_HEADS)}


def _renamed(name: str, prefixes: Mapping[str, str]) -> str:
    before, after = next(pair for pair in prefixes.items() if name.startswith(pair[0]))
    return after + name.removeprefix(before)


def _check_names(advent: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> None:
    missing = [name for name in expected if name not in advent and not name.endswith(_COUNTER)]
    unknown = [name for name in advent if name not in expected]
    heads = sorted(name for name in missing if name.startswith("layer5."))
    if heads and heads == sorted(missing):
        raise InputError(
            f"{where}: the auxiliary head is missing (layer5.conv2d_list.0 to .3), as in single-level checkpoints; "
            "a multi-level one with layer5 and layer6 is needed"
        )
    complaints = [
        f"{len(names)} names are {what} ({', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''})"
        for names, what in ((missing, "missing"), (unknown, "unknown"))
        if names
    ]
    if complaints:
        raise InputError(
            f"{where}: {' and '.join(complaints)}; expected ADVENT's ResNet-101 with conv1, bn1, layer1 to layer4 and "
            "the heads layer5 and layer6"
        )


def _wrong_shape(name: str, value: Tensor, expected: Tensor, num_classes: int) -> str:
    if name.startswith(_HEADS) and value.dim() and value.shape[0] != num_classes:
        return (
            f"{name} is for {value.shape[0]} classes and {num_classes} are expected; give --classes FILE with "
            "as many as the checkpoint has"
        )
    return f"{name} has shape {list(value.shape)} instead of {list(expected.shape)}"


def _sha256(file: Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _run_config(file: Path, run_dir: Path, classes_file: str | None) -> TrainConfig:
    no_augmentation: list[dict[str, Any]] = []
    return TrainConfig(
        method="source",
        loss="none",
        batch_size=1,
        classes=classes_file,
        run_dir=str(run_dir),
        source=SourceConfig(size=[1280, 720], augmentation=no_augmentation),
        target=TargetDataConfig(layout="cityscapes", size=[1024, 512], augmentation=no_augmentation),
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
