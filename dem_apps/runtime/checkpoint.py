"""Checkpoints: one file each by ``torch.save``, replaced in one step and read without running code of it."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dem_apps.errors import InputError, NotFiniteError, first_words
from dem_apps.reduction import all_finite
from dem_apps.runtime.files import regular_file, write_atomically

SUFFIX = ".pt"
#: Key of a tensor that stands for a numpy array, which ``weights_only`` does not read.
_ARRAY = "__array__"
#: The attribute of a folder in a zip.
_FOLDER = 0x10


def save_checkpoint(folder: Path, name: str, state: dict[str, Any]) -> Path:
    """Write ``state`` as the checkpoint ``name``, such as ``last``, which is replaced in one step.

    It is nested dicts, lists and tuples of tensors, numpy arrays and plain values, with an int ``step``. Raises
    InputError: the disk is full; NotFiniteError: a NaN or infinite value. The previous checkpoint is intact.
    """
    file = folder / f"{name}{SUFFIX}"
    content = io.BytesIO()
    torch.save(_plain(state, file), content)
    folder.mkdir(exist_ok=True)
    write_atomically(file, content.getvalue())
    return file


def load_checkpoint(folder: Path, name: str) -> dict[str, Any]:
    """Read a checkpoint that :func:`save_checkpoint` wrote, onto the CPU; an InputError where that is impossible."""
    file = folder / f"{name}{SUFFIX}"
    if not file.is_file():
        present = sorted(path.stem for path in folder.glob(f"*{SUFFIX}"))
        raise InputError(
            f"{folder}: no checkpoint '{name}'; there is {', '.join(present) or 'none'}"
        )
    try:
        state = _restored(read_saved(file))
        if (
            not isinstance(state, dict)
            or not isinstance(state.get("step"), int)
            or state["step"] < 0
        ):
            raise ValueError("no mapping with a 'step'")
    except Exception as error:  # zipfile and unpickling raise nearly anything for a damaged file
        reason = f"{type(error).__name__}: {first_words(error)}"
        raise InputError(
            f"{file}: damaged, or not a checkpoint of this program ({reason})"
        ) from error
    return state


def read_saved(file: Path) -> Any:
    """Content of a ``torch.save`` file, on the CPU, checksums compared, no code run; a damaged one raises anything."""
    with regular_file(file).open("rb") as opened:
        zipped = opened.read(2) == b"PK"
    if zipped:
        with zipfile.ZipFile(file) as archive:
            parts = {part.filename.partition("/")[2]: part for part in archive.infolist()}
        # by torch's reader: where two parts have one name, or a file two directories, Python's takes another of them
        reader = torch._C.PyTorchFileReader(str(file))
        for name in reader.get_all_records():
            # torch packs nothing, and of what is marked as a folder it reads whatever its memory holds
            if (part := parts[name]).compress_type or part.external_attr & _FOLDER:
                raise ValueError(f"packed, or a folder: {name}")
            if zlib.crc32(reader.get_record(name)) != part.CRC:
                raise ValueError(f"wrong checksum of {name}")
    return torch.load(file, map_location="cpu", weights_only=True)


@contextmanager
def fitting(where: str) -> Iterator[None]:
    """Around code that takes the content of a file: errors about it become one sentence."""
    try:
        yield
    except (InputError, OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of any library, such as an environment's
        reason = f"{type(error).__name__}: {first_words(error, 300)}"
        raise InputError(f"{where}: a value does not fit this run ({reason})") from error


def load_state(part: Any, state: Any, where: str) -> None:
    """``part.load_state_dict(state)`` of a module, optimiser or scaler; torch's sentence where it does not fit."""
    with fitting(where):
        part.load_state_dict(state)


def _plain(value: Any, file: Path, path: str = "") -> Any:
    """``value`` with finite tensors on the CPU in place of tensors and arrays; ``path`` names it in errors."""
    if isinstance(value, dict):
        return {key: _plain(item, file, f"{path}/{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_plain(item, file, f"{path}/{index}") for index, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, np.ndarray):
        if not value.flags.writeable or min(value.strides, default=0) < 0:
            value = value.copy()  # torch takes no such array
        return {_ARRAY: _plain(torch.from_numpy(value), file, path)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor):
        if not all_finite([value]):
            intact = (
                f"the previous checkpoint {file} is intact"
                if file.exists()
                else "nothing was overwritten"
            )
            raise NotFiniteError(
                f"{file}: '{path}' holds NaN or infinite values and is not saved; {intact}"
            )
        # in its own order in memory, on which the rounding of a sum depends
        return value.detach().cpu().clone()
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__} at '{path}'")


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        array = value.get(_ARRAY)
        return (
            array.numpy()
            if array is not None
            else {key: _restored(item) for key, item in value.items()}
        )
    if isinstance(value, (list, tuple)):
        return type(value)(_restored(item) for item in value)
    return value
