"""Checkpoints: one file each by ``torch.save``, replaced in one step and read without running code of it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dem_apps.errors import InputError, NotFiniteError, first_words
from dem_apps.reduction import all_finite
from dem_apps.runtime.documents import Document
from dem_apps.runtime.files import regular_file, write_atomically

SUFFIX = ".pt"
#: Key of a tensor that stands for a numpy array, which ``weights_only`` does not read.
_ARRAY = "__array__"


def save_checkpoint(folder: Path, name: str, state: Document) -> Path:
    """Write a checkpoint, which is replaced in one step.

    Args:
        folder: where checkpoints lie; it is made.
        name: such as ``last``.
        state: nested dicts, lists and tuples of tensors, numpy arrays and plain values, with an int ``step``.

    Returns:
        The file.

    Raises:
        InputError: the disk is full. The previous checkpoint is intact.
        NotFiniteError: a NaN or infinite value. The previous checkpoint is intact.
    """
    file = folder / f"{name}{SUFFIX}"
    content = io.BytesIO()
    torch.save(_plain(state, file), content)
    folder.mkdir(exist_ok=True)
    write_atomically(file, content.getvalue())
    return file


def load_checkpoint(folder: Path, name: str) -> Document:
    """Read a checkpoint that :func:`save_checkpoint` wrote, onto the CPU.

    Args:
        folder: where checkpoints lie.
        name: such as ``last``.

    Returns:
        The state.

    Raises:
        InputError: there is none of that name, or it is damaged.
    """
    file = folder / f"{name}{SUFFIX}"
    if not file.is_file():
        present = ", ".join(sorted(path.stem for path in folder.glob(f"*{SUFFIX}")))
        raise InputError(f"{folder}: has no checkpoint '{name}', but {present or 'none'}")
    # zipfile and unpickling raise nearly anything for a damaged file
    with fitting(str(file), "is damaged, or not a checkpoint of this program"):
        state: Document = _restored(read_saved(file))
        state["step"] = int(state["step"])
    return state


def read_saved(file: Path) -> Any:
    """Content of a ``torch.save`` file, on the CPU, no code run; a damaged one raises anything."""
    return torch.load(regular_file(file), map_location="cpu", weights_only=True)


@contextmanager
def fitting(where: str, problem: str = "a value does not fit this run") -> Iterator[None]:
    """Turn errors about a file's content, raised inside, into one sentence.

    Args:
        where: beginning of the sentence, such as the file's name.
        problem: what is wrong; the library's reason follows in brackets.
    """
    try:
        yield
    except (InputError, OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of any library, such as an environment's
        reason = f"{type(error).__name__}: {first_words(error)}"
        raise InputError(f"{where}: {problem} ({reason})") from error


def load_state(part: Any, state: Any, where: str) -> None:
    """``part.load_state_dict(state)`` of a module, optimiser or scaler; torch's sentence where it does not fit."""
    with fitting(where):
        part.load_state_dict(state)


def _plain(value: Any, file: Path, path: str = "") -> Any:
    """``value`` with finite tensors on the CPU in place of tensors and arrays; ``path`` names it in errors."""
    if isinstance(value, dict):
        return {key: _plain(item, file, f"{path}/{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item, file, f"{path}/{at}") for at, item in enumerate(value))
    if isinstance(value, np.ndarray):
        return {_ARRAY: _plain(_in_its_order(value), file, path)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor):
        if not all_finite([value]):
            raise NotFiniteError(
                f"{file}: '{path}' holds NaN or infinite values and is not saved; "
                "the checkpoint before, if any, is intact"
            )
        # in its own order in memory, on which the rounding of a sum depends
        return value.detach().cpu().clone()
    return value


def _in_its_order(array: np.ndarray) -> Tensor:
    """A copy in the same order in memory, of axes of one entry too: by them torch tells a picture's channels."""
    copied = torch.from_numpy(array.copy(order="K"))
    strides = [
        abs(stride) // array.itemsize if size == 1 else own
        for size, stride, own in zip(array.shape, array.strides, copied.stride(), strict=True)
    ]
    return copied.as_strided(copied.shape, strides)


def _restored(value: Any) -> Any:
    """``value`` with the arrays that :func:`_plain` made tensors of."""
    if isinstance(value, dict):
        if _ARRAY in value:
            return value[_ARRAY].numpy()
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_restored(item) for item in value)
    return value
