"""Networks that a function of the user's own builds, ``package.module:function``, with a file of weights."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dem_apps.errors import InputError, first_words, nearest
from dem_apps.test_time_methods.network import find_logits
from seg.data.labels import ClassSet, named_classes
from seg.models.preprocessing import Preprocessing
from seg.models.trained_network import PlainLogits, TrainedNetwork
from seg.models.weights_file import WeightsFile, read_weights, weights_content

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
#: What a function may say beside its network.
_FACTS = ("mean", "std", "order", "multiple", "size", "classes", "align_corners")
#: Sides of the images that are tried to see how many classes there are.
_SIDES = (64, 224, 512)


def is_function(spec: str) -> bool:
    """Whether it reads ``package.module:function``."""
    return _NAME.fullmatch(spec) is not None


def read_function(spec: str, file: Path | None) -> TrainedNetwork:
    """The network that the function returns, with the weights of a file.

    The function takes no argument and returns a module, or a module and a mapping of facts: ``mean``, ``std``,
    ``order``, ``multiple`` and ``size`` as of :class:`seg.models.preprocessing.Preprocessing`, ``classes`` (names), and
    ``align_corners`` of the upsampling of logits. Its code is the user's and is run; the file's is not.

    Args:
        spec: ``package.module:function``; the module is looked for in the folder of the command, too.
        file: of weights; None where the function brings them.

    Raises:
        InputError: no such function, something else than a network, or weights that do not fit it.
    """
    network, facts = _called(spec)
    weights = None
    if file is not None:
        weights = read_weights(file)
        try:
            weights.load_into(network)
        except InputError as error:
            raise InputError(f"--weights: {error}; these weights do not fit the network of {spec}") from error
    network.eval()
    whole, outputs = _tried(spec, network)

    def write(new: Path) -> None:
        _write(network, weights, new)

    return TrainedNetwork(
        spec, "function", whole, outputs, _classes(spec, facts), _preprocessing(spec, facts),
        bool(facts.get("align_corners", False)), write,
    )  # fmt: skip


def _called(spec: str) -> tuple[nn.Module, Mapping[str, Any]]:
    module_name, _, name = spec.partition(":")
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, name, None)
        made = function() if callable(function) else None
    except InputError:
        raise
    except Exception as error:  # whatever the user's own code raises
        missing = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        hint = "; run the command in the folder that holds the module" if missing else ""
        raise InputError(f"{spec}: cannot be called ({type(error).__name__}: {first_words(error)}){hint}") from error
    if not callable(function):
        raise InputError(f"{spec}: '{module_name}' has no function '{name}'{nearest(name, vars(module))}")
    network, facts = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
    if not isinstance(network, nn.Module) or not isinstance(facts, Mapping):
        raise InputError(
            f"{spec}: returned a {type(made).__name__}; expected a torch.nn.Module, or one with a mapping of facts"
        )
    for fact in facts:
        if fact not in _FACTS:
            raise InputError(f"{spec}: unknown fact '{fact}'{nearest(fact, _FACTS)}; known are {', '.join(_FACTS)}")
    return network, facts


def _tried(spec: str, network: nn.Module) -> tuple[nn.Module, int]:
    """The network as one that gives plain logits, and how many classes it has, from an image of zeros."""
    last: Exception | None = None
    for side in _SIDES:
        try:
            with torch.no_grad():
                output = network(torch.zeros(1, 3, side, side))
        except Exception as error:  # images of this size may be too small for it
            last = error
            continue
        logits = find_logits(output)
        if logits.ndim != 4:
            raise InputError(f"{spec}: its logits have shape {tuple(logits.shape)}; expected (B, C, h, w), one a pixel")
        plain = isinstance(output, Tensor) or (isinstance(output, dict) and "main" in output)
        return network if plain and logits.shape[1] > 1 else PlainLogits(network), max(2, logits.shape[1])
    assert last is not None  # for the type checker
    sides = ", ".join(map(str, _SIDES))
    raise InputError(
        f"{spec}: takes no image of (1, 3, n, n) with n of {sides} ({type(last).__name__}: {first_words(last)})"
    ) from last


def _classes(spec: str, facts: Mapping[str, Any]) -> ClassSet | None:
    names = facts.get("classes")
    if names is None:
        return None
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{spec}: classes should be a list of names, one for each output")
    return named_classes(list(names))


def _preprocessing(spec: str, facts: Mapping[str, Any]) -> Preprocessing:
    given = {fact: facts[fact] for fact in ("mean", "std", "order", "multiple", "size") if fact in facts}
    if not given:
        return Preprocessing()
    for fact in ("mean", "std", "size"):
        if fact in given:
            given[fact] = tuple(given[fact])
    return Preprocessing(**given, origin=f"as {spec} says")


def _write(network: nn.Module, weights: WeightsFile | None, folder: Path) -> None:
    state: dict[str, Tensor] = network.state_dict()
    if weights is None:
        (folder / "weights.safetensors").write_bytes(weights_content(state))
    else:
        weights.write(state, folder, weights.prefix(state))
