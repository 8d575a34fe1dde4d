"""Helpers of several test files and of the processes that they spawn: ``from support import cases, pages``."""

import ast
import inspect
import os
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from dem_apps.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


def cases(*rows: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test once with each row, a tuple or a single value, as its first arguments."""
    tuples = [row if isinstance(row, tuple) else (row,) for row in rows]

    def repeated(test: Callable[..., None]) -> Callable[..., None]:
        names = [*inspect.signature(test).parameters][: len(tuples[0])]
        return pytest.mark.parametrize(names, tuples)(test)

    return repeated


def refuses(sentence: str, call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """The call raises an InputError of one line in which the regular expression is found; returns that line."""
    with pytest.raises(InputError, match=sentence) as refused:
        call(*given, **named)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def same(one: Any, other: Any) -> bool:
    """Whether two states of checkpoints are the same, bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file, by its path in the folder."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def noise(seed: int, width: int, height: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save(file: Path, pixels: NDArray[np.uint8]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)
    return file


def png(
    width: int, height: int, rows: bytes, depth: int = 8, colour: int = 2, palette: bytes = b""
) -> bytes:
    """A PNG that claims a size, whatever is in its packed ``rows``."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    colours = chunk(b"PLTE", palette) if palette else b""
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + colours
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def python(
    *arguments: object,
    folder: Path | None = None,
    status: int = 0,
    by: object = sys.executable,
    **variables: str,
) -> str:
    """What Python prints with these arguments, in a process that has to end with that status."""
    command, environment = [str(by), *map(str, arguments)], os.environ | variables
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == status, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def clone(folder: Path, *without: str) -> None:
    """Copy the files that git knows or does not ignore, but for those below the folders ``without``."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    for name in subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith(without):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
        elif (ROOT / name).is_symlink() and not name.startswith(without):  # to a folder
            (folder / name).symlink_to((ROOT / name).readlink())


def imported_modules(source: str) -> set[str]:
    """Full names of the modules that a source names, wherever in the file; relative imports stay inside their own."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {
                node.module,
                *(f"{node.module}.{alias.name}" for alias in node.names if "." not in node.module),
            }
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "importlib.import_module",
            "__import__",
        ):
            found |= {
                str(argument.value)
                for argument in node.args[:1]
                if isinstance(argument, ast.Constant)
            }
    return found


def imported_packages(source: str) -> set[str]:
    """Top-level packages of :func:`imported_modules`."""
    return {name.split(".")[0] for name in imported_modules(source)}
