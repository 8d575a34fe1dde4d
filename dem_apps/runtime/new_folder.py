"""A folder that is there whole or not at all: it is written beside its place and renamed."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dem_apps.errors import InputError, disk_error


@contextmanager
def new_folder(path: Path, flag: str) -> Iterator[Path]:
    """An empty folder to write to, which becomes ``path`` at the end of the context; after an error nothing is left.

    Args:
        path: new, or an empty folder.
        flag: or argument that named it, for errors.

    Raises:
        InputError: it holds something already, cannot be made, or the disk is full.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise _used(path, flag)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    except OSError as error:
        raise InputError(f"{flag}: {path} cannot be made ({error.strerror}); give another folder") from error
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())  # mkdtemp's own is for nobody else
        _flush(temporary)
        _rename(temporary, path, flag)
    except OSError as error:
        raise disk_error(error, path, "nothing was overwritten") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _rename(temporary: Path, path: Path, flag: str) -> None:
    """An empty folder makes room; what another command has put there since the first look stays."""
    try:
        os.rename(temporary, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise _used(path, flag) from error


def _used(path: Path, flag: str) -> InputError:
    return InputError(f"{flag}: {path} holds files already, which are never overwritten; give a new or empty folder")


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current


def _flush(folder: Path) -> None:
    """Wait until every file is on the disk, so that after a power cut the name stands for all of them."""
    for file in (each for each in folder.rglob("*") if each.is_file()):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
