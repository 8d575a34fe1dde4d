"""Files of weights: safetensors, or a state dict of torch that is read without running its code; of encoders, too."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import timm
import torch
from torch import Tensor, nn

from dem_apps.errors import InputError, passed_on
from dem_apps.runtime.checkpoint import read_saved
from dem_apps.runtime.files import regular_file
from seg.models.settings import package_file

#: Tensors by name.
Tensors = Mapping[str, Tensor]
#: Sentences for the user.
Notes = tuple[str, ...]
SAFETENSORS = ".safetensors"
#: Keys under which trainings put a state dict beside other things.
#: The first is taken if several fit.
_KEYS = ("state_dict", "model_state_dict", "model", "network", "net", "weights")
_SCALAR = np.float64(0).__reduce__()[0]
#: Values that trainings put beside weights, which run nothing: settings, and scores as numpy's scalars.
_VALUES: list[Any] = [
    argparse.Namespace,
    _SCALAR,
    (_SCALAR, "numpy.core.multiarray.scalar"),  # its name in numpy 1
    np.dtype,
    *(type(np.dtype(name)) for name in ("int64", "float32", "float64")),
]
_SHOWN = 6
#: The flag of an encoder's weights.
FLAG = "--model.encoder-weights"
_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt", SAFETENSORS)


@dataclass(frozen=True)
class FoundWeights:
    """Weights of one network found in a file."""

    tensors: Tensors  #: by the network's names where it is complete, else all as they are
    complete: bool = False  #: whether every weight of the network is there
    prefix: str = ""  #: that the names have in the file
    key: str | None = None  #: under which they lie there
    notes: Notes = ()  #: what is left aside


def find_weights(file: Path, module: nn.Module, flag: str = "--weights") -> FoundWeights:
    """Find the weights of a network in a ``.safetensors`` or torch file, under a key or below a prefix.

    Args:
        file: is read without running its code.
        module: the network.
        flag: begins errors and notes.

    Raises:
        InputError: no file of tensors.
    """
    each = {key: fitted(tensors, module) for key, tensors in state_dicts(file, flag).items()}
    key, *others = [key for key, fit in each.items() if fit.complete] or each
    notes = [*each[key].notes]
    if others:
        names = ", ".join(map(str, others))
        notes.append(f"the weights under '{key}' are taken, not those under {names}")
    named = tuple(f"{flag}: of {file} {note}" for note in notes)
    return replace(each[key], key=key, notes=named)


def fitted(tensors: Tensors, module: nn.Module) -> FoundWeights:
    """The weights of a network; what its parts cannot hold, such as a loss or another head, is left aside."""
    names = module.state_dict()
    needed = [name for name in names if not name.endswith("num_batches_tracked")] or [""]
    prefixes = [name.removesuffix(needed[0]) for name in tensors if name.endswith(needed[0])]
    parts = set(map(_part, names))
    for prefix in prefixes:
        below = [name for name in tensors if name.startswith(prefix)]
        inside = {name.removeprefix(prefix): tensors[name] for name in below}
        if inside.keys() >= set(needed):
            # more layers of the same parts are another network, which torch refuses; a digit is a part of nn.Sequential
            taken = {
                name: value
                for name, value in inside.items()
                if _part(name) in parts or _part(name).isdigit()
            }
            return FoundWeights(taken, True, prefix, notes=_left_aside(tensors, taken, prefix))
    return FoundWeights(dict(tensors))


def _part(name: str) -> str:
    return name.partition(".")[0]


def _left_aside(tensors: Tensors, taken: Tensors, prefix: str) -> Notes:
    """A note on the tensors that are not taken from below a prefix, by the parts that they belong to."""
    used = {f"{prefix}{name}" for name in taken}
    parts = [*dict.fromkeys(_part(name) for name in tensors if name not in used)]
    if not parts:
        return ()
    below = f"the weights below '{prefix}' are taken, " if prefix else ""
    more = ", …" if len(parts) > _SHOWN else ""
    return (f"{below}{', '.join(parts[:_SHOWN])}{more} left aside",)


def state_dicts(file: Path, flag: str) -> dict[str | None, Tensors]:
    """Tensors by name, by the key under which they lie, None for the whole file; one at least.

    Raises:
        InputError: no file, one that asks for code to be run, or one without tensors.
    """
    with passed_on(flag):
        regular_file(file)
    if file.suffix == SAFETENSORS:
        with passed_on(f"{flag}: {file} is no safetensors file"):
            return {None: safetensors.torch.load(file.read_bytes())}
    content = _content(file, flag)
    whole = content if isinstance(content, Mapping) else {}
    parts: dict[Any, Any] = {**dict.fromkeys(_KEYS), **whole, None: whole}
    by_key = {key: tensors for key, part in parts.items() if (tensors := _tensors(part))}
    if not by_key:
        keys = f"the keys {', '.join(map(str, whole))}" if whole else f"a {type(content).__name__}"
        raise InputError(
            f"{flag}: {file} holds {keys} and no tensors by name; save the network's state_dict(), or put it under one "
            f"of {', '.join(_KEYS)}"
        )
    return by_key


def _content(file: Path, flag: str) -> Any:
    """What torch saved, no code run."""
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(_VALUES):
            warnings.simplefilter("ignore")  # the unpickler's, about how the file was written
            return read_saved(file)
    except OSError:
        raise
    except Exception as error:  # of any kind; torch's words advise to run the file's code
        raise InputError(
            f"{flag}: {file} is no checkpoint of tensors alone: it is damaged, or asks for code to be run, which is "
            "refused; save the network's state_dict() where the file comes from"
        ) from error


def _tensors(part: Any) -> Tensors:
    """The tensors by name of a mapping; none of anything else."""
    items = part.items() if isinstance(part, Mapping) else ()
    return {
        name: value for name, value in items if isinstance(name, str) and isinstance(value, Tensor)
    }


def load_weights(module: nn.Module, weights: Tensors, where: str) -> None:
    """Put weights into a module; torch's sentence behind ``where``, as an InputError, for what does not fit."""
    with passed_on(where):
        module.load_state_dict(weights)


def over_bands(weights: Tensors, wanted: Tensors, below: str = "") -> Tensors:
    """Convolutions below a name that differ from the wanted ones in bands alone, repeated and scaled to one sum."""
    spread = {}
    for name, weight in weights.items():
        target = wanted.get(name, weight)
        if not name.startswith(below) or not weight.ndim == target.ndim == 4:
            continue
        before, now = weight.shape[1], target.shape[1]
        if now != before and target[:, 0].shape == weight[:, 0].shape:
            spread[name] = weight[:, torch.arange(now) % before] * (before / now)
    return spread


def weights_file(encoder: str, weights: str | None) -> Path | None:
    """The file of an encoder's weights by name or path; None where the library has to find them, or for random ones."""
    if weights is not None and Path(weights).suffix in _SUFFIXES:
        return Path(weights)
    return package_file(encoder) if weights == "imagenet" else None


def load_encoder(encoder: nn.Module, name: str, file: Path) -> None:
    """Put the weights of a file into an encoder; an InputError where they do not fit."""
    read, wanted = find_weights(file, encoder, FLAG), encoder.state_dict()
    tensors = read.tensors
    if not read.complete and name.startswith("tu-"):
        tensors = _of_timm(tensors, wanted, name[3:])
    fits = f"{FLAG}: {file} does not fit the encoder {name}"
    load_weights(encoder, {**tensors, **over_bands(tensors, wanted)}, fits)


def _of_timm(tensors: Tensors, wanted: Tensors, name: str) -> Tensors:
    """A classifier's tensors by the names of an encoder that is a part of timm's network.

    The tensors' names are timm's, or in timm's order; a part's say ``stem_0`` where the whole's say ``stem.0``.
    """
    with torch.device("meta"):
        whole = timm.create_model(name).state_dict()
    if [value.shape for value in tensors.values()] == [value.shape for value in whole.values()]:
        tensors = dict(zip(whole, tensors.values(), strict=True))
    dotted = {name.replace("_", "."): value for name, value in tensors.items()}
    keys = {name: name.removeprefix("model.").replace("_", ".") for name in wanted}
    return {name: dotted[key] for name, key in keys.items() if key in dotted} or tensors
