"""Networks that a function of the user's own builds, ``package.module:function``, with a file of weights."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dem_apps.errors import InputError, nearest, passed_on
from seg.data.labels import named_classes
from seg.models.description import Description, PlainLogits
from seg.models.trained_network import TrainedNetwork
from seg.models.weights_file import SAFETENSORS, load_weights, read_weights, weights_content, without_prefix

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
#: What a function may say of its network: all of a description but its bands.
_FACTS = [field.name for field in dataclasses.fields(Description) if field.name != "pixels"]
#: (width, height) of the image that is tried to see how many classes there are; of patches of 14 and 16 pixels.
_SIZE = (224, 224)


def is_function(spec: str) -> bool:
    """Whether it reads ``package.module:function``."""
    return _NAME.fullmatch(spec) is not None


def read_function(spec: str, file: Path | None) -> TrainedNetwork:
    """The network that the function returns, with the weights of a file.

    The function takes no argument and returns a module, or a module and a mapping of facts, which are the fields of
    :class:`seg.models.description.Description`, ``classes`` as names. Its code is run; the file's is not.

    Args:
        spec: ``package.module:function``.
        file: of weights; None where the function brings them.

    Raises:
        InputError: no such function, something else than a network, or weights that do not fit it.
    """
    network, facts = _called(spec)
    prefix, key = "", None
    if file is not None:
        tensors, key = read_weights(file)
        tensors, prefix = without_prefix(tensors, network)
        load_weights(network, tensors, f"--weights: {file} does not fit the network of {spec}")
    network.eval()
    description = _description(spec, facts)
    width, height = description.size or _SIZE
    with passed_on(f"{spec}: takes no image of {width} × {height}; 'size' among its facts names another"):
        with torch.no_grad():
            output = network(torch.zeros(1, 3, height, width))
        logits = description.logits(output)
    if logits.ndim != 4:
        raise InputError(f"{spec}: its logits have shape {tuple(logits.shape)}; expected (B, C, h, w), one a pixel")

    def write(new: Path) -> None:
        """A file of the same name, kind, key and prefix."""
        written = new / ("weights.safetensors" if file is None else file.name)
        state = {f"{prefix}{name}": value for name, value in network.state_dict().items()}
        written.write_bytes(weights_content(state, written.suffix == SAFETENSORS, key))

    whole = network if logits is output else PlainLogits(network, description)
    return TrainedNetwork(spec, whole, logits.shape[1], description, write)


def _called(spec: str) -> tuple[nn.Module, Mapping[str, Any]]:
    module_name, _, name = spec.partition(":")
    with passed_on(f"{spec}: cannot be imported; run the command in the folder that holds the module"):
        module = importlib.import_module(module_name)
    if not callable(getattr(module, name, None)):
        raise InputError(f"{spec}: '{module_name}' has no function '{name}'{nearest(name, vars(module))}")
    with passed_on(f"{spec}: cannot be called"):
        made = getattr(module, name)()
    network, facts = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
    if not isinstance(network, nn.Module) or not isinstance(facts, Mapping):
        raise InputError(
            f"{spec}: returned a {type(made).__name__}; expected a torch.nn.Module, or one with a mapping of facts"
        )
    return network, facts


def _description(spec: str, facts: Mapping[str, Any]) -> Description:
    for fact in facts:
        if fact not in _FACTS:
            raise InputError(f"{spec}: unknown fact '{fact}'{nearest(fact, _FACTS)}; known are {', '.join(_FACTS)}")
    given: dict[str, Any] = {fact: tuple(value) if isinstance(value, list) else value for fact, value in facts.items()}
    with passed_on(spec):
        if given.get("classes") is not None:
            given["classes"] = named_classes(given["classes"])
        return Description(**{"align_corners": False} | given)
