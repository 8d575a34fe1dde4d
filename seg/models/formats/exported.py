"""Networks of our own, such as DeepLab-V2 with two heads, as a folder that ``seg.export_model`` writes.

``config.json`` names the network by what :func:`seg.build_model` takes; weights, classes and normalisation lie beside
it as in the folders of others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from dem_apps.errors import InputError
from dem_apps.runtime.files import read_json, required
from seg.data.labels import load_classes
from seg.data.pixel_format import PIXELS_FILE
from seg.models import build_model
from seg.models.formats.preprocessor import PREPROCESSOR_FILE, read_preprocessor
from seg.models.formats.trained_network import TrainedNetwork
from seg.models.formats.weights_file import read_weights, weights_content
from seg.models.load_model import CLASSES_FILE, load_weights
from seg.models.preprocessing import Preprocessing

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
_KEY, _VERSION = "dem_apps_network", 1
_KEPT_FILES = (CONFIG_FILE, PREPROCESSOR_FILE, CLASSES_FILE, PIXELS_FILE)


def is_exported(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is one of ours."""
    return _KEY in config


def write_exported(
    folder: Path, network: nn.Module, architecture: Mapping[str, Any], num_classes: int, align_corners: bool
) -> None:
    """Write description and weights of a network of :func:`seg.build_model` into a folder."""
    document = {
        _KEY: _VERSION, **architecture, "num_classes": num_classes, "align_corners": align_corners,
    }  # fmt: skip
    (folder / CONFIG_FILE).write_bytes((json.dumps(document, indent=2) + "\n").encode())
    (folder / WEIGHTS_FILE).write_bytes(weights_content(network.state_dict()))


def read_exported(folder: Path) -> TrainedNetwork:
    """The network of such a folder.

    Raises:
        InputError: a description or weights that do not fit.
    """
    where = folder / CONFIG_FILE
    document = read_json(where)
    required(document, str(where), num_classes=int, align_corners=bool, name=str)
    if document[_KEY] != _VERSION:
        raise InputError(f"{where}: {_KEY} is {document[_KEY]!r:.50}, and this version reads {_VERSION}")
    options = {name: value for name, value in document.items() if name not in (_KEY, "align_corners")}
    try:
        network = build_model(**options)
    except (InputError, TypeError) as error:
        raise InputError(f"{where}: {error}") from error
    weights = read_weights(folder / WEIGHTS_FILE, "weights")
    load_weights(network, weights.fitted(network), str(weights.file))
    classes = load_classes(str(folder / CLASSES_FILE)) if (folder / CLASSES_FILE).is_file() else None

    def write(new: Path) -> None:
        for name in _KEPT_FILES:
            if (folder / name).is_file():
                (new / name).write_bytes((folder / name).read_bytes())
        weights.write(network.state_dict(), new)

    return TrainedNetwork(
        str(folder), "exported", network, document["num_classes"], classes,
        read_preprocessor(folder) or Preprocessing(), document["align_corners"], write,
    )  # fmt: skip
