"""Networks that have no folder: what ``package.module:function`` returns, and a file of weights by its architecture."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dem_apps.errors import InputError, first_words, nearest, one_of, passed_on
from dem_apps.test_time_methods.copies import deep_copy
from dem_apps.test_time_methods.network import refuse_probabilities, takes
from seg.data.labels import ClassSet, named_classes
from seg.data.pixel_format import rgb_format
from seg.models import smp_network
from seg.models.networks import build_model
from seg.models.weights_file import (
    SAFETENSORS,
    FoundWeights,
    find_weights,
    load_weights,
    state_dicts,
    written,
)
from seg.trained.description import ASSUMED, GUESS, Description, PlainLogits, found_logits
from seg.trained.settings import NetworkSettings
from seg.trained.trained_network import TrainedNetwork

#: What a function may return: a normalisation, and fields of a description.
_FACTS = [
    "mean",
    "std",
    "channels",
    "scale",
    "order",
    "multiple",
    "size",
    "classes",
    "align_corners",
    "output",
    "probabilities",
]
#: Sides of the image that shows what a function's network returns: of patches of 14 and 16 pixels, of 64 and of 128.
_SIDES = (224, 256, 384)
#: Of which a side may have to be a multiple.
_MULTIPLES = (1, 8, 16, 32, 64, 128)
#: Of a map's sides over its images': the most by which one ratio may exceed the other.
_ALIKE = 1.25
#: Pixels by which the map of a network with padding may fall short of its images, besides two of its own strides.
_SHORT = 8


def read_function(
    spec: str, file: Path | None, size: tuple[int, int] | None = None
) -> TrainedNetwork:
    """The network that a function returns, alone or with facts, the fields of a description; ``classes`` as names."""
    network, facts = _called_function(spec)
    if file is not None and isinstance(network, torch.jit.ScriptModule):
        raise InputError(
            f"{spec}: gives a ScriptModule, which has weights already; leave out --weights"
        )
    found = FoundWeights({}) if file is None else find_weights(file, network)
    if file is not None:
        load_weights(
            network, found.tensors, f"--weights: {file} does not fit the network of {spec}"
        )
    with passed_on(f"{spec}: is no network to predict with"):
        network.float().eval()
    names = list(network.state_dict())
    with passed_on(spec):
        description = _said(facts, network, found.notes)
        output, height, width = _first_output(network, description, size)
        found_map = found_logits(output, description.output)
        _refuse_other_outputs(found_map, (height, width))
        logits = description.logits(output)
        multiple = _multiple_of(network, description, (height, found_map.shape[2]))
    if "probabilities" not in facts:
        refuse_probabilities(
            logits, spec, "or say 'probabilities' among its facts, True or, of logits, False"
        )
    if not {"multiple", "size"} & facts.keys():
        description = dataclasses.replace(description, multiple=multiple)
    name = "weights.safetensors" if file is None else file.name
    write = partial(_write_weights, network, names, name, found)
    whole = network if logits is output else PlainLogits(network, description)
    return TrainedNetwork(spec, whole, logits.shape[1], description, write)


def _first_output(
    network: nn.Module, description: Description, size: tuple[int, int] | None
) -> tuple[Any, int, int]:
    """The output for noise, with its height and width: a known size, else the first usual one that works."""
    with passed_on("cannot be copied"):
        deep_copy(network)
    sizes = (
        [description.size]
        if description.size
        else [*([size] if size else []), *((side, side) for side in _SIDES)]
    )
    multiple, refused = description.multiple, ""
    for width, height in (
        (-(-w // multiple) * multiple, -(-h // multiple) * multiple) for w, h in sizes
    ):
        noise = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))
        try:
            with torch.no_grad():
                # a copy may keep what it makes for this size
                return deep_copy(network)(noise), height, width
        except Exception as error:  # of any network
            refused = refused or f"takes no image of {width} × {height} ({first_words(error)})"
        if takes(network, noise):  # now: its copies share what hooks keep
            break
    raise InputError(
        f"{refused}, or its copy does not, of which hooks must not hold the network itself; --size W,H, or 'size' "
        "among its facts, names another"
    )


def _refuse_other_outputs(values: Tensor, size: tuple[int, int]) -> None:
    """An InputError for what is no map of logits (B, C, h, w) of images of (H, W): ids, classes last, another shape."""
    shape = tuple(values.shape)
    whole = not values.is_floating_point() or bool((values == values.round()).all())
    if whole and (len(shape) == 3 or (len(shape) == 4 and shape[1] == 1)):
        raise InputError(
            f"its output {shape} holds whole numbers, the ids of classes; take the last argmax out"
        )
    if len(shape) != 4 or not values.is_floating_point():
        raise InputError(
            f"its logits have shape {shape}; expected floating point (B, C, h, w), one a pixel"
        )
    (height, width), sides = size, shape[1:]
    if (
        _apart(sides[1] / height, sides[2] / width)
        > _ALIKE
        >= _apart(sides[0] / height, sides[1] / width)
    ):
        raise InputError(
            f"its output {shape} has the classes last; return (B, C, h, w), by .permute(0, 3, 1, 2)"
        )


def _apart(first: float, second: float) -> float:
    return max(first, second) / min(first, second)


def _refuse_the_middle(first: tuple[int, int], second: tuple[int, int]) -> None:
    """An InputError where the map leaves out a margin, as without padding; of two images (side, side of its map)."""
    if first[0] == second[0] or first[1] == second[1]:  # a map of one size, whatever the images
        return
    stride = (first[0] - second[0]) / (first[1] - second[1])
    margin = first[0] - stride * first[1]
    if margin > 2 * stride + _SHORT:
        raise InputError(
            f"of {first[0]} pixels its map shows the middle {first[0] - margin:.0f}, as without padding, and "
            "would be stretched over all; pad the images in its forward (reflect), or its convolutions"
        )


def read_weights(file: Path, settings: NetworkSettings, classes: ClassSet | None) -> TrainedNetwork:
    """A network of segmentation-models-pytorch by its architecture, with the weights of a file."""
    architecture, encoder = str(settings.architecture).lower(), settings.encoder or "resnet34"
    number = (
        len(classes) if classes is not None else int(settings.classes or 0) or _rows_of_head(file)
    )
    with passed_on(f"--architecture {settings.architecture}, --encoder {encoder}"):
        network = build_model(
            one_of("--architecture", architecture, [*smp_network.SMP_NETWORKS]), encoder, number
        )
    found = find_weights(file, network, "--model")
    fits = (
        f"--model: {file} does not fit {settings.architecture} on {encoder} with {number} classes"
    )
    load_weights(network, found.tensors, fits)
    guess = smp_network.preprocessing({"encoder_name": encoder})
    description = Description.read(file.parent, guess, notes=found.notes)
    if classes is not None:
        description = dataclasses.replace(description, classes=classes)
    whole = network if number > 1 else PlainLogits(network, description)

    def write(new: Path, description: Description) -> None:
        _write_weights(network, list(network.state_dict()), file.name, found, new, description)
        description.write(new)

    return TrainedNetwork(str(file), whole, max(number, 2), description, write)


def _rows_of_head(file: Path) -> int:
    """The number of outputs of a network of segmentation-models-pytorch in a file of weights."""
    for tensors in state_dicts(file, "--model").values():
        heads = [
            value
            for name, value in tensors.items()
            if re.search(r"segmentation_head\..*weight$", name)
        ]
        if heads:
            return int(heads[-1].shape[0])
    raise InputError(f"--classes: is missing, and {file} has no segmentation_head to count them by")


def _write_weights(
    network: nn.Module, names: list[str], file: str, found: FoundWeights, new: Path, _: Any
) -> None:
    """A file of the same name, kind, key and prefix."""
    now = network.state_dict()
    # clones, because safetensors refuses tensors that share memory, and torch would write the whole of it
    state = {f"{found.prefix}{name}": now[name].cpu().clone().contiguous() for name in names}
    if Path(file).suffix == SAFETENSORS:
        with written():
            save_file(state, new / file, metadata={"format": "pt"})
    else:
        torch.save(state if found.key is None else {found.key: state}, new / file)


def _multiple_of(network: nn.Module, description: Description, first: tuple[int, int]) -> int:
    """The least multiple of which sides may be odd multiples, else 1; ``first`` is a side, and that of its map."""
    base = 64 if first[0] > 96 else 256  # of sides far apart rounding hides no stride
    for multiple in _MULTIPLES:
        side = base + multiple if multiple < 64 else 3 * multiple
        try:
            with torch.no_grad():
                output = deep_copy(network)(torch.zeros(1, 3, side, side))
        except (AssertionError, RuntimeError, ValueError):
            continue
        _refuse_the_middle(first, (side, found_logits(output, description.output).shape[2]))
        return multiple
    return 1


def _called_function(spec: str) -> tuple[nn.Module, Mapping[str, Any]]:
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
        expected = "expected a torch.nn.Module, or one with a mapping of facts"
        raise InputError(f"{spec}: returned a {type(made).__name__}; {expected}")
    return network, facts


def _said(facts: Mapping[str, Any], network: nn.Module, notes: tuple[str, ...]) -> Description:
    for fact in facts:
        if fact not in _FACTS:
            raise InputError(
                f"unknown fact '{fact}'{nearest(fact, _FACTS)}; known are {', '.join(_FACTS)}"
            )
    found, given = _normalisation_of(network) or ASSUMED, {"align_corners": False, **facts}
    numbers = {name: given.pop(name) for name in ("mean", "std", "scale") if name in given}
    if numbers and "scale" not in numbers:
        numbers = {"mean": found["image_mean"], "std": found["image_std"], **numbers}
    given["order"] = given.pop("channels", given.get("order", "rgb"))
    if given.get("classes") is not None:
        given["classes"] = named_classes(given["classes"])
    if given.get("size") is not None:
        given["size"] = tuple(given["size"])
    pixels = rgb_format(found["image_mean"], found["image_std"])
    guess = Description(pixels, **given, notes=notes, origin=f"{GUESS}{found['assumed']}")
    said = guess.told(numbers.get("mean"), numbers.get("std"), None, numbers.get("scale"))
    return dataclasses.replace(said, origin="the function's facts") if numbers else guess


def _normalisation_of(network: nn.Module) -> Mapping[str, Any] | None:
    """The normalisation published with an encoder of segmentation-models-pytorch, or with a part of timm's."""
    config = getattr(network, "config", None)
    if isinstance(config, Mapping) and "encoder_name" in config:
        return smp_network.preprocessing(config)
    for module in nn.Module.modules(network):
        if (
            isinstance(known := getattr(module, "pretrained_cfg", None), Mapping)
            and "mean" in known
        ):
            by_name = f"by the name of its encoder, {known.get('architecture', 'of timm')}"
            return {"image_mean": known["mean"], "image_std": known["std"], "assumed": by_name}
    return None
