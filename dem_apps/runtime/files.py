"""Safe reading and writing of files.

Only regular files are opened. New files and folders appear whole and never replace what a user
made.
"""

from __future__ import annotations

import fcntl
import filecmp
import functools
import itertools
import json
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dem_apps.errors import DISK_FULL, InputError, NotWritten, refused

#: Bytes of a text that is read at most.
LARGEST_TEXT = 1 << 30
#: Beginning of the names of folders with a file or folder that is not whole yet.
DRAFT = ".dem-apps-"


def regular_file(file: Path, inside: Path | None = None, most: float = math.inf) -> Path:
    """Check that a file is a regular one, which is safe to open.

    Args:
        file: the file.
        inside: the folder that it has to lie in, with links followed.
        most: its bytes at most.

    Returns:
        The file.

    Raises:
        InputError: a device, a pipe, a folder, or a file that is missing, larger or elsewhere.
    """
    with refused(lambda why: f"{file}: cannot be read ({why})", OSError, ValueError):
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        if inside is not None and not file.resolve().is_relative_to(inside.resolve()):
            raise ValueError(f"a link to a file outside {inside}")
        if status.st_size > most:
            raise ValueError(f"{status.st_size:,} bytes; at most {most:,.0f} are read")
    return file


def read_text(file: Path, inside: Path | None = None) -> str:
    """Return the content of a :func:`regular_file` in UTF-8.

    Raises:
        InputError: the file cannot be read.
    """
    with refused(lambda why: f"{file}: cannot be read ({why})", OSError, UnicodeError):
        return regular_file(file, inside, LARGEST_TEXT).read_text(encoding="utf-8")


@contextmanager
def whole_file(path: Path, flag: str | None = None) -> Iterator[Path]:
    """Write a file that appears whole, and not after an error.

    Args:
        path: the file.
        flag: names the file in an error; if given, another file of that name is never replaced.

    Yields:
        A temporary path to write to.

    Raises:
        InputError: there is another file of that name, or the disk is full.
    """
    with _writing(path), _draft(path) as draft:
        yield draft
        # else a loss of power may leave an empty file of that name
        with open(draft, "rb") as written:
            os.fsync(written.fileno())
        # a killed command may have left the same file
        if flag and path.exists() and not filecmp.cmp(draft, path, shallow=False):
            raise InputError(
                f"{flag}: {path} exists already and is never overwritten; give another name"
            )
        os.replace(draft, path)


@contextmanager
def new_folder(path: Path, flag: str) -> Iterator[Path]:
    """Write a folder that appears whole, and not after an error.

    Args:
        path: the folder.
        flag: names it in errors.

    Yields:
        An empty folder to write to.

    Raises:
        InputError: the folder is used, or the disk is full.
    """
    refuse_used_folder(path, flag)
    path = Path(os.path.realpath(path))  # a link is kept
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _draft(path) as draft:
            draft.mkdir()
            yield draft
            refuse_used_folder(path, flag)
            os.replace(draft, path)


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Yield a free path of the same name in a new folder beside ``path``, which is removed at the end.

    The folder's lock tells :func:`sweep` that it is in use.
    """
    _swept_once(path.parent)
    with tempfile.TemporaryDirectory(prefix=DRAFT, suffix=".tmp", dir=path.parent) as folder:
        held = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(held, fcntl.LOCK_EX)
            yield Path(folder, path.name)
        finally:
            os.close(held)


def sweep(folder: Path) -> None:
    """Remove the drafts that killed processes left in a folder."""
    for left in folder.glob(f"{DRAFT}*.tmp/"):
        with suppress(OSError):  # gone meanwhile, another user's, or in use
            held = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(held)


_swept_once = functools.cache(sweep)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raise NotWritten if the disk gets full while the ``with`` block writes ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            problem = f"{path}: no space left on the disk while writing; nothing was overwritten"
            raise NotWritten(problem) from error
        raise


def write_atomically(path: Path, content: bytes, flag: str | None = None) -> None:
    """Replace ``path`` by ``content``: readers see the old file or the new one, whole.

    ``flag`` is described at :func:`whole_file`.
    """
    with whole_file(path, flag) as draft:
        draft.write_bytes(content)


def write_json(path: Path, document: Any, flag: str | None = None) -> None:
    """Write ``document`` for people to read, as :func:`write_atomically` does."""
    write_atomically(path, (json.dumps(document, indent=2) + "\n").encode(), flag)


def refuse_used_file(path: Path, flag: str, suffix: str | None = None) -> None:
    """Refuse a file to write to that is there, or cannot be made.

    Args:
        path: the file.
        flag: names it in errors.
        suffix: what it has to end in.

    Raises:
        InputError: the file is there, has another ending, or its folder does not exist.
    """
    if suffix is not None and path.suffix != suffix:
        raise InputError(f"{flag}: expected a file ending in {suffix}, got {path}")
    if not path.parent.is_dir():
        raise InputError(f"{flag}: the folder {path.parent} does not exist")
    sweep(path.parent)
    if path.exists() or path.is_symlink():
        raise InputError(
            f"{flag}: {path} exists already and is never overwritten; give another file"
        )


def refuse_used_folder(path: Path, flag: str) -> None:
    """Refuse ``path`` unless it is new or an empty folder.

    Raises:
        InputError: the folder is used; the error names ``flag``.
    """
    problem = None
    if path.is_mount():
        problem = "is where a disk is mounted, and cannot be replaced; give a folder in it"
    elif path.is_file():
        problem = "is no folder; give a new or empty one"
    elif path.exists() and any(path.iterdir()):
        problem = "holds files already, which are never overwritten; give a new or empty folder"
    if problem:
        raise InputError(f"{flag}: {path} {problem}")


def new_run_dir(*parts: str) -> Path:
    """Make ``runs/<parts>-<date>-<time>`` below the current folder, with ``-2``, ``-3``, … where it exists."""
    name = "-".join([*parts, time.strftime("%Y%m%d-%H%M%S")])
    for number in itertools.count(1):
        path = Path("runs", f"{name}-{number}" if number > 1 else name)
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            break
    return path


def cache_dir() -> Path:
    """Return the folder of files that can be made again.

    It is ``$DEM_APPS_CACHE``, else ``dem-apps`` in the user's cache.
    """
    if folder := os.environ.get("DEM_APPS_CACHE"):
        return Path(folder)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache, "dem-apps")
