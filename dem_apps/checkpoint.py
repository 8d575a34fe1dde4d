"""Checkpoints that are safe to open and never half written: tensors as safetensors, everything else as JSON.

A checkpoint ``NAME`` is two files. ``NAME.<tag>.<checksum>.safetensors`` holds the tensors; ``NAME.json`` holds
the rest, names the tensor file and its SHA-256. The tensor file gets a fresh name and is flushed before the JSON
is replaced in one step, so at every moment ``NAME.json`` points at a complete checkpoint: the previous or the new.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import reprlib
import stat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from dem_apps.documents import read_json
from dem_apps.errors import InputError, NotFiniteError, disk_error

#: No path, which would be a way out of the folder.
_FILE_NAME = re.compile(r"[^/\\\x00-\x1f\ud800-\udfff]{1,200}\.safetensors")
_TENSOR, _ARRAY, _PAIRS, _TUPLE = "__tensor__", "__array__", "__pairs__", "__tuple__"


def save_checkpoint(folder: Path, name: str, state: dict[str, Any], tag: str) -> Path:
    """Write ``state`` as checkpoint ``name`` and remove the tensor file of the one it replaces.

    Args:
        folder: the run's ``checkpoints`` folder; made if it is missing.
        name: ``last``, ``best``, …
        state: nested dicts, lists and tuples of tensors, numpy arrays and JSON values.
        tag: tells this checkpoint's tensor file from its predecessor's, usually the step.

    Returns:
        the path of the JSON file.

    Raises:
        InputError: the disk is full; the checkpoint that was there is untouched.
        NotFiniteError: a tensor or array holds NaN or infinite values; likewise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pointer = folder / f"{name}.json"
    tensors: dict[str, torch.Tensor] = {}
    encoded = _encode(state, tensors, "")
    intact = f"the previous checkpoint {pointer} is intact" if pointer.exists() else "nothing was overwritten"
    for path, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise NotFiniteError(f"{pointer}: '{path}' holds NaN or infinite values and is not saved; {intact}")
    # safetensors writes through a memory map, where a full disk is a SIGBUS and not an error:
    # serialise in memory and write the bytes ourselves.
    content = save(tensors)
    sha256 = hashlib.sha256(content).hexdigest()
    # the checksum in the name, since the same step may be saved twice
    tensor_file = folder / f"{name}.{tag}.{sha256[:8]}.safetensors"
    temporary = tensor_file.with_suffix(".tmp")
    document = {"tensors": tensor_file.name, "state": encoded, "sha256": sha256}
    try:
        write_bytes(temporary, content)
        os.replace(temporary, tensor_file)
        write_atomically(pointer, json.dumps(document, indent=1).encode())
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise disk_error(error, temporary, intact) from error
    for old in folder.glob(f"{name}.*.safetensors"):
        if old != tensor_file:
            old.unlink()
    return pointer


def load_checkpoint(folder: Path, name: str) -> dict[str, Any]:
    """Read a checkpoint that :func:`save_checkpoint` wrote. No code of the file is run.

    Raises:
        InputError: it is missing, cut short, its tensors do not have the checksum that the JSON names, or it is none of
            this program's, whatever else it may be.
    """
    pointer = folder / f"{name}.json"
    if not pointer.is_file():
        present = sorted(path.stem for path in folder.glob("*.json"))
        raise InputError(f"{folder}: no checkpoint '{name}'; there is {', '.join(present) or 'none'}")
    try:
        document = read_json(pointer)
    except InputError as error:
        raise InputError(f"{error}; it is not a checkpoint of this program") from error
    try:
        tensor_file = _tensor_file(folder, document["tensors"], pointer)
        content = _content(tensor_file)
        if hashlib.sha256(content).hexdigest() != document["sha256"]:
            raise InputError(
                f"{tensor_file}: the content does not match the checksum in {pointer}; the file is damaged"
            )
        state = _decode(document["state"], load(content))
        if not isinstance(state, dict):
            raise TypeError(f"'state' is a {type(state).__name__}, no mapping")
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{pointer}: its tensor file {error.filename} is missing") from error
    except MemoryError as error:
        raise InputError(f"{pointer}: its tensors do not fit into this machine's memory") from error
    # what JSON and safetensors may hold and a checkpoint does not has no common class of errors
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{pointer}: not a checkpoint of this program ({type(error).__name__}: {reason})") from error
    return state


def _tensor_file(folder: Path, name: Any, pointer: Path) -> Path:
    """The file of that name in the folder, and nowhere else."""
    if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
        given = reprlib.repr(name)
        raise InputError(
            f"{pointer}: not a checkpoint of this program ('tensors' is {given}, no name of a file in its folder)"
        )
    file = folder / name
    # a link, too, may lead to /dev/zero or to what is nobody's business
    if file.is_symlink():
        raise InputError(f"{file}: is a link, and a checkpoint's tensors are a file in its folder; put a copy there")
    return file


def _content(file: Path) -> bytes:
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{file}: is no regular file, so it is not read")
    # a file with holes takes no room on the disk and any amount of memory
    if status.st_size > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        raise InputError(f"{file}: its {status.st_size:,} bytes do not fit into this machine's memory")
    return file.read_bytes()


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` in one step: readers see the old file or the new one, whole."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        write_bytes(temporary, content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write and flush to the disk, so that a later rename cannot come before the content.

    What is there is replaced and never written into: it may be a link that somebody put there.
    """
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _encode(value: Any, tensors: dict[str, torch.Tensor], path: str) -> Any:
    """JSON for ``value``; tensors and arrays move into ``tensors`` and leave their key behind."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        while path in tensors:  # {"a/b": …, "a": {"b": …}}
            path += "'"
    if isinstance(value, torch.Tensor):
        # a clone, because safetensors refuses tensors that share memory
        tensors[path] = value.detach().cpu().clone().contiguous()
        return {_TENSOR: path}
    if isinstance(value, np.ndarray):
        tensors[path] = torch.from_numpy(np.array(value, order="C"))
        return {_ARRAY: path}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        encoded = {key: _encode(item, tensors, f"{path}/{key}") for key, item in value.items()}
        if all(isinstance(key, str) for key in value):
            return encoded
        return {_PAIRS: [[key, item] for key, item in encoded.items()]}
    if isinstance(value, (list, tuple)):
        items = [_encode(item, tensors, f"{path}/{index}") for index, item in enumerate(value)]
        return {_TUPLE: items} if isinstance(value, tuple) else items
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__} at '{path}'")


def _decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    if _ARRAY in value:
        return tensors[value[_ARRAY]].numpy()
    if _PAIRS in value:
        return {key: _decode(item, tensors) for key, item in value[_PAIRS]}
    if _TUPLE in value:
        return tuple(_decode(item, tensors) for item in value[_TUPLE])
    return {key: _decode(item, tensors) for key, item in value.items()}
