"""Opens trained networks by SPEC, for commands and for ``seg.load``.

A SPEC is a run folder, one of ``save_pretrained`` of segmentation-models-pytorch, transformers (extra ``hf``) or a
network here, as ``seg.export_model`` writes it, what ``seg.adapt`` wrote, a file of weights with its architecture, or
``package.module:function`` with a file of weights.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dem_apps.errors import InputError, passed_on
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.documents import read_json, required
from dem_apps.runtime.setting_checks import check_settings
from dem_apps.test_time_methods.network import takes
from seg.data.files import checked_size
from seg.data.labels import ClassSet, load_classes, named_classes
from seg.data.pixel_format import PIXELS_FILE
from seg.models import smp_network, transformers_network
from seg.models.network import OUR_KEY, OUR_VERSION, SegmentationNetwork
from seg.models.networks import build_model
from seg.models.weights_file import find_weights, load_weights
from seg.trained.description import (
    CLASSES_FILE,
    DESCRIPTION_FILES,
    PREPROCESSOR_FILE,
    Description,
    PlainLogits,
    copy_files,
)
from seg.trained.function_network import read_function, read_weights
from seg.trained.run_network import open_run
from seg.trained.settings import ADAPT_FILE, ADAPTED, NetworkSettings, is_function
from seg.trained.trained_network import TrainedNetwork

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
#: Of an ``image_size`` that is tried at twice that.
_LARGEST_TRIED = 1024


def load(
    spec: str | Path,
    weights: str | Path | None = None,
    *,
    checkpoint: str = "auto",
    device: str = "auto",
    size: Sequence[int] | str | None = "auto",
    tile: int | None = None,
    architecture: str | None = None,
    encoder: str | None = None,
    classes: str | Sequence[str] | int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    channels: str | None = None,
    scale: int | None = None,
) -> TrainedNetwork:
    """A trained network that predicts images, see :meth:`TrainedNetwork.predict`.

    What is assumed of the images stands in its ``description.said``, and is a warning where it is a guess.

    Args:
        spec: see :mod:`seg.trained.open`.
        weights: file for ``package.module:function``.
        checkpoint: of a run, ``last``, ``selected`` or ``best``; ``auto`` is best where target labels chose one, else
            last.
        device: ``cpu``, ``cuda``, or ``auto``.
        size: (width, height) that the network sees; ``own`` is its folder's, a run's target size; None is
            the images'; ``auto`` is ``own``, and None with ``tile``. Predictions have the images' size in any case.
        tile: side of the tiles that larger images go by; neighbours share a quarter.
        architecture: of a file of weights, as segmentation-models-pytorch spells it; likewise ``encoder``.
        classes: names of the outputs, a YAML file of them, or their number; None is the network's own.
        mean: what becomes 0 in R, G and B, on ``scale``; with ``std``. None is what the network's files say, else what
            its encoder's published weights expect, else ImageNet's.
        std: what becomes 1 above it, likewise.
        channels: ``rgb`` or ``bgr``, the order that the network sees.
        scale: 255 or 1, to which pixels reach from 0 before mean and deviation.

    Raises InputError: a network that cannot be read, a setting that makes no sense.

    >>> import tempfile, warnings, numpy as np, segmentation_models_pytorch as smp
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
    ...     _ = smp.Unet("resnet18", encoder_weights=None, classes=3).save_pretrained(folder)
    ...     predictor = load(folder, device="cpu", mean=(0, 0, 0), std=(1, 1, 1), scale=255)
    >>> predictor.description.said
    'RGB from 0 to 255, mean 0 0 0, deviation 1 1 1 (the user)'
    >>> predictor.predict(np.zeros((64, 96, 3), np.uint8)).classes.shape
    (64, 96)
    """
    if classes is not None and not isinstance(classes, str):
        classes = str(classes) if isinstance(classes, int) else ",".join(classes)
    settings = NetworkSettings(
        model=str(spec),
        weights=None if weights is None else str(weights),
        architecture=architecture,
        encoder=encoder,
        classes=classes,
        checkpoint=checkpoint,
        mean=None if mean is None else [*map(float, mean)],
        std=None if std is None else [*map(float, std)],
        channels=channels,
        scale=scale,  # type: ignore[arg-type]
        size=size if size is None or isinstance(size, str) else [int(side) for side in size],
    )
    trained = open_network(settings).seeing(settings.size, tile)
    trained.network.to(torch_device(device))
    for note in trained.description.notes:
        warnings.warn(note, stacklevel=2)
    if trained.description.guessed:
        warnings.warn(
            f"{spec}: {trained.description.said}; mean=, std=, channels=, scale= say another",
            stacklevel=2,
        )
    return trained


def open_network(settings: NetworkSettings, run: str | None = None) -> TrainedNetwork:
    """The network of ``--model``, or of ``--run``, on the CPU and in ``eval()`` mode, with what the user says of it.

    Nothing is downloaded, and no code of a file is run.
    """
    check_settings(settings)
    settings.check_network(run)
    trained = open_trained(
        settings.model or str(run), settings.weights, settings.checkpoint, settings
    )
    description = trained.description.told(
        settings.mean, settings.std, settings.channels, settings.scale
    )
    if not settings.architecture and settings.classes is not None:
        if (classes := named(settings.classes)) is not None:
            description = dataclasses.replace(description, classes=classes)
        elif int(settings.classes) != trained.num_classes:
            number = trained.num_classes
            raise InputError(
                f"--classes: {settings.classes}, and {trained.spec} predicts {number} classes"
            )
    if isinstance(settings.size, (list, tuple)):
        description = dataclasses.replace(description, size=checked_size(settings.size, "--size"))
    return dataclasses.replace(trained, description=description)


@torch.inference_mode(False)
def open_trained(
    spec: str,
    weights: str | None = None,
    checkpoint: str = "auto",
    settings: NetworkSettings | None = None,
) -> TrainedNetwork:
    """As :func:`open_network` by the SPEC alone; ``settings`` are of a file of weights, or say a function's size."""
    if settings is None:
        settings = NetworkSettings(model=spec, weights=weights)
        settings.check_network()
    size = (
        checked_size(settings.size, "--size") if isinstance(settings.size, (list, tuple)) else None
    )
    folder = Path(spec)
    if is_function(spec):
        return read_function(spec, None if weights is None else Path(weights), size)
    if folder.is_file():
        return read_weights(folder, settings, named(settings.classes))
    if (folder / ADAPT_FILE).is_file():
        return _read_adapted(folder)
    if (folder / "config.yaml").is_file():
        return open_run(folder, checkpoint)
    return _read_saved(folder)


def named(classes: str | None) -> ClassSet | None:
    """The classes of ``--classes``; None where it is a number or nothing."""
    return None if classes is None or classes.isdecimal() else load_classes(classes)


def _read_adapted(out: Path) -> TrainedNetwork:
    """The network in the folder that seg.adapt wrote, as a whole."""
    inner, file = out / ADAPTED, out / ADAPT_FILE
    if any((inner / name).is_file() for name in ("config.yaml", CONFIG_FILE)):
        return dataclasses.replace(open_trained(str(inner)), spec=str(out))
    found = required(
        required(read_json(file), str(file), settings=dict)["settings"], f"{file}, settings"
    )
    files = [
        each
        for each in (inner.iterdir() if inner.is_dir() else ())
        if each.name not in DESCRIPTION_FILES
    ]
    if len(files) != 1:
        raise InputError(
            f"{inner}: expected a folder or one file of weights, found {len(files)} files"
        )
    if not found.get("architecture"):  # no code runs that a file names
        model = str(found.get("model"))
        raise InputError(
            f"{out}: has the weights of a function alone; give --model {model} --weights {files[0]}"
        )
    known: dict[str, Any] = {
        name: found.get(name) for name in ("architecture", "encoder", "classes")
    }
    if (inner / CLASSES_FILE).is_file() and not str(known["classes"]).isdecimal():
        # the file that was given may be gone, or another
        known["classes"] = str(inner / CLASSES_FILE)
    settings = NetworkSettings(model=str(files[0]), **known)
    return dataclasses.replace(open_trained(str(files[0]), settings=settings), spec=str(out))


def _read_saved(folder: Path) -> TrainedNetwork:
    """A folder of ``save_pretrained``, a library's or ours. One output per pixel becomes two classes, no and yes."""
    file = folder / CONFIG_FILE
    config = required(read_json(file), str(file))
    network: SegmentationNetwork
    if OUR_KEY in config:
        config = required(
            {"align_corners": True, **config},
            str(file),
            num_classes=int,
            align_corners=bool,
            name=str,
        )
        if config["name"] == "pretrained":
            raise InputError(
                f"{file}: name is 'pretrained', which is the network of another folder"
            )
        if config[OUR_KEY] != OUR_VERSION:
            raise InputError(
                f"{file}: {OUR_KEY} is {config[OUR_KEY]!r:.50}, and this version reads {OUR_VERSION}"
            )
        unused = (OUR_KEY, "align_corners", "weights")  # all weights are in the folder
        with passed_on(str(file)):
            network = build_model(
                **{key: value for key, value in config.items() if key not in unused}
            )
        load_weights(
            network,
            find_weights(folder / WEIGHTS_FILE, network).tensors,
            str(folder / WEIGHTS_FILE),
        )
        outputs: int = config["num_classes"]
        description = Description.read(folder, align_corners=config["align_corners"])
    elif "model_type" in config:
        network = of_library = transformers_network.network_of_folder(folder)
        outputs = of_library.network.config.num_labels
        document, classes = (
            transformers_network.processor_of_folder(folder),
            _classes_of_labels(config, outputs),
        )
        description = Description.read(
            folder, document, outputs, align_corners=False, classes=classes
        )
    else:
        outputs, bands = config.get("classes", 1), config.get("in_channels", 3)
        description = Description.read(folder, smp_network.preprocessing(config), outputs)
        if bands != description.pixels.bands:
            said = (
                f"{folder}: in_channels is {bands}, and the normalisation of the bands is unknown"
            )
            raise InputError(
                f"{said}; write {PIXELS_FILE}, with bands, dtype, mean, std and shown, as a run has it"
            )
        network = smp_network.network_of_folder(str(folder), config)
    whole = network if outputs > 1 else PlainLogits(network, description)
    if "model_type" in config and description.size is None:
        description = _of_one_size(network, config, description)
    write = partial(_write_saved, network, folder, description)
    return TrainedNetwork(str(folder), whole, max(outputs, 2), description, write)


def _of_one_size(
    network: nn.Module, config: Mapping[str, Any], description: Description
) -> Description:
    """With the size of ``config.json`` where the network takes no other, as one with learnt positions."""
    side: Any = config.get("image_size")
    is_tried = isinstance(side, int) and 0 < side <= _LARGEST_TRIED
    if is_tried and not takes(network, torch.zeros(1, 3, 2 * side, 2 * side)):
        return dataclasses.replace(description, size=(side, side))
    return description


def _write_saved(
    network: SegmentationNetwork,
    folder: Path,
    own: Description,
    new: Path,
    description: Description,
) -> None:
    network.save_pretrained(new, config={"align_corners": description.align_corners})
    copy_files(DESCRIPTION_FILES, folder, new)
    if description != own or not (new / PREPROCESSOR_FILE).is_file():
        description.write(new, guess=not hasattr(network, "network"))


def _classes_of_labels(config: Mapping[str, Any], outputs: int) -> ClassSet | None:
    """From transformers' ``id2label``, unless these are the names that it gives where there are none."""
    names = config.get("id2label")
    ordered: list[Any] = (
        [names.get(str(index)) for index in range(outputs)] if isinstance(names, Mapping) else []
    )
    if len(ordered) < 2 or not all(
        isinstance(name, str) and not name.startswith("LABEL_") for name in ordered
    ):
        return None
    return named_classes(ordered)
