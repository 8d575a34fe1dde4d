"""Files: only regular ones are opened; new files and folders appear whole and never replace what a user made."""

from __future__ import annotations

import fcntl
import filecmp
import functools
import json
import math
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError, disk_error, first_words, refused

#: Bytes of a text that are read at most.
LARGEST_TEXT = 16_000_000
#: Names of this module's temporary files and folders.
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")


def regular_file(file: Path, inside: Path | None = None, most: float = math.inf) -> Path:
    """The file, if it is a regular one of ``most`` bytes at most, ``inside`` a folder with its links followed.

    Raises InputError: a device, a pipe, a folder, or a file that is larger or elsewhere.
    """
    try:
        status = file.stat()
        leads_out = inside is not None and not file.resolve().is_relative_to(inside.resolve())
    except FileNotFoundError as error:
        raise InputError(f"{file}: cannot be read (no such file)") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{file}: cannot be read ({first_words(error)})") from error
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{file}: cannot be read (not a regular file)")
    if leads_out:
        raise InputError(f"{file}: cannot be read (a link to a file outside {inside})")
    if status.st_size > most:
        raise InputError(
            f"{file}: cannot be read ({status.st_size:,} bytes; at most {most:,.0f} are read)"
        )
    return file


def read_text(file: Path, inside: Path | None = None, most: float = LARGEST_TEXT) -> str:
    """The content of a :func:`regular_file` in UTF-8; an InputError where it cannot be read."""
    with refused(lambda why: f"{file}: cannot be read ({why})", OSError, UnicodeError):
        return regular_file(file, inside, most).read_text(encoding="utf-8")


@contextmanager
def whole_file(path: Path, flag: str | None = None) -> Iterator[Path]:
    """A temporary path that becomes ``path`` in one step, not after an error; with ``flag`` never over another file."""
    try:
        with _temporary(path, path.suffix) as temporary:
            yield temporary
            _flush(temporary)
            if flag is None:
                os.replace(temporary, path)
            else:
                _link(temporary, path, flag)
            _flush(path.parent)
    except OSError as error:
        intact = "the file that was there is intact" if path.exists() else "nothing was overwritten"
        raise disk_error(error, path, intact) from error


@contextmanager
def new_folder(path: Path, flag: str) -> Iterator[Path]:
    """An empty folder that becomes ``path`` at the end, not after an error; an InputError where ``path`` is used."""
    refuse_used_folder(path, flag)
    path = Path(os.path.realpath(path))  # a link is kept
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(path, "", folder=True) as temporary:
            yield temporary
            for file in temporary.rglob("*"):
                _flush(file)
            refuse_used_folder(path, flag)
            os.replace(temporary, path)
            _flush(path.parent)
    except OSError as error:
        raise disk_error(error, path, "nothing was overwritten") from error


@contextmanager
def _temporary(path: Path, suffix: str, folder: bool = False) -> Iterator[Path]:
    """A file or folder beside ``path``, removed if left at the end; its lock tells :func:`sweep` that it is in use."""
    _swept_once(path.parent)
    while True:
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp{suffix}")
        if folder:
            temporary.mkdir()
        held = os.open(temporary, os.O_RDONLY | (0 if folder else os.O_CREAT | os.O_EXCL), 0o666)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(held, fcntl.LOCK_EX)
        if temporary.exists():  # not swept before it was locked
            break
        os.close(held)
    try:
        yield temporary
    finally:
        if folder:
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
        os.close(held)


def sweep(folder: Path) -> None:
    """Remove the temporary files and folders that killed processes left in a folder."""
    for left in folder.glob(".*.tmp*") if folder.is_dir() else ():
        with suppress(OSError):  # gone meanwhile, another user's, or in use
            held = os.open(left, os.O_RDONLY) if _TEMPORARY.match(left.name) else -1
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            finally:
                os.close(held)


_swept_once = functools.cache(sweep)


def _link(temporary: Path, path: Path, flag: str) -> None:
    """Give a file its name where this is new; an InputError where there is another file of that name."""
    try:
        if path.exists():
            raise FileExistsError
        os.link(temporary, path)
    except FileExistsError as error:
        if not (path.is_file() and filecmp.cmp(temporary, path, shallow=False)):
            raise InputError(
                f"{flag}: {path} exists already and is never overwritten; give another name"
            ) from error
    except OSError:  # a file system without links
        os.replace(temporary, path)


def write_atomically(path: Path, content: bytes, flag: str | None = None) -> None:
    """Replace ``path`` by ``content``: readers see the old file or the new one, whole. ``flag`` as of whole_file."""
    with whole_file(path, flag) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, document: Any, flag: str | None = None) -> None:
    """Write ``document`` for people to read, as :func:`write_atomically` does."""
    write_atomically(path, (json.dumps(document, indent=2) + "\n").encode(), flag)


def refuse_used_file(path: Path, flag: str, suffix: str | None = None, last: bool = True) -> None:
    """An InputError that names ``flag`` unless ``path`` is new, in a folder that exists, and ends in ``suffix``.

    Of several files only the ``last`` to be written has to be new.
    """
    if suffix is not None and path.suffix != suffix:
        raise InputError(f"{flag}: expected a file ending in {suffix}, got {path}")
    sweep(path.parent)
    if last and (path.exists() or path.is_symlink()):
        raise InputError(
            f"{flag}: {path} exists already and is never overwritten; give another file"
        )
    if not path.parent.is_dir():
        raise InputError(f"{flag}: the folder {path.parent} does not exist")


def refuse_used_folder(path: Path, flag: str) -> None:
    """An InputError that names ``flag`` unless ``path`` is new or an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        what = (
            "holds files already, which are never overwritten" if path.is_dir() else "is no folder"
        )
        raise InputError(f"{flag}: {path} {what}; give a new or empty folder")
    if path.is_mount():
        raise InputError(
            f"{flag}: {path} is where a disk is mounted, and cannot be replaced; give a folder in it"
        )


def new_run_dir(*parts: str) -> Path:
    """Make ``runs/<parts>-<date>-<time>`` below the current folder, with ``-2``, ``-3``, … where it exists."""
    name, number = "-".join([*parts, time.strftime("%Y%m%d-%H%M%S")]), 1
    while True:
        path = Path("runs", f"{name}-{number}" if number > 1 else name)
        number += 1
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            return path


def cache_dir() -> Path:
    """Where files that can be made again are kept: ``$DEM_APPS_CACHE``, else ``dem-apps`` in the user's cache."""
    own = os.environ.get("DEM_APPS_CACHE")
    try:
        return (
            Path(own)
            if own
            else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dem-apps"
        )
    except RuntimeError:  # a user without a home, as in a container
        return Path(_cache_of_this_process(prefix="dem-apps-"))


_cache_of_this_process = functools.cache(tempfile.mkdtemp)


def _flush(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
