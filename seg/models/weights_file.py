"""Files of weights: safetensors, or a state dict of torch that is read without running its code."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from dem_apps.errors import InputError, passed_on

SAFETENSORS = ".safetensors"
#: Where trainings put a state dict beside other things; the first that is there counts.
_KEYS = ("state_dict", "model_state_dict", "model", "network", "net", "weights")


def read_weights(file: Path, flag: str = "--weights") -> tuple[dict[str, Tensor], str | None]:
    """The tensors of a ``.safetensors`` file or of one of torch (``.pth``, ``.pt``, ``.bin``), by name; no code is run.

    Also the key under which they lay (``{"state_dict": …}``), or None. Raises InputError: it cannot be read, asks for
    code to be run, or holds no tensors by name.
    """
    if file.suffix == SAFETENSORS:
        with passed_on(f"{flag}: {file} is no safetensors file"):
            return safetensors.torch.load(file.read_bytes()), None
    content = read_torch(file, flag)
    if tensors_by_name(content):
        return dict(content), None
    for key in _KEYS:
        if isinstance(content, Mapping) and tensors_by_name(content.get(key)):
            return dict(content[key]), key
    held = f"the keys {', '.join(map(str, content))}" if isinstance(content, Mapping) else f"a {type(content).__name__}"
    raise InputError(
        f"{flag}: {file} holds {held} and no tensors by name; save the network's state_dict(), or put it under one of "
        f"{', '.join(_KEYS)}"
    )


def read_torch(file: Path, flag: str) -> Any:
    """What a file of torch holds, without running code that is in it; ``flag`` named it.

    Raises InputError: it cannot be read, or asks for code to be run.
    """
    if not file.is_file():
        raise InputError(f"{flag}: {file} cannot be read (no such file); give a state dict as .pth or .safetensors")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the unpickler, about how the file was written
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler meets arbitrary bytes with nearly any exception
        raise InputError(
            f"{flag}: {file} is no checkpoint of tensors alone: it is damaged, or asks for code to be run, which is "
            "refused; save the network's state_dict() where the file comes from"
        ) from error


def tensors_by_name(content: Any) -> bool:
    """Whether it is a mapping of names to tensors, with one at least."""
    return (
        isinstance(content, Mapping)
        and bool(content)
        and all(isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items())
    )


def without_prefix(tensors: Mapping[str, Tensor], module: nn.Module) -> tuple[dict[str, Tensor], str]:
    """Tensors by a module's names, and the prefix that theirs had (``module.``, ``model.``); often none."""
    own, parts = module.state_dict(), next(iter(tensors)).split(".")
    for length in range(len(parts)):
        prefix = "".join(f"{part}." for part in parts[:length])
        found = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        if len(found) == len(tensors) and found.keys() <= own.keys():
            return found, prefix
    return dict(tensors), ""


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Put weights into a module; torch's own sentence about what does not fit becomes an InputError."""
    with passed_on(where):
        module.load_state_dict(weights)


def weights_content(weights: Mapping[str, Tensor], safe: bool = True, key: str | None = None) -> bytes:
    """The bytes of a file of weights: safetensors, or torch's with the weights under ``key``."""
    # clones, because safetensors refuses tensors that share memory, and torch would write the whole of it
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in weights.items()}
    if safe:
        return safetensors.torch.save(tensors, metadata={"format": "pt"})
    content = io.BytesIO()
    torch.save(tensors if key is None else {key: tensors}, content)
    return content.getvalue()
