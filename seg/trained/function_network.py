"""Networks that have no folder: what ``package.module:function`` returns, and a file of weights by its architecture."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from dem_apps.errors import InputError, first_words, nearest, one_of, passed_on
from dem_apps.test_time_methods.copies import deep_copy
from dem_apps.test_time_methods.network import find_logits, refuse_probabilities
from seg.data.labels import load_classes, named_classes
from seg.models import smp_network
from seg.models.networks import build_model
from seg.models.weights_file import SAFETENSORS, FoundWeights, find_weights, load_weights
from seg.trained.description import ASSUMED, GUESS, Description, PlainLogits
from seg.trained.settings import NetworkSettings
from seg.trained.trained_network import TrainedNetwork

#: Facts that a function may state, which are a normalisation and fields of a description.
_NORMALISATION = ("mean", "std", "channels", "scale")
_FIELDS = ("multiple", "size", "classes", "align_corners")
#: Side of the image that shows what a network returns: patches of 14, 16 and 32 pixels divide it.
_SIDE = 224


def read_function(
    spec: str, file: Path | None, size: tuple[int, int] | None = None
) -> TrainedNetwork:
    """Open the network that a function returns, alone or with a mapping of facts.

    Args:
        spec: ``package.module:function``.
        file: weights for the network; None keeps its own.
        size: (width, height) of the image that it is tried with.

    Raises:
        InputError: a function, fact, file or output that does not fit.
    """
    network, facts = _called_function(spec)
    found = FoundWeights({})
    if file is not None:
        found = find_weights(file, network)
        fits = f"--weights: {file} does not fit the network of {spec}"
        load_weights(network, found.tensors, fits)
    with passed_on(spec):
        network.float().eval()
        description = _stated(facts, network, found.notes)
        output = _tried(network, description, size)
        logits = description.logits(output)
    refuse_probabilities(logits, spec)
    name = "weights.safetensors" if file is None else file.name
    write = partial(_write_weights, network, list(network.state_dict()), name, found)
    whole = network if logits is output else PlainLogits(network, description)
    return TrainedNetwork(spec, whole, logits.shape[1], description, write)


def _called_function(spec: str) -> tuple[nn.Module, Mapping[str, Any]]:
    """The network and the facts that the function returns."""
    module_name, _, name = spec.partition(":")
    with passed_on(
        f"{spec}: cannot be imported; run the command in the folder that holds the module"
    ):
        module = importlib.import_module(module_name)
    if not callable(getattr(module, name, None)):
        raise InputError(
            f"{spec}: '{module_name}' has no function '{name}'{nearest(name, vars(module))}"
        )
    with passed_on(f"{spec}: cannot be called"):
        made = getattr(module, name)()
    network, facts = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
    if not isinstance(network, nn.Module) or not isinstance(facts, Mapping):
        kind = type(made).__name__
        raise InputError(
            f"{spec}: returned a {kind}; expected a torch.nn.Module, or one with a mapping of facts"
        )
    return network, facts


def _stated(facts: Mapping[str, Any], network: nn.Module, notes: tuple[str, ...]) -> Description:
    """The description that a function states; ImageNet's normalisation where it states none."""
    known = [*_NORMALISATION, *_FIELDS]
    for fact in facts:
        if fact not in known:
            raise InputError(
                f"unknown fact '{fact}'{nearest(fact, known)}; known are {', '.join(known)}"
            )
    mean, std, channels, scale = (facts.get(name) for name in _NORMALISATION)
    if (mean is None) != (std is None):
        raise InputError("the facts 'mean' and 'std' are stated together")
    own: dict[str, Any] = {"multiple": _multiple_of(network), "align_corners": False}
    own |= {name: facts[name] for name in _FIELDS if facts.get(name) is not None}
    if "classes" in own:
        own["classes"] = named_classes(own["classes"])
    if "size" in own:
        own["size"] = tuple(own["size"])
    description = Description(**own, notes=notes, origin=f"{GUESS}{ASSUMED['assumed']}")
    stated = description.told(mean, std, channels, scale)
    if stated.origin == "the user":
        return dataclasses.replace(stated, origin="the function's facts")
    return stated


def _multiple_of(network: nn.Module) -> int:
    """The multiple that segmentation-models-pytorch asks of sides; 1 for other networks."""
    if getattr(network, "requires_divisible_input_shape", False):
        return int(network.encoder.output_stride)  # type: ignore[union-attr,arg-type]
    return 1


def _tried(network: nn.Module, description: Description, size: tuple[int, int] | None) -> Any:
    """Return the network's output for one image of noise, checked to be a map of logits."""
    multiple, sides = description.multiple, description.size or size or (_SIDE, _SIDE)
    width, height = (-(-side // multiple) * multiple for side in sides)
    noise = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            output = deep_copy(network)(noise)  # a copy may keep what it makes for this size
    except Exception as error:  # any network may raise any
        raise InputError(
            f"takes no image of {width} × {height} ({first_words(error)}); --size W,H, or 'size' among its facts, "
            "shows another, and 'multiple' pads it"
        ) from error
    _check_map(find_logits(output), height, width)
    return output


def _check_map(values: Tensor, height: int, width: int) -> None:
    """Refuse what is no map of logits (B, C, h, w) of an image of H × W."""
    shape = tuple(values.shape)
    is_map = len(shape) == 4 and values.is_floating_point()
    if is_map:
        strides = [
            max(1, round(side / part))
            for side, part in zip((height, width), shape[2:], strict=True)
        ]
        missing = abs(height - strides[0] * shape[2])
        is_map = strides[0] == strides[1] and missing <= 2 * strides[0]
        is_map = is_map and (shape[1] > 1 or not bool((values == values.round()).all()))
    if not is_map:
        raise InputError(
            f"its output for an image of {width} × {height} is {values.dtype} of shape {shape}; return logits "
            "(B, C, h, w) of the whole image, floating point, without argmax, with padded convolutions"
        )


def read_weights(file: Path, settings: NetworkSettings) -> TrainedNetwork:
    """Open a network of segmentation-models-pytorch by its architecture, with the weights of a file."""
    named, encoder = str(settings.architecture), settings.encoder or "resnet34"
    architecture = one_of("--architecture", named.lower(), [*smp_network.SMP_NETWORKS])
    classes, number = None, 0
    if str(settings.classes).isdecimal():
        number = int(str(settings.classes))
    else:
        classes = load_classes(settings.classes)
        number = len(classes)
    with passed_on(f"--architecture {named}, --encoder {encoder}"):
        network = build_model(architecture, encoder, number)
    found = find_weights(file, network, "--model")
    fits = f"--model: {file} does not fit {named} on {encoder} with {number} classes"
    load_weights(network, found.tensors, fits)
    guess = smp_network.preprocessing(encoder)
    description = Description.read(file.parent, guess, notes=found.notes)
    if classes is not None:
        description = dataclasses.replace(description, classes=classes)
    whole = network if number > 1 else PlainLogits(network, description)

    def write(new: Path, description: Description) -> None:
        _write_weights(network, list(network.state_dict()), file.name, found, new, description)
        description.write(new)

    return TrainedNetwork(str(file), whole, max(number, 2), description, write)


def _write_weights(
    network: nn.Module, names: list[str], file: str, found: FoundWeights, new: Path, _: Any
) -> None:
    """Write a file of the same name, kind, key and prefix."""
    now = network.state_dict()
    # clones, because safetensors refuses tensors that share memory, and torch would write the whole of it
    state = {f"{found.prefix}{name}": now[name].cpu().clone().contiguous() for name in names}
    if Path(file).suffix == SAFETENSORS:
        with passed_on(f"{new / file}: cannot be written", SafetensorError):
            save_file(state, new / file, metadata={"format": "pt"})
    else:
        torch.save(state if found.key is None else {found.key: state}, new / file)
