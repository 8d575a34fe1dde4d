"""Errors made by input, and how a command reports them: one sentence, exit status 2, no stack trace."""

from __future__ import annotations

import difflib
import errno
import io
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar

from dem_apps.terminal import printable

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
#: Characters of a message: whatever it repeats, it stays a sentence.
_LONGEST = 4000
#: What is wrong with a path that somebody gave, as long as the system names the path.
_PATH_ERRORS = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP,
    errno.ENAMETOOLONG,
)  # fmt: skip


class InputError(ValueError):
    """A mistake in what the user gave: the message says what, where, and what would be right.

    It is one line, and safe to print whatever names it repeats (:func:`dem_apps.terminal.printable`).
    """

    #: The exit status of a command that ends with it.
    status: ClassVar[int] = 2

    def __init__(self, message: str) -> None:
        text = printable(message)
        super().__init__(text if len(text) <= _LONGEST else text[:_LONGEST] + "…")


class NotFiniteError(InputError):
    """Training met a number that is none (NaN or infinite) and has stopped before anything was spoilt by it."""

    status = 1


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``; did you mean 'adadem'?``, or an empty string when nothing known is close."""
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def disk_error(error: OSError, path: Path, intact: str) -> OSError | InputError:
    """The sentence for a disk that is full while ``path`` is written; other errors are passed through.

    ``intact`` says what is still safe, so that nobody deletes it in a hurry.
    """
    if error.errno in _DISK_FULL:
        return InputError(f"{path}: no space left on the disk while writing; {intact}; free some space and run again")
    return error


def run_command(main: Callable[[], None]) -> None:
    """Run a command's ``main`` and turn input errors into one line on stderr and exit status 2.

    Training that stopped at a number that is none ends with 1. Ctrl-C and SIGTERM end with 130 and 143 as shells
    expect; ``main`` has the chance to clean up before.
    """
    signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal without UTF-8, or a name that has none, is no reason to end with a stack trace
            stream.reconfigure(errors="backslashreplace")
    try:
        main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.status)
    except OSError as error:
        print(f"error: {_of_a_path(error)}", file=sys.stderr)
        sys.exit(2)
    except MemoryError as error:
        why = printable(str(error)) or "the system gave no more"
        print(f"error: not enough memory ({why}); smaller images, batches or settings need less", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _of_a_path(error: OSError) -> str:
    """The sentence for what the system says about a path; an error that is not about one is a bug and goes on."""
    if error.errno in _DISK_FULL:
        where = error.filename or "the run folder"
        return printable(f"{where}: no space left on the disk; free some space and run again")
    if error.errno not in _PATH_ERRORS or error.filename is None:
        raise error
    return printable(f"{error.filename}: {error.strerror}; give another path")


def _terminate(_signal: int, _frame: object) -> None:
    sys.exit(143)
