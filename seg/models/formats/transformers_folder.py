"""Folders of transformers' ``AutoModelForSemanticSegmentation.save_pretrained`` as trained networks (extra ``hf``).

Nothing is ever fetched: a folder is a folder on this machine, and the library is told to stay off the network, which
some of its networks would otherwise ask for a backbone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import write_bytes
from dem_apps.runtime.safe_io import first_words, read_json
from seg.data.labels import ClassSet, named_classes
from seg.models.formats.preprocessor import PREPROCESSOR_FILE, read_preprocessor
from seg.models.formats.trained_network import PlainLogits, TrainedNetwork
from seg.models.preprocessing import Preprocessing

CONFIG_FILE = "config.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
#: A name that the library gives where it has none.
_NO_NAME = "LABEL_"
_SHOWN = 3


def is_transformers(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` looks like the library's."""
    return "model_type" in config


def read_transformers(folder: Path) -> TrainedNetwork:
    """The network of such a folder.

    Raises:
        InputError: the library is not installed, a network for another task, code beside the weights, or weights that
            do not fit.
    """
    config = read_json(folder / CONFIG_FILE)
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise InputError(f"{folder}: holds no weights; expected one of {', '.join(_WEIGHTS)}")
    network = _loaded(folder, config)
    outputs = _outputs(network, folder)

    def write(new: Path) -> None:
        with _quiet():
            network.save_pretrained(new)  # type: ignore[operator]  # of a class that is not known here
        if (folder / PREPROCESSOR_FILE).is_file():
            write_bytes(new / PREPROCESSOR_FILE, (folder / PREPROCESSOR_FILE).read_bytes())

    return TrainedNetwork(
        str(folder), "transformers", PlainLogits(network), max(outputs, 2), _classes(config, outputs),
        read_preprocessor(folder) or Preprocessing(), False, write,
    )  # fmt: skip


def _loaded(folder: Path, config: Mapping[str, Any]) -> nn.Module:
    try:
        with _quiet():
            import transformers
            from transformers.models.auto.modeling_auto import MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES as KNOWN
    except ImportError as error:
        raise InputError(
            f"{folder}: a network of transformers, which is not installed here; pip install 'dem-apps[hf]'"
        ) from error
    kind = config.get("model_type")
    if "auto_map" in config and kind not in KNOWN:
        raise InputError(f"{folder}: its network is code beside the weights, which is not run; write it as a function")
    if kind not in KNOWN:
        raise InputError(
            f"{folder}: transformers has no AutoModelForSemanticSegmentation of '{kind}'; it has {', '.join(KNOWN)}"
        )
    try:
        with _quiet():
            network, found = transformers.AutoModelForSemanticSegmentation.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, output_loading_info=True
            )
    except Exception as error:  # whatever a file of weights, or a setting, makes the library raise
        raise InputError(f"{folder}: transformers cannot load it ({first_words(error, 300)})") from error
    for what in ("missing_keys", "mismatched_keys", "error_msgs"):
        if names := sorted(map(str, found.get(what, ()))):
            shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
            raise InputError(f"{folder}: {len(names)} of its weights do not fit its {CONFIG_FILE} ({what}: {shown})")
    module: nn.Module = network.float()
    return module


def _outputs(network: nn.Module, folder: Path) -> int:
    number: Any = getattr(network.config, "num_labels", None)
    if not isinstance(number, int) or number < 1:
        raise InputError(f"{folder / CONFIG_FILE}: names no number of labels")
    return number


def _classes(config: Mapping[str, Any], outputs: int) -> ClassSet | None:
    """From ``id2label``, unless these are the names that stand for none."""
    names = config.get("id2label")
    if not isinstance(names, Mapping) or outputs < 2:
        return None
    ordered = [names.get(str(index)) for index in range(outputs)]
    if not all(isinstance(name, str) and name.strip() and not name.startswith(_NO_NAME) for name in ordered):
        return None
    return named_classes([str(name) for name in ordered])


@contextmanager
def _quiet() -> Iterator[None]:
    """Off the network, and without the library's bars; both as they were afterwards."""
    import huggingface_hub.constants as hub

    before = hub.HF_HUB_OFFLINE
    hub.HF_HUB_OFFLINE = True
    bars = sys.modules.get("transformers.utils.logging")
    shown = bars is not None and bars.is_progress_bar_enabled()
    try:
        if bars is not None:
            bars.disable_progress_bar()
        yield
    finally:
        hub.HF_HUB_OFFLINE = before
        if bars is not None and shown:
            bars.enable_progress_bar()
