"""Files of weights: a state dict of torch, read without running its code, or safetensors; and folders that hold one.

A state dict may lie under a key (``{"state_dict": …}``), and its names may have a prefix that a wrapper left
(``module.``); what is saved has both again.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from dem_apps.errors import InputError, first_words
from dem_apps.runtime.checkpoint import load_state

SAFETENSORS = ".safetensors"
#: Where trainings put a state dict beside other things; the first that is there counts.
_KEYS = ("state_dict", "model_state_dict", "model", "network", "net", "weights")
#: A count of batches, which files older than torch 0.4.1 lack, and on which nothing here depends.
_COUNTER = "num_batches_tracked"
_SHOWN = 5


@dataclass(frozen=True)
class WeightsFile:
    """What a file of weights holds.

    Args:
        file: it was read from.
        tensors: by name.
        key: under which they lay, or None.
    """

    file: Path
    tensors: dict[str, Tensor]
    key: str | None = None

    def prefix(self, names: Mapping[str, Any]) -> str:
        """What the tensors' names have before those of a module: ``module.``, ``model.`` or so; often nothing."""
        prefix = ""
        while not all(name in names for name in self._without(prefix)):
            parts = {name.partition(".")[0] for name in self._without(prefix)}
            if len(parts) != 1 or (part := parts.pop()) in {name.partition(".")[0] for name in names}:
                return ""
            prefix += f"{part}."
            if not all(self._without(prefix)):
                return ""
        return prefix

    def _without(self, prefix: str) -> list[str]:
        return [name.removeprefix(prefix) for name in self.tensors]

    def fitted(self, module: nn.Module) -> dict[str, Tensor]:
        """The tensors under the module's names, floating point in its types; other names stay as they are."""
        own = module.state_dict()
        prefix = self.prefix(own)
        tensors = {name.removeprefix(prefix): value for name, value in self.tensors.items()}
        for name, value in own.items():
            given = tensors.get(name)
            if given is None and name.endswith(_COUNTER) and name.replace(_COUNTER, "running_mean") in tensors:
                tensors[name] = torch.zeros_like(value)
            elif given is not None and given.is_floating_point() and value.is_floating_point():
                tensors[name] = given.to(value.dtype)
        return tensors

    def load_into(self, module: nn.Module) -> None:
        """Put the weights into a module.

        Raises:
            InputError: names, shapes or types that are not the module's, or values that are not finite.
        """
        load_state(module, self.fitted(module), str(self.file))

    def write(self, weights: Mapping[str, Tensor], folder: Path, prefix: str = "") -> None:
        """Write other values of the weights as a file of the same name and kind."""
        named = {f"{prefix}{name}": value for name, value in weights.items()}
        (folder / self.file.name).write_bytes(weights_content(named, self.file.suffix == SAFETENSORS, self.key))


def weights_content(weights: Mapping[str, Tensor], safe: bool = True, key: str | None = None) -> bytes:
    """The bytes of a file of weights: safetensors, or torch's with the weights under ``key``."""
    # clones, because safetensors refuses tensors that share memory, and torch would write the whole of it
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in weights.items()}
    if safe:
        return safetensors.torch.save(tensors, metadata={"format": "pt"})
    content = io.BytesIO()
    torch.save(tensors if key is None else {key: tensors}, content)
    return content.getvalue()


def read_weights(file: Path, flag: str = "--weights") -> WeightsFile:
    """The tensors of a ``.safetensors`` file or of one of torch (``.pth``, ``.pt``, ``.bin``), by name.

    Args:
        file: to read; no code in it is run.
        flag: that named it, for errors.

    Raises:
        InputError: it cannot be read, asks for code to be run, or holds no tensors by name.
    """
    if not file.is_file():
        raise InputError(f"{flag}: {file} cannot be read (no such file); give a state dict as .pth or .safetensors")
    if file.suffix == SAFETENSORS:
        return WeightsFile(file, _read_safetensors(file, flag))
    content = read_torch(file, flag)
    tensors, key = _found(content)
    if tensors is None:
        held = f"the keys {', '.join(map(str, list(content)[:_SHOWN]))}" if isinstance(content, Mapping) else ""
        raise InputError(
            f"{flag}: {file} holds {held or f'a {type(content).__name__}'} and no tensors by name; save the network's "
            f"state_dict(), or put it under one of {', '.join(_KEYS)}"
        )
    return WeightsFile(file, tensors, key)


def _read_safetensors(file: Path, flag: str) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(file.read_bytes())
    except OSError as error:
        raise InputError(f"{flag}: {file} cannot be read ({error.strerror})") from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{flag}: {file} is no safetensors file, or is cut short ({first_words(error)})") from error


def read_torch(file: Path, flag: str, kind: str = "file") -> Any:
    """What a file of torch holds, without running code that is in it.

    Args:
        file: to read.
        flag: that named it, for errors.
        kind: what it should have been, likewise.

    Raises:
        InputError: it cannot be read, or asks for code to be run.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the unpickler, about how the file was written
            return torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"{flag}: {file} cannot be read ({error.strerror}); give a .pth file") from error
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{flag}: {file} is no {kind} of tensors alone: it is damaged or asks for code to be run, which is "
            "refused; save the model's state_dict() where the file comes from"
        ) from error
    except Exception as error:  # the unpickler meets arbitrary bytes with nearly any exception
        raise InputError(f"{flag}: {file} is no checkpoint of torch, or it is cut short") from error


def _found(content: Any) -> tuple[dict[str, Tensor] | None, str | None]:
    """The tensors by name and the key under which they lie."""
    if tensors_by_name(content):
        return dict(content), None
    for key in _KEYS:
        if isinstance(content, Mapping) and tensors_by_name(content.get(key)):
            return dict(content[key]), key
    return None, None


def tensors_by_name(content: Any) -> bool:
    """Whether it is a mapping of names to tensors, with one at least."""
    return (
        isinstance(content, Mapping)
        and bool(content)
        and all(isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items())
    )
