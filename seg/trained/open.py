"""Opens trained networks by SPEC, for commands and for ``seg.load``.

A SPEC is a run folder, one of ``save_pretrained`` of segmentation-models-pytorch, transformers (extra ``hf``) or a
network here, as ``seg.export_model`` writes it, what ``seg.adapt`` wrote, a file of weights with its architecture, or
``package.module:function`` with a file of weights.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dem_apps.errors import InputError, passed_on
from dem_apps.runtime.arguments import flags
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.documents import Document, read_json, required
from dem_apps.runtime.setting_checks import check_settings
from seg.data.files import checked_size
from seg.data.labels import named_classes
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
    Triple,
    copy_files,
)
from seg.trained.function_network import number_and_classes, read_function, read_weights
from seg.trained.run_network import open_run
from seg.trained.settings import (
    ADAPT_FILE,
    ADAPTED,
    NetworkSettings,
    PredictSettings,
    given_settings,
    is_function,
)
from seg.trained.trained_network import TrainedNetwork

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"


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
    mean: Triple | None = None,
    std: Triple | None = None,
    channels: str | None = None,
    scale: int | None = None,
) -> TrainedNetwork:
    """A trained network that predicts images, see :meth:`TrainedNetwork.predict`.

    What is assumed of the images stands in its ``description.described``, and is a warning where it is a guess.

    Args:
        spec: see :mod:`seg.trained.open`.
        weights: file for ``package.module:function``.
        checkpoint: of a run, ``last``, ``selected`` or ``best``; ``auto`` is best where target labels chose one, else
            last.
        device: ``cpu``, ``cuda``, or ``auto``.
        size: (width, height) that the network sees; ``own`` is its folder's, a run's target size; None is
            the images'; ``auto`` is ``own``, and None with ``tile``. Predictions have the images' size in any case.
        tile: side of the tiles that larger images go by; neighbours share a quarter.
        architecture: architecture of a file of weights, as segmentation-models-pytorch spells it.
        encoder: encoder of a file of weights.
        classes: names of the outputs, a YAML file of them, or their number; None is the network's own.
        mean: mean of R, G and B, on ``scale``; with ``std``. None is what the network's files say, else what
            its encoder's published weights expect, else ImageNet's.
        std: deviation of R, G and B, on ``scale``.
        channels: ``rgb`` or ``bgr``, the order that the network sees.
        scale: 255 or 1, to which pixels reach from 0 before mean and deviation.

    Raises InputError: a network that cannot be read, a setting that makes no sense.

    >>> import tempfile, warnings, numpy as np, segmentation_models_pytorch as smp
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
    ...     _ = smp.Unet("resnet18", encoder_weights=None, classes=3).save_pretrained(folder)
    ...     predictor = load(folder, device="cpu", mean=(0, 0, 0), std=(1, 1, 1), scale=255)
    >>> predictor.description.described
    'RGB from 0 to 255, mean 0 0 0, deviation 1 1 1 (the user)'
    >>> predictor.predict(np.zeros((64, 96, 3), np.uint8)).classes.shape
    (64, 96)
    """
    if isinstance(classes, int):
        classes = str(classes)
    elif classes is not None and not isinstance(classes, str):
        classes = ",".join(classes)
    settings = PredictSettings(
        model=str(spec),
        weights=None if weights is None else str(weights),
        architecture=architecture,
        encoder=encoder,
        classes=classes,
        checkpoint=checkpoint,
        mean=_as_list(mean),
        std=_as_list(std),
        channels=channels,  # type: ignore[arg-type]
        scale=scale,
        size=_as_list(size),
        tile=tile,
        device=device,
    )
    trained = open_to_predict(settings)
    for note in trained.description.notes:
        warnings.warn(note, stacklevel=2)
    if trained.description.guessed:
        warnings.warn(
            f"{spec}: {trained.description.described}; mean=, std=, channels=, scale= say another",
            stacklevel=2,
        )
    return trained


def _as_list(values: Any) -> Any:
    """A list of plain numbers in place of a tuple or an array; words and None stay."""
    return values if values is None or isinstance(values, str) else np.asarray(values).tolist()


def open_to_predict(settings: PredictSettings) -> TrainedNetwork:
    """The network of ``--model``, or of ``--run``, on a device, seeing images at their ``--size`` or by tiles."""
    trained = open_network(settings).seeing(settings.size, settings.tile)
    trained.network.to(torch_device(settings.device))
    return trained


@torch.inference_mode(False)
def open_network(settings: NetworkSettings) -> TrainedNetwork:
    """The network of ``--model``, or of ``--run``, on the CPU and in ``eval()`` mode, with what the user says of it.

    Nothing is downloaded, and no code of a file is run.
    """
    check_settings(settings)
    path = Path(settings.check_network())
    size = None if isinstance(settings.size, str) else checked_size(settings.size, "--size")
    number, classes = number_and_classes(settings.classes)
    if path.is_file():
        trained = read_weights(path, settings, number, classes)
    elif (path / ADAPT_FILE).is_file():
        trained = _read_adapted(path)
    elif (path / "config.yaml").is_file():
        trained = open_run(path, settings.checkpoint)
    elif path.is_dir():
        trained = _read_saved(path)
    else:
        trained = read_function(str(path), settings.weights, size)
    if classes is None and number not in (0, 1, trained.num_classes):
        raise InputError(
            f"--classes: {path} predicts {trained.num_classes} classes, not {number}; leave the flag out"
        )
    description = trained.description
    return replace(
        trained,
        description=replace(
            description.told(settings.mean, settings.std, settings.channels, settings.scale),
            classes=classes or description.classes,
            size=size or description.size,
        ),
    )


def _read_adapted(out: Path) -> TrainedNetwork:
    """The network in the folder that seg.adapt wrote, as a whole."""
    inner, file = out / ADAPTED, out / ADAPT_FILE
    if any((inner / name).is_file() for name in ("config.yaml", CONFIG_FILE)):
        return replace(open_network(NetworkSettings(model=str(inner))), spec=str(out))
    document = required(read_json(file), str(file), settings=dict)
    adapted = required(document["settings"], f"{file}, settings", model=str)
    model = adapted["model"]
    if is_function(model):  # no code runs that a file names
        given = {
            **given_settings(adapted, NetworkSettings),
            "weights": str(next(inner.glob("*"), inner)),
        }
        raise InputError(
            f"{out}: has the weights of a function alone; give {shlex.join(flags(given))}"
        )
    classes = inner / CLASSES_FILE  # the file that was given may be gone, or another
    settings = NetworkSettings(
        model=str(inner / Path(model).name),
        architecture=adapted.get("architecture"),
        encoder=adapted.get("encoder"),
        classes=str(classes) if classes.is_file() else adapted.get("classes"),
    )
    return replace(open_network(settings), spec=str(out))


def _read_saved(folder: Path) -> TrainedNetwork:
    """A folder of ``save_pretrained``, a library's or ours. One output per pixel becomes two classes, no and yes."""
    file = folder / CONFIG_FILE
    config = required(read_json(file), str(file))
    read = _read_smp
    if OUR_KEY in config:
        read = _read_ours
    elif "model_type" in config:
        read = _read_transformers
    network, outputs, description = read(folder, config)
    whole = network if outputs > 1 else PlainLogits(network)
    write = partial(_write_saved, network, folder, description)
    return TrainedNetwork(str(folder), whole, max(outputs, 2), description, write)


#: A network, the number of its outputs, and its description.
_Read = tuple[SegmentationNetwork, int, Description]


def _read_ours(folder: Path, config: Document) -> _Read:
    """Read a folder whose network :func:`seg.build_model` builds, by its ``config.json``."""
    file, weights = str(folder / CONFIG_FILE), folder / WEIGHTS_FILE
    config = {"align_corners": True, **config}
    required(config, file, num_classes=int, align_corners=bool, name=str)
    if config["name"] == "pretrained" or config[OUR_KEY] != OUR_VERSION:
        raise InputError(
            f"{file}: name is '{config['name']}' and {OUR_KEY} {config[OUR_KEY]!r:.50}; expected a network of "
            f"seg.build_model that stands alone, and {OUR_VERSION}"
        )
    unused = (OUR_KEY, "align_corners", "weights")  # all weights are in the folder
    with passed_on(file):
        network = build_model(**{key: value for key, value in config.items() if key not in unused})
    load_weights(network, find_weights(weights, network).tensors, str(weights))
    description = Description.read(folder, align_corners=config["align_corners"])
    return network, config["num_classes"], description


def _read_transformers(folder: Path, config: Document) -> _Read:
    """The network, the image processor and the class names of a folder of transformers."""
    network = transformers_network.network_of_folder(folder)
    outputs: int = network.network.config.num_labels
    labels = config.get("id2label") or {}
    names = [str(labels.get(str(index), "LABEL_")) for index in range(outputs)]
    classes = None
    # the library gives such names where there are none
    if outputs > 1 and not any(name.startswith("LABEL_") for name in names):
        classes = named_classes(names)
    description = Description.read(
        folder,
        transformers_network.processor_of_folder(folder),
        outputs,
        align_corners=False,
        classes=classes,
    )
    return network, outputs, description


def _read_smp(folder: Path, config: Document) -> _Read:
    """The network of a folder of segmentation-models-pytorch, with its encoder's normalisation as a guess."""
    outputs, bands = config.get("classes", 1), config.get("in_channels", 3)
    description = Description.read(
        folder, smp_network.preprocessing(str(config.get("encoder_name"))), outputs
    )
    if bands != description.pixels.bands:
        raise InputError(
            f"{folder}: in_channels is {bands}, and the normalisation of the bands is unknown; write {PIXELS_FILE}, "
            "with bands, dtype, mean, std and shown, as a run has it"
        )
    return smp_network.network_of_folder(str(folder), config), outputs, description


def _write_saved(
    network: SegmentationNetwork, folder: Path, read: Description, new: Path, changed: Description
) -> None:
    """Write a folder of ``save_pretrained`` with the files beside the weights."""
    network.save_pretrained(new, config={"align_corners": changed.align_corners})
    copy_files(DESCRIPTION_FILES, folder, new)
    if changed != read or not (new / PREPROCESSOR_FILE).is_file():
        changed.write(new)
