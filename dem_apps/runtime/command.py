"""How a command ends: done, or with one sentence and an exit status, without a stack trace for a mistake in input."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, NoReturn

from dem_apps.errors import (
    DISK_FULL,
    UNWRITABLE,
    InputError,
    Interrupted,
    first_words,
    printable,
    printable_lines,
)

#: Errors about a path that the user gave, where the system names the path.
_PATH_ERRORS = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)
#: Messages of torch's allocators on a CPU, on a GPU, and where the size of a tensor is no number any more.
_NO_MEMORY = re.compile(
    r"not enough memory|allocate memory|out of memory|calculation overflowed|multiplication overflow"
)
#: Of a process whose connection to another one broke.
_LOST = ("gloo/transport/", "ncclRemoteError")
#: Of torch's DataLoader.
_NO_READER = re.compile(r"shared memory|DataLoader worker .*(killed|exited)")


class _Escaped:
    """A stream that writes an escape in place of what a terminal would obey: names come from files."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write lines."""
        written: int = self.stream.write(printable_lines(text))
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def run_command(main: Callable[[], None]) -> None:
    """Run ``main``; input errors are a line on stderr and exit status 2, values not finite 1, signals 130 and 143."""
    for stream in (sys.stdout, sys.stderr):
        # a character without a code there is printed as an escape
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    standard_output, sys.stdout = sys.stdout, _Escaped(sys.stdout)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    thread_failed, threading.excepthook = threading.excepthook, _thread_failed
    signal.signal(signal.SIGTERM, _terminate)
    try:
        try:
            main()
        finally:  # a launcher may send more of them, also while an error is told, and nothing is left to stop
            for number in before:
                signal.signal(number, signal.SIG_IGN)
    except InputError as error:
        _end(f"error: {error}", error.status)
    except BrokenPipeError:
        # else Python tells at its end that it cannot write the rest
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), standard_output.fileno())
        said = "what reads this command's output has ended, and so has the command; a run goes on with --resume"
        _end(f"error: {said}", 128 + signal.SIGPIPE)
    except OSError as error:
        _end(f"error: {_of_a_path(error)}", 2)
    except (MemoryError, RuntimeError) as error:
        if _NO_READER.search(str(error)):
            reason = str(error).strip().splitlines()[-1]
            lost = f"a process that reads images was lost or had no shared memory ({reason})"
            _end(
                f"error: {lost}; --workers 0 needs none, and Docker's --shm-size gives more; --resume goes on",
                2,
            )
        if any(mark in str(error) for mark in _LOST):
            of = f"process {os.environ.get('RANK', '?')} of {os.environ.get('WORLD_SIZE', '?')}"
            _end(
                f"error: {of} lost its connection to another one, which ended or cannot be reached; --resume goes on",
                1,
            )
        if not is_out_of_memory(error):
            raise
        _end(
            f"error: not enough memory ({first_words(error)}); smaller images, batches or settings need less",
            2,
        )
    except KeyboardInterrupt as interruption:
        if not isinstance(interruption, Interrupted):
            interruption = Interrupted(signal.SIGINT, "interrupted")
        _end(str(interruption), 128 + interruption.number)
    finally:
        sys.stdout = standard_output
        threading.excepthook = thread_failed
        for number, handler in before.items():
            signal.signal(number, handler)


def command_needs(extra: str, *modules: str) -> None:
    """End the process with one sentence if it is a command of this package without the modules of its extra.

    Called by a package's ``__init__``, which ``python -m`` imports while ``sys.argv[0]`` is still ``-m``: importing a
    part of the package needs less than the commands.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if sys.argv[:1] == ["-m"] and missing:
        names = ", ".join(missing)
        print(
            f"error: this command needs {names}, not installed here; pip install -e '.[{extra}]'",
            file=sys.stderr,
        )
        sys.exit(2)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocator of Python, numpy or torch, on a CPU or a GPU, has no more."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error)))
    )


def _of_a_path(error: OSError) -> str:
    """The sentence for what the system says about a path; an error that is not about one is a bug and goes on."""
    if error.errno in DISK_FULL:
        where = error.filename or "the folder that is written to"
        return printable(f"{where}: no space left on the disk; free some space and run again")
    if error.errno not in _PATH_ERRORS or error.filename is None:
        raise error
    return printable(f"{error.filename}: {error.strerror}; give another path")


def _terminate(number: int, _frame: object) -> None:
    raise Interrupted(number, "terminated")


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    # of TensorBoard's thread; the main thread meets the same full disk, or lost folder, at its next write
    error = failure.exc_value
    if not (isinstance(error, OSError) and error.errno in (*DISK_FULL, *UNWRITABLE, errno.ENOENT)):
        threading.__excepthook__(failure)


def _end(sentence: str, status: int) -> NoReturn:
    if sentence:
        print(sentence, file=sys.stderr, flush=True)
    sys.exit(status)
