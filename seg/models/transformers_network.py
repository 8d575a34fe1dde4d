"""Semantic segmentation networks of transformers (extra ``hf``), off the network, as networks of this project.

Nothing is ever fetched: a folder is a folder on this machine, and the library is told to stay offline, since some of
its networks would otherwise ask for a backbone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dem_apps.errors import InputError, first_words
from seg.models.network import SegmentationNetwork

_SHOWN = 3


class TransformersNetwork(SegmentationNetwork):
    """One of the library's networks, with the logits of its output alone.

    Args:
        network: such as :func:`network_of_config` and :func:`network_of_folder` make.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    @property
    def encoder(self) -> nn.Module:  # type: ignore[override]  # registered once, as a part of the network
        """What the library calls the base model."""
        base: Any = self.network.base_model
        encoder: nn.Module = base
        return encoder

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised images → ``main`` (B, C, h, w)."""
        return {"main": self.network(images).logits}


def is_transformers(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` looks like the library's."""
    return "model_type" in config


def network_of_config(config: Mapping[str, Any], num_classes: int, where: str) -> nn.Module:
    """The network of a ``config.json`` with random weights and as many classes.

    Raises:
        InputError: the library is not installed, has no such network, or does not take the settings.
    """
    library = _library(config, where)
    try:
        with quiet():
            settings = library.CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
            settings.num_labels = num_classes
            # as of a library's own class, which nothing is known of
            network: nn.Module = library.AutoModelForSemanticSegmentation.from_config(settings).float()
    except Exception as error:  # whatever a setting makes the library raise
        raise InputError(f"{where}: transformers cannot build it ({first_words(error, 300)})") from error
    return network


def network_of_folder(folder: Path, config: Mapping[str, Any]) -> nn.Module:
    """The network of a folder of ``save_pretrained``, with its weights, float32.

    Args:
        folder: to read.
        config: the content of its ``config.json``.

    Raises:
        InputError: see :func:`network_of_config`, and for weights that do not fit.
    """
    library = _library(config, str(folder))
    try:
        with quiet():
            network, found = library.AutoModelForSemanticSegmentation.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, output_loading_info=True
            )
    except Exception as error:  # whatever a file of weights, or a setting, makes the library raise
        raise InputError(f"{folder}: transformers cannot load it ({first_words(error, 300)})") from error
    for what in ("missing_keys", "mismatched_keys", "error_msgs"):
        if names := sorted(map(str, found.get(what, ()))):
            shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
            raise InputError(f"{folder}: {len(names)} of its weights do not fit its config.json ({what}: {shown})")
    module: nn.Module = network.float()
    return module


def _library(config: Mapping[str, Any], where: str) -> Any:
    """The package, if it has the network."""
    try:
        with quiet():
            import transformers
            from transformers.models.auto.modeling_auto import MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES as KNOWN
    except ImportError as error:
        raise InputError(
            f"{where}: a network of transformers, which is not installed here; pip install 'dem-apps[hf]'"
        ) from error
    kind = config.get("model_type")
    if kind not in KNOWN and "auto_map" in config:
        raise InputError(f"{where}: its network is code beside the weights, which is not run; write it as a function")
    if kind not in KNOWN:
        raise InputError(
            f"{where}: transformers has no AutoModelForSemanticSegmentation of '{kind}'; it has {', '.join(KNOWN)}"
        )
    return transformers


@contextmanager
def quiet() -> Iterator[None]:
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
