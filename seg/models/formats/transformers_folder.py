"""Folders of transformers' ``AutoModelForSemanticSegmentation.save_pretrained`` as trained networks (extra ``hf``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from dem_apps.errors import InputError
from dem_apps.runtime.files import read_json
from seg.data.labels import ClassSet, named_classes
from seg.models.formats.preprocessor import PREPROCESSOR_FILE, read_preprocessor
from seg.models.formats.trained_network import PlainLogits, TrainedNetwork
from seg.models.preprocessing import Preprocessing
from seg.models.transformers_network import network_of_folder, quiet

CONFIG_FILE = "config.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
#: A name that the library gives where it has none.
_NO_NAME = "LABEL_"


def read_transformers(folder: Path) -> TrainedNetwork:
    """The network of such a folder.

    Raises:
        InputError: the library is not installed, a network for another task, code beside the weights, or weights that
            do not fit.
    """
    config = read_json(folder / CONFIG_FILE)
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise InputError(f"{folder}: holds no weights; expected one of {', '.join(_WEIGHTS)}")
    network = network_of_folder(folder, config)
    outputs = _outputs(network, folder)

    def write(new: Path) -> None:
        with quiet():
            network.save_pretrained(new)  # type: ignore[operator]  # of a class that is not known here
        if (folder / PREPROCESSOR_FILE).is_file():
            (new / PREPROCESSOR_FILE).write_bytes((folder / PREPROCESSOR_FILE).read_bytes())

    return TrainedNetwork(
        str(folder), "transformers", PlainLogits(network), max(outputs, 2), classes_of(config, outputs),
        read_preprocessor(folder) or Preprocessing(), False, write,
    )  # fmt: skip


def _outputs(network: nn.Module, folder: Path) -> int:
    number: Any = getattr(network.config, "num_labels", None)
    if not isinstance(number, int) or number < 1:
        raise InputError(f"{folder / CONFIG_FILE}: names no number of labels")
    return number


def classes_of(config: Mapping[str, Any], outputs: int | None = None) -> ClassSet | None:
    """From ``id2label``, unless these are the names that stand for none."""
    names = config.get("id2label")
    if not isinstance(names, Mapping):
        return None
    ordered = [names.get(str(index)) for index in range(outputs or len(names))]
    if not all(isinstance(name, str) and name.strip() and not name.startswith(_NO_NAME) for name in ordered):
        return None
    return named_classes([str(name) for name in ordered]) if len(ordered) > 1 else None
