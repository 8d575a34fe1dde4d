"""Files of weights: safetensors, or a state dict of torch that is read without running its code; of encoders, too."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import timm
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from dem_apps.errors import InputError, passed_on
from dem_apps.runtime.checkpoint import read_saved
from dem_apps.runtime.files import regular_file
from seg.models.settings import package_file

SAFETENSORS = ".safetensors"
#: Where trainings put a state dict beside other things; of several that fit, the first is taken.
_KEYS = ("state_dict", "model_state_dict", "model", "network", "net", "weights")
_SCALAR = np.float64(0).__reduce__()[0]
#: What trainings put beside weights: what holds values and runs nothing; numpy 1 had another name for its scalars.
_VALUES: list[Any] = [
    argparse.Namespace,
    Counter,
    defaultdict,
    pathlib.PosixPath,
    np.dtype,
    *(type(np.dtype(code)) for code in "?bBhHiIlLqQefd"),
    _SCALAR,
    *([(_SCALAR, "numpy.core.multiarray.scalar")] if torch.__version__ >= "2.7" else []),
]
_SHOWN = 6
#: Of the weights of an encoder.
FLAG = "--model.encoder-weights"
_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt", SAFETENSORS)


@dataclass(frozen=True)
class FoundWeights:
    """Weights of one network found in a file."""

    tensors: dict[str, Tensor]  #: by the network's names where it is complete, else all as they are
    complete: bool = False  #: whether every weight of the network is there
    prefix: str = ""  #: that the names have in the file
    key: str | None = None  #: under which they lie there
    notes: tuple[str, ...] = ()  #: what is left aside


@contextmanager
def written() -> Iterator[None]:
    """Around safetensors' writing: what the system refuses comes as an OSError, as of every other file."""
    try:
        yield
    except SafetensorError as error:
        code = re.search(r"(?:os error |code: )(\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1]))) from error


def find_weights(file: Path, module: nn.Module, flag: str = "--weights") -> FoundWeights:
    """The weights of a network in a ``.safetensors`` or torch file, under a key or below a prefix; no code is run."""
    each = {key: fitted(tensors, module) for key, tensors in state_dicts(file, flag).items()}
    key, *others = [key for key, found in each.items() if found.complete] or each
    notes = list(each[key].notes)
    if others:
        notes.append(
            f"the weights under '{key}' are taken, not those under {', '.join(map(str, others))}"
        )
    return dataclasses.replace(
        each[key], key=key, notes=tuple(f"{flag}: of {file} {note}" for note in notes)
    )


def fitted(tensors: Mapping[str, Any], module: nn.Module) -> FoundWeights:
    """The weights of a network; what its parts cannot hold, such as a loss or another head, is left aside."""
    own = module.state_dict()
    needed = [name for name in own if not name.endswith("num_batches_tracked")] or [""]
    tops = {name.partition(".")[0] for name in [*own, *module._buffers]}
    for prefix in dict.fromkeys(
        name.removesuffix(needed[0]) for name in tensors if name.endswith(needed[0])
    ):
        inside = {
            name.removeprefix(prefix): value
            for name, value in tensors.items()
            if name.startswith(prefix)
        }
        if inside.keys() >= set(needed):
            # more layers of the same parts are another network, which torch refuses
            taken = {
                name: inside[name]
                for name in inside
                if (top := name.partition(".")[0]) in tops or top.isdigit()
            }
            left = dict.fromkeys(
                name.partition(".")[0] + ".*" * ("." in name)
                for name in tensors
                if not name.startswith(prefix) or name.removeprefix(prefix) not in taken
            )
            named = ", ".join([*left][:_SHOWN]) + (", …" if len(left) > _SHOWN else "")
            where = f"the weights below '{prefix}' are taken, " if prefix else ""
            return FoundWeights(
                taken, True, prefix, notes=(f"{where}{named} left aside",) if left else ()
            )
    return FoundWeights(
        {name: value for name, value in tensors.items() if isinstance(value, Tensor)}
    )


def state_dicts(file: Path, flag: str) -> dict[str | None, Mapping[str, Any]]:
    """Mappings of names to tensors by the key under which they lie, None for the whole file; one at least."""
    with passed_on(flag):
        regular_file(file)
    if file.suffix == SAFETENSORS:
        with passed_on(f"{flag}: {file} is no safetensors file"):
            return {None: safetensors.torch.load(file.read_bytes())}
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(_VALUES):
            warnings.simplefilter("ignore")  # of the unpickler, about how the file was written
            content = read_saved(file)
    except Exception as error:  # the unpickler meets arbitrary bytes with nearly any exception
        raise InputError(
            f"{flag}: {file} is no checkpoint of tensors alone: it is damaged, or asks for code to be run, which is "
            "refused; save the network's state_dict() where the file comes from"
        ) from error
    parts = {**dict.fromkeys(_KEYS), **content} if isinstance(content, Mapping) else {}
    mappings = {
        key: part for key, part in {**parts, None: content}.items() if isinstance(part, Mapping)
    }
    named = {
        key: part for key, part in mappings.items() if all(isinstance(name, str) for name in part)
    }
    if found := {
        key: part
        for key, part in named.items()
        if any(isinstance(each, Tensor) for each in part.values())
    }:
        return found
    held = (
        f"the keys {', '.join(map(str, content))}"
        if isinstance(content, Mapping)
        else f"a {type(content).__name__}"
    )
    instead = f"save the network's state_dict(), or put it under one of {', '.join(_KEYS)}"
    raise InputError(f"{flag}: {file} holds {held} and no tensors by name; {instead}")


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Put weights into a module, and into buffers that it declares as None; an InputError for what does not fit."""
    parts = dict(nn.Module.named_modules(module))
    with passed_on(where):
        for name in weights.keys() - module.state_dict().keys():
            owner, _, last = name.rpartition(".")
            if (
                owner in parts
                and last in parts[owner]._buffers
                and parts[owner]._buffers[last] is None
            ):
                parts[owner]._buffers[last] = weights[name].clone()
        module.load_state_dict(weights)


def over_bands(
    given: Mapping[str, Tensor], own: Mapping[str, Tensor], below: str = ""
) -> dict[str, Tensor]:
    """Convolutions below a name that differ from ours in bands alone, repeated over ours and scaled to the same sum."""
    spread = {}
    for name, value in own.items():
        theirs = given.get(name)
        if theirs is None or not name.startswith(below) or value.ndim != 4 or theirs.ndim != 4:
            continue
        before, now = theirs.shape[1], value.shape[1]
        if before != now and value[:, 0].shape == theirs[:, 0].shape:
            spread[name] = theirs[:, [band % before for band in range(now)]] * (before / now)
    return spread


def weights_file(encoder: str, weights: str | None) -> Path | None:
    """The file of an encoder's weights by name or path; None where the library has to find them, or for random ones."""
    if weights is not None and Path(weights).suffix in _SUFFIXES:
        return Path(weights)
    return package_file(encoder) if weights == "imagenet" else None


def load_encoder(encoder: nn.Module, name: str, file: Path) -> None:
    """Put the weights of a file into an encoder; an InputError where they do not fit."""
    found, own = find_weights(file, encoder, FLAG), encoder.state_dict()
    tensors = found.tensors
    if not found.complete and name.startswith("tu-"):
        with torch.device("meta"):
            whole = timm.create_model(name[3:]).state_dict()
        tensors = _of_timm(tensors, own, whole)
    load_weights(
        encoder,
        tensors | over_bands(tensors, own),
        f"{FLAG}: {file} does not fit the encoder {name}",
    )


def _of_timm(
    given: dict[str, Tensor], own: Mapping[str, Tensor], whole: Mapping[str, Any]
) -> dict[str, Tensor]:
    """A classifier's tensors by the names of an encoder that is a part of timm's ``whole``.

    The given names are timm's, or in timm's order; a part's say ``stem_0`` where the whole's say ``stem.0``.
    """
    if [value.shape for value in given.values()] == [value.shape for value in whole.values()]:
        given = dict(zip(whole, given.values(), strict=True))
    dotted = {name.replace("_", "."): value for name, value in given.items()}
    keys = {name: name.removeprefix("model.").replace("_", ".") for name in own}
    return {name: dotted[key] for name, key in keys.items() if key in dotted} or given
