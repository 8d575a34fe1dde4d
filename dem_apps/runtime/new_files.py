"""Files that are never overwritten, and folders that have to be new: what is true when one looks and when one writes.

A command looks at its output before minutes of work. Another one may have made the file by the time of the write, so
the write itself has to be the one that fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dem_apps.errors import DISK_FULL, InputError, NotWritten, disk_error
from dem_apps.runtime.checkpoint import flush, own_temporary, write_bytes


def claim(path: Path, flag: str) -> None:
    """Make an empty file that was not there; of several processes that try, one succeeds.

    Raises:
        InputError: there is one, or a link of that name.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError as error:
        raise _taken(path, flag) from error


def write_new(path: Path, content: bytes, flag: str) -> None:
    """Write a file that was not there, whole or not at all.

    Raises:
        InputError: there is one by now, or the disk is full.
    """
    temporary = own_temporary(path)
    try:
        write_bytes(temporary, content)
        place(temporary, path, flag)
    except OSError as error:
        raise disk_error(error, path, "nothing was overwritten") from error
    finally:
        temporary.unlink(missing_ok=True)


def place(file: Path, path: Path, flag: str) -> None:
    """Rename to a name that is not taken.

    Raises:
        InputError: it is taken by now; the file keeps its own name.
    """
    flush(file)
    try:
        os.link(file, path)
    except FileExistsError as error:
        raise _taken(path, flag) from error
    except OSError:  # a file system without such links: nobody sees the empty file for long
        claim(path, flag)
        os.replace(file, path)
    else:
        file.unlink()
    flush(path.parent)


def _taken(path: Path, flag: str) -> InputError:
    return InputError(f"{flag}: {path} exists already and is never overwritten; give another name")


@contextmanager
def into_new_folder(out: Path, flag: str = "--out") -> Iterator[None]:
    """Around writing into a folder that has to be new or empty: the same command would refuse what a full disk left.

    Raises:
        NotWritten: the disk is full, with what makes the command work again.
    """
    incomplete, then = f"{out} is incomplete", f"run again after removing it, or with another {flag}"
    try:
        yield
    except NotWritten as error:
        raise NotWritten(f"{error.problem}; {incomplete}", error.remedy, then) from error
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        where = error.filename or out
        raise NotWritten(f"{where}: no space left on the disk while writing; {incomplete}", then=then) from error
