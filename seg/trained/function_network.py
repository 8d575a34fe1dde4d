"""Networks that have no folder: what ``package.module:function`` returns, and a file of weights by its architecture."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from dem_apps.errors import InputError, first_words, nearest, one_of, passed_on
from dem_apps.runtime.documents import Document, Settings
from dem_apps.test_time_methods.copies import deep_copy
from dem_apps.test_time_methods.network import find_logits, refuse_probabilities
from seg.data.files import Size
from seg.data.labels import ClassSet, load_classes, named_classes
from seg.models import smp_network
from seg.models.networks import build_model
from seg.models.weights_file import SAFETENSORS, FoundWeights, Notes, find_weights, load_weights
from seg.trained.description import ASSUMED, GUESS, Description, PlainLogits, class_logits
from seg.trained.settings import NetworkSettings
from seg.trained.trained_network import TrainedNetwork

#: Facts that a function may state, which are a normalisation and fields of a description.
_NORMALISATION = ("mean", "std", "channels", "scale")
_FIELDS = ("multiple", "size", "classes", "align_corners")
#: Side of the image that shows what a network returns: patches of 14, 16 and 32 pixels divide it.
_SIDE = 224


def read_function(spec: str, weights: str | None, size: Size | None = None) -> TrainedNetwork:
    """Open the network that a function returns, alone or with a mapping of facts.

    Args:
        spec: ``package.module:function``.
        weights: file of weights for the network; None keeps its own.
        size: (width, height) of the image that it is tried with.

    Raises:
        InputError: a function, fact, file or output that does not fit.
    """
    network, facts = _called_function(spec)
    read, name = FoundWeights({}), "weights.safetensors"
    if weights is not None:
        read, name = find_weights(Path(weights), network), Path(weights).name
        load_weights(
            network, read.tensors, f"--weights: {weights} does not fit the network of {spec}"
        )
    with passed_on(spec):
        network.float().eval()
        description = _stated(facts, network, read.notes)
        output = _tried(network, description, size)
        logits = class_logits(output)
    refuse_probabilities(logits, spec)
    write = partial(_write_weights, network, list(network.state_dict()), name, read)
    whole = network if logits is output else PlainLogits(network)
    return TrainedNetwork(spec, whole, logits.shape[1], description, write)


def _called_function(spec: str) -> tuple[nn.Module, Settings]:
    """The network and the facts that the function returns."""
    module_name, _, name = spec.partition(":")
    with passed_on(
        f"{spec}: cannot be imported; run the command in the folder that holds the module"
    ):
        module = importlib.import_module(module_name)
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(
            f"{spec}: '{module_name}' has no function '{name}'{nearest(name, vars(module))}"
        )
    with passed_on(f"{spec}: cannot be called"):
        made = function()
    network, facts = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
    if not isinstance(network, nn.Module) or not isinstance(facts, Mapping):
        kind = type(made).__name__
        raise InputError(
            f"{spec}: the function returned a {kind}; expected a torch.nn.Module, or one with a mapping of facts"
        )
    return network, facts


def _stated(facts: Settings, network: nn.Module, notes: Notes) -> Description:
    """The description that a function states; ImageNet's normalisation where it states none."""
    known = [*_NORMALISATION, *_FIELDS]
    for fact in facts:
        one_of("facts", fact, known)
    mean, std, channels, scale = (facts.get(name) for name in _NORMALISATION)
    if (mean is None) != (std is None):
        raise InputError("the facts 'mean' and 'std' are stated together; state both or none")
    fields: Document = {"align_corners": False}
    # how segmentation-models-pytorch says that sides are multiples
    if getattr(network, "requires_divisible_input_shape", False):
        fields["multiple"] = network.get_submodule("encoder").output_stride
    fields |= {name: facts[name] for name in _FIELDS if facts.get(name) is not None}
    if "classes" in fields:
        fields["classes"] = named_classes(fields["classes"])
    if "size" in fields:
        fields["size"] = tuple(fields["size"])
    description = Description(**fields, notes=notes, origin=f"{GUESS}{ASSUMED['assumed']}")
    return description.told(mean, std, channels, scale, "the function's facts")


def _tried(network: nn.Module, description: Description, size: Size | None) -> Any:
    """Return the network's output for one image of noise, checked to be a map of logits."""
    multiple, sides = description.multiple, description.size or size or (_SIDE, _SIDE)
    width, height = (-(-side // multiple) * multiple for side in sides)
    noise = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            output = deep_copy(network)(noise)  # a copy may keep what it makes for this size
    except Exception as error:  # any network may raise any
        raise InputError(
            f"the network takes no image of {width} × {height} ({first_words(error)}); give another size by --size "
            "W,H or by the fact 'size', or pad it by the fact 'multiple'"
        ) from error
    values = find_logits(output)
    shape = tuple(values.shape)
    if len(shape) == 4 and values.is_floating_point():
        stride = max(1, round(height / shape[2]))
        missing = max(abs(height - stride * shape[2]), abs(width - stride * shape[3]))
        is_ids = shape[1] == 1 and bool((values == values.round()).all())
        if missing <= 2 * stride and not is_ids:
            return output
    raise InputError(
        f"the network's output for an image of {width} × {height} is {values.dtype} of shape {shape}; return logits "
        "(B, C, h, w) of the whole image, floating point, without argmax, with padded convolutions"
    )


def number_and_classes(classes: str | None) -> tuple[int, ClassSet | None]:
    """The number of outputs that ``--classes`` says, 0 without it, and their meaning where it names them."""
    if classes is None:
        return 0, None
    if classes.isdecimal():
        return int(classes), None
    class_set = load_classes(classes)
    return len(class_set), class_set


def read_weights(
    file: Path, settings: NetworkSettings, number: int, classes: ClassSet | None
) -> TrainedNetwork:
    """Open a network of segmentation-models-pytorch with the weights of a file.

    Args:
        file: the weights.
        settings: name architecture and encoder as the library spells them.
        number: of the network's outputs.
        classes: their meaning; None is what the file ``classes.json`` beside the weights says.

    Raises:
        InputError: a name that is not known, or weights that do not fit.
    """
    architecture, encoder = str(settings.architecture), settings.encoder or "resnet34"
    name = one_of("--architecture", architecture.lower(), [*smp_network.SMP_NETWORKS])
    with passed_on(f"--architecture {architecture}, --encoder {encoder}"):
        network = build_model(name, encoder, number)
    read = find_weights(file, network, "--model")
    fits = f"--model: {file} does not fit {architecture} on {encoder} with {number} classes"
    load_weights(network, read.tensors, fits)
    guess = smp_network.preprocessing(encoder)
    description = Description.read(file.parent, guess, notes=read.notes)
    description = replace(description, classes=classes or description.classes)
    whole = network if number > 1 else PlainLogits(network)

    def write(new: Path, description: Description) -> None:
        _write_weights(network, list(network.state_dict()), file.name, read, new, description)
        description.write(new)

    return TrainedNetwork(str(file), whole, max(number, 2), description, write)


def _write_weights(
    network: nn.Module, names: list[str], file: str, read: FoundWeights, new: Path, _: Any
) -> None:
    """Write a file of the same name, kind, key and prefix as the one that was read."""
    now = network.state_dict()
    # clones, because safetensors refuses tensors that share memory, and torch would write the whole of it
    state = {f"{read.prefix}{name}": now[name].cpu().clone().contiguous() for name in names}
    if Path(file).suffix == SAFETENSORS:
        with passed_on(f"{new / file}: cannot be written", SafetensorError):
            save_file(state, new / file, metadata={"format": "pt"})
    else:
        torch.save(state if read.key is None else {read.key: state}, new / file)
