"""Checkpoints that are safe to open and never half written: tensors as safetensors, everything else as JSON.

A checkpoint ``NAME`` is two files. ``NAME.<tag>.<checksum>.safetensors`` holds the tensors; ``NAME.json`` holds
the rest, names the tensor file and its SHA-256, and has one of itself. The tensor file gets a fresh name, is flushed
and read back before the JSON is replaced in one step, so at every moment ``NAME.json`` points at a complete checkpoint:
the previous or the new.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import reprlib
import stat
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from dem_apps.errors import InputError, NotFiniteError, NotWritten, disk_error
from dem_apps.runtime.safe_io import first_words, parsed_json, read_text
from dem_apps.runtime.signals import signals_held

#: No path, which would be a way out of the folder.
_FILE_NAME = re.compile(r"[^/\\\x00-\x1f\ud800-\udfff]{1,200}\.safetensors")
#: Of the values in the JSON half.
_OWN_SHA256 = "json_sha256"
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
        InputError: the disk is full, or gives back other bytes than it took; the checkpoint there was is untouched.
        NotFiniteError: a tensor or array holds NaN or infinite values; likewise.
    """
    pointer = folder / f"{name}.json"
    tensors: dict[str, torch.Tensor] = {}
    encoded = _encode(state, tensors, "")
    for path, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise NotFiniteError(
                f"{pointer}: '{path}' holds NaN or infinite values and is not saved; {_intact(pointer)}"
            )
    # safetensors writes through a memory map, where a full disk is a SIGBUS and not an error:
    # serialise in memory and write the bytes ourselves.
    content = save(tensors)
    sha256 = hashlib.sha256(content).hexdigest()
    # the checksum in the name, since the same step may be saved twice
    tensor_file = folder / f"{name}.{tag}.{sha256[:8]}.safetensors"
    document = {"tensors": tensor_file.name, "state": encoded, "sha256": sha256}
    document[_OWN_SHA256] = _sha256_of_values(document)
    with signals_held():
        make_folder(folder)
        remove_leftovers(folder, name)  # before the write, which may need their space
        intact = _intact(pointer)
        try:
            _replace(tensor_file, content, sha256)
            text = json.dumps(document, indent=1).encode()
            _replace(pointer, text, hashlib.sha256(text).hexdigest())
        except NotWritten as error:
            raise NotWritten(f"{error.problem}; {intact}", error.remedy) from error
        except OSError as error:
            raise disk_error(error, tensor_file, intact) from error
        finally:
            remove_leftovers(folder, name)
    return pointer


def _intact(pointer: Path) -> str:
    return f"the previous checkpoint {pointer} is intact" if pointer.exists() else "nothing was overwritten"


def load_checkpoint(folder: Path, name: str) -> dict[str, Any]:
    """Read a checkpoint that :func:`save_checkpoint` wrote. No code of the file is run.

    Raises:
        InputError: it is missing, cut short, a half of it does not have the checksum that the JSON names, or it is none
            of this program's, whatever else it may be.
    """
    pointer = folder / f"{name}.json"
    if not pointer.is_file():
        present = sorted(path.stem for path in folder.glob("*.json"))
        raise InputError(f"{folder}: no checkpoint '{name}'; there is {', '.join(present) or 'none'}")
    try:
        text = read_text(pointer)
        document = parsed_json(text, str(pointer))
    except InputError as error:
        raise InputError(f"{error}; it is not a checkpoint of this program") from error
    try:
        tensor_file = _tensor_file(folder, document["tensors"], pointer)
        _check_values(document, pointer)
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
        if read_text(pointer) != text:  # a training has saved the next one in the meantime
            return load_checkpoint(folder, name)
        raise InputError(f"{pointer}: its tensor file {error.filename} is missing") from error
    except MemoryError as error:
        raise InputError(f"{pointer}: its tensors do not fit into this machine's memory") from error
    # what JSON and safetensors may hold and a checkpoint does not has no common class of errors
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError, SafetensorError) as error:
        reason = f"{type(error).__name__}: {first_words(error, 200)}"
        raise InputError(f"{pointer}: not a checkpoint of this program ({reason})") from error
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


def _check_values(document: dict[str, Any], pointer: Path) -> None:
    """Refuse a JSON half that was changed; one of an earlier version has no checksum."""
    unknown = sorted(set(document) - {"tensors", "state", "sha256", _OWN_SHA256})
    if unknown:
        raise KeyError(f"unknown key {unknown[0]!r:.50}")
    expected = document.pop(_OWN_SHA256, None)
    if expected is not None and expected != _sha256_of_values(document):
        raise InputError(f"{pointer}: the content does not match its own checksum; the file is damaged")


def _sha256_of_values(document: dict[str, Any]) -> str:
    """Of the values and not of the text, whose spaces and line ends may change on the way to another machine."""
    return hashlib.sha256(json.dumps(document, separators=(",", ":")).encode()).hexdigest()


def _content(file: Path) -> bytes:
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{file}: is no regular file, so it is not read")
    # a file with holes takes no room on the disk and any amount of memory
    if status.st_size > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        raise InputError(f"{file}: its {status.st_size:,} bytes do not fit into this machine's memory")
    return file.read_bytes()


def remove_leftovers(folder: Path, name: str) -> None:
    """Remove what a killed writer left, and the tensors of the checkpoint before the one ``NAME.json`` points at.

    Only files with names that a writer of this checkpoint makes: others in the folder are somebody's.
    """
    tensors = re.compile(rf"{re.escape(name)}\.[^.]+\.[0-9a-f]{{8}}\.safetensors")
    files = [file for file in folder.iterdir() if file.name.startswith(f"{name}.")] if folder.is_dir() else []
    pointer = folder / f"{name}.json"
    for file in files:
        if file.suffix == ".tmp" and (file.stem == pointer.name or tensors.fullmatch(file.stem)):
            file.unlink(missing_ok=True)
    try:
        used = json.loads(pointer.read_text())["tensors"]
    except FileNotFoundError:
        used = None
    except (OSError, ValueError, KeyError, TypeError):
        return  # a damaged pointer: whoever mends it needs the tensors
    for file in files:
        if tensors.fullmatch(file.name) and file.name != used:
            file.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes, shared: bool = False) -> None:
    """Replace ``path`` by ``content`` in one step: readers see the old file or the new one, whole.

    Args:
        path: the file.
        content: all of it.
        shared: several processes may write it at once, and none has a lock. Else a temporary file has the same name in
            all of them, so that whoever comes after a kill removes it.

    Raises:
        InputError: the disk is full; the file that was there is untouched.
    """
    try:
        _replace(path, content, temporary=own_temporary(path) if shared else None)
    except OSError as error:
        intact = "the file that was there is intact" if path.exists() else "nothing was overwritten"
        raise disk_error(error, path, intact) from error


def own_temporary(path: Path, ending: str = ".tmp") -> Path:
    """A name beside ``path`` that nobody else takes: containers and machines on one disk count processes alike.

    It does not hold that of ``path``, which may be as long as a name can be.
    """
    return path.with_name(f".{uuid.uuid4().hex}{ending}")


def replace_file(temporary: Path, path: Path) -> None:
    """Rename so that a power cut leaves the old file or the new one, whole, and never neither."""
    flush(temporary)
    os.replace(temporary, path)
    flush(path.parent)


def make_folder(folder: Path) -> None:
    """With its parents; a new one is still there after a power cut."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        flush(folder.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Write, without waiting for the disk.

    What is there is replaced and never written into: it may be a link that somebody put there.
    """
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        file.write(content)


def _replace(path: Path, content: bytes, sha256: str | None = None, temporary: Path | None = None) -> None:
    """Write beside ``path`` and rename; with ``sha256`` only if the disk gives back a file of this checksum."""
    temporary = temporary or path.with_name(path.name + ".tmp")
    try:
        write_bytes(temporary, content)
        if sha256 is not None and _sha256_on_disk(temporary) != sha256:
            raise NotWritten(f"{path}: what was written came back changed when it was read again", "check the disk")
        replace_file(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _sha256_on_disk(path: Path) -> str:
    flush(path)
    with open(path, "rb") as file:
        if hasattr(os, "posix_fadvise"):  # else the answer is what memory holds, not the disk
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot, for folders mostly
            raise
    finally:
        os.close(descriptor)


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
