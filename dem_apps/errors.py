"""Errors made by input, and how a command reports them: one sentence, exit status 2, no stack trace."""

from __future__ import annotations

import difflib
import errno
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from dem_apps.processes import leave_to_launcher, lost_connection, say_once

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class InputError(ValueError):
    """A mistake in what the user gave: the message says what, where, and what would be right."""


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

    Of several processes that a launcher started one prints it; see :mod:`dem_apps.processes`. Ctrl-C and SIGTERM end
    with 130 and 143 as shells expect; ``main`` has the chance to clean up before.
    """
    signal.signal(signal.SIGTERM, _terminate)
    try:
        main()
    except InputError as error:
        say_once(f"error: {error}")
        sys.exit(2)
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        where = error.filename or "the run folder"
        say_once(f"error: {where}: no space left on the disk; free some space and run again")
        sys.exit(2)
    except RuntimeError as error:
        lost = lost_connection(error)
        if lost is None:
            raise
        say_once(lost)
        leave_to_launcher()
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _terminate(_signal: int, _frame: object) -> None:
    sys.exit(143)
