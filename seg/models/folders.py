"""Readers of folders that hold a trained network: a run, smp's, transformers' and our own ``seg.export_model``.

smp's ``config.json`` says nothing about normalisation or about what the classes are. Two files beside it may say it:
``preprocessor_config.json`` as transformers has it, and our own ``classes.json``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor, nn

from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import load_checkpoint, save_checkpoint
from dem_apps.runtime.files import read_json, required
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.settings import from_dict, to_dict
from seg.config import TrainConfig
from seg.data.labels import ClassSet, load_classes, named_classes
from seg.data.pixel_format import PIXELS_FILE, read_format
from seg.models import build_model
from seg.models.adaptive_batch_norm import RE_ESTIMATED_ON
from seg.models.load_model import (
    CLASSES_FILE,
    build_network,
    chosen_checkpoint,
    load_weights,
    only_encoder,
    run_classes,
)
from seg.models.preprocessing import PREPROCESSOR_FILE, Preprocessing, read_preprocessor
from seg.models.pretrained import NETWORK_FILE
from seg.models.smp_network import is_smp, network_of_config, outputs_of
from seg.models.trained_network import PlainLogits, TrainedNetwork, Training
from seg.models.transformers_network import is_transformers, network_of_folder, quiet
from seg.models.weights_file import WeightsFile, read_weights

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
#: Says of a ``config.json`` that :mod:`seg.export_model` wrote it, and in which version of the format.
OUR_KEY, OUR_VERSION = "dem_apps_network", 1
#: Of smp, in the order in which the library looks for them.
_SMP_WEIGHTS = (WEIGHTS_FILE, "pytorch_model.bin")
_TRANSFORMERS_WEIGHTS = (*_SMP_WEIGHTS, "model.safetensors.index.json", "pytorch_model.bin.index.json")
#: smp's head for whole images, which is kept and not used.
_UNUSED = "classification_head."
#: A name that transformers gives a class where it has none.
_NO_NAME = "LABEL_"
_KEPT_FILES = (CONFIG_FILE, PREPROCESSOR_FILE, CLASSES_FILE, PIXELS_FILE)


def read_folder(folder: Path, checkpoint: str = "auto") -> TrainedNetwork:
    """The network of a folder of any of these formats; ``checkpoint`` is of a run.

    Raises:
        InputError: it is none of these, or what is there cannot be used.
    """
    if (folder / "config.yaml").is_file():
        return read_run(folder, checkpoint)
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise InputError(
            f"{folder}: holds neither config.yaml, as a run does, nor config.json, as save_pretrained writes"
        )
    config = read_json(file)
    for looks_like, read in FOLDERS:
        if isinstance(config, dict) and looks_like(config):
            return read(folder, config)
    raise InputError(
        f"{file}: names neither model_type, as transformers writes it, nor _model_class, as "
        "segmentation-models-pytorch does"
    )


def read_run(run: Path, checkpoint: str = "auto") -> TrainedNetwork:
    """The network of a run folder.

    Args:
        run: the folder.
        checkpoint: ``last``, ``selected``, ``best``, or ``auto``: selected where there is one, else last.

    Raises:
        InputError: no run folder, no such checkpoint, or weights that do not fit the settings.
    """
    config = from_dict(TrainConfig, read_config(run), str(run / "config.yaml"))
    checkpoint = chosen_checkpoint(run, checkpoint)
    state, where = load_checkpoint(run / "checkpoints", checkpoint), f"{run}, checkpoint {checkpoint}"
    required(state, where, model=dict, **({RE_ESTIMATED_ON: str} if RE_ESTIMATED_ON in state else {}))
    if only_encoder(state["model"]):
        raise InputError(f"{where}: holds an encoder without heads; train from it with --model.start-from {run}")
    classes, pixels = run_classes(run, config.classes), read_format(run)
    network = build_network(config.model, len(classes), own=run, bands=pixels.bands)  # the checkpoint has every weight
    load_weights(network, state["model"], where)
    training = Training(config, checkpoint, state["step"], state.get(RE_ESTIMATED_ON))
    size = None if config.target.size is None else (config.target.size[0], config.target.size[1])
    preprocessing = Preprocessing.of(pixels, size, "ImageNet's, as every run of 8-bit images has it")

    def write(new: Path) -> None:
        """A run folder with a checkpoint ``last`` and nothing that was logged."""
        marked = {} if training.re_estimated_on is None else {RE_ESTIMATED_ON: training.re_estimated_on}
        state = {"model": network.state_dict(), "step": training.step, **marked}
        save_checkpoint(new / "checkpoints", "last", state)
        write_json(new / CLASSES_FILE, classes.document())
        _copy((PIXELS_FILE, NETWORK_FILE), run, new)
        settings = to_dict(dataclasses.replace(config, run_dir=None, resume=False))
        (new / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))

    return TrainedNetwork(
        str(run), "run", network, len(classes), classes, preprocessing, config.model.align_corners, write, training
    )


def _read_exported(folder: Path, config: dict[str, Any]) -> TrainedNetwork:
    """A network of :func:`seg.build_model`, as :mod:`seg.export_model` writes it."""
    where = folder / CONFIG_FILE
    required(config, str(where), num_classes=int, align_corners=bool, name=str)
    if config[OUR_KEY] != OUR_VERSION:
        raise InputError(f"{where}: {OUR_KEY} is {config[OUR_KEY]!r:.50}, and this version reads {OUR_VERSION}")
    options = {name: value for name, value in config.items() if name not in (OUR_KEY, "align_corners")}
    try:
        network = build_model(**options)
    except (InputError, TypeError) as error:
        raise InputError(f"{where}: {error}") from error
    weights = read_weights(folder / WEIGHTS_FILE, "weights")
    load_weights(network, weights.fitted(network), str(weights.file))

    def write(new: Path) -> None:
        _copy(_KEPT_FILES, folder, new)
        weights.write(network.state_dict(), new)

    return TrainedNetwork(
        str(folder), "exported", network, config["num_classes"], _classes_beside(folder),
        read_preprocessor(folder) or Preprocessing(), config["align_corners"], write,
    )  # fmt: skip


def _read_smp(folder: Path, config: dict[str, Any]) -> TrainedNetwork:
    """smp's ``save_pretrained``. One output a pixel (``classes=1``) becomes two classes, no and yes."""
    where = str(folder / CONFIG_FILE)
    preprocessing = read_preprocessor(folder) or Preprocessing()
    bands = config.get("in_channels", 3)
    if bands != preprocessing.channels:
        raise InputError(
            f"{where}: in_channels is {bands!r:.50}, and nothing says what becomes 0 and 1 of each band; write "
            f"{PIXELS_FILE} beside it, with bands, dtype, mean, std and shown, as a run has it"
        )
    outputs = outputs_of(config, where)
    network = network_of_config(config, outputs, where)
    weights, unused = smp_weights(folder)
    try:
        load_weights(network, weights.fitted(network), str(weights.file))
    except InputError as error:
        raise InputError(f"{error} of {where}") from error

    def write(new: Path) -> None:
        _copy(_KEPT_FILES, folder, new)
        weights.write({**network.state_dict(), **unused}, new)

    whole: nn.Module = network if outputs > 1 else PlainLogits(network)
    # the network itself takes images of any size, so that it does so too where it is adapted
    return TrainedNetwork(
        str(folder), "smp", whole, max(outputs, 2), _classes_beside(folder), preprocessing, True, write
    )


def _read_transformers(folder: Path, config: dict[str, Any]) -> TrainedNetwork:
    """transformers' ``save_pretrained`` (extra ``hf``)."""
    if not any((folder / name).is_file() for name in _TRANSFORMERS_WEIGHTS):
        raise InputError(f"{folder}: holds no weights; expected one of {', '.join(_TRANSFORMERS_WEIGHTS)}")
    network = network_of_folder(folder, config)
    outputs: Any = getattr(network.config, "num_labels", None)
    if not isinstance(outputs, int) or outputs < 1:
        raise InputError(f"{folder / CONFIG_FILE}: names no number of labels")

    def write(new: Path) -> None:
        with quiet():
            network.save_pretrained(new)  # type: ignore[operator]  # of a class that is not known here
        _copy((PREPROCESSOR_FILE,), folder, new)

    return TrainedNetwork(
        str(folder), "transformers", PlainLogits(network), max(outputs, 2), classes_of_labels(config, outputs),
        read_preprocessor(folder) or Preprocessing(), False, write,
    )  # fmt: skip


#: Folders with a ``config.json``: what it looks like, and the reader.
FOLDERS: tuple[
    tuple[Callable[[Mapping[str, Any]], bool], Callable[[Path, dict[str, Any]], TrainedNetwork]], ...
] = (
    (lambda config: OUR_KEY in config, _read_exported),
    (is_transformers, _read_transformers),
    (is_smp, _read_smp),
)  # fmt: skip


def smp_weights(folder: Path) -> tuple[WeightsFile, dict[str, Tensor]]:
    """The weights of smp's folder, and those among them that belong to no segmentation.

    Raises:
        InputError: there is no file of weights, or it cannot be read.
    """
    file = next((folder / name for name in _SMP_WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise InputError(f"{folder}: holds no weights; expected {' or '.join(_SMP_WEIGHTS)} beside {CONFIG_FILE}")
    read = read_weights(file, "weights")
    unused = {name: value for name, value in read.tensors.items() if name.startswith(_UNUSED)}
    used = {name: value for name, value in read.tensors.items() if name not in unused}
    return WeightsFile(file, used, read.key), unused


def classes_of_labels(config: Mapping[str, Any], outputs: int | None = None) -> ClassSet | None:
    """From transformers' ``id2label``, unless these are the names that stand for none."""
    names = config.get("id2label")
    if not isinstance(names, Mapping):
        return None
    ordered = [names.get(str(index)) for index in range(outputs or len(names))]
    if not all(isinstance(name, str) and name.strip() and not name.startswith(_NO_NAME) for name in ordered):
        return None
    return named_classes([str(name) for name in ordered]) if len(ordered) > 1 else None


def write_json(file: Path, document: Mapping[str, Any]) -> None:
    """A JSON file for people to read."""
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _classes_beside(folder: Path) -> ClassSet | None:
    file = folder / CLASSES_FILE
    return load_classes(str(file)) if file.is_file() else None


def _copy(names: tuple[str, ...], folder: Path, new: Path) -> None:
    for name in names:
        if (folder / name).is_file():
            (new / name).write_bytes((folder / name).read_bytes())
