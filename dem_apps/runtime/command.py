"""How a command ends: done, or with one sentence and an exit status, without a stack trace for a mistake in input."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from dem_apps.errors import DISK_FULL, InputError, Interrupted, is_out_of_memory, printable_lines
from dem_apps.runtime.signals import SIGNALS

#: Other errors of torch that are no bugs: the message, what it means, and the exit status.
_OF_TORCH = (
    (
        r"shared memory|DataLoader worker .*(killed|exited)",
        "a process that reads images was lost or had no shared memory ({}); --workers 0 needs none, "
        "and Docker's --shm-size gives more; --resume goes on",
        2,
    ),
    (
        r"gloo/transport/|ncclRemoteError",
        "this process lost its connection to another one, which ended or cannot be reached ({}); --resume goes on",
        1,
    ),
)


class _Escaped:
    """A stream that writes an escape in place of what a terminal would obey: names come from files."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write lines; one may begin with a carriage return, as the bars of downloads do."""
        line = text.removeprefix("\r")
        written: int = self.stream.write(text[: len(text) - len(line)] + printable_lines(line))
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def run_command(main: Callable[[], None]) -> None:
    """Run ``main``; input errors are a line on stderr and exit status 2, values not finite 1, signals 130 and 143."""
    output, errors = sys.stdout, sys.stderr
    for stream in (output, errors):
        # a character without a code there is printed as an escape
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = _Escaped(output), _Escaped(errors)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    thread_failed, threading.excepthook = threading.excepthook, _thread_failed
    signal.signal(signal.SIGTERM, _terminate)
    try:
        try:
            main()
        finally:  # a launcher may send more of them, also while an error is told, and nothing is left to stop
            for number in before:
                signal.signal(number, signal.SIG_IGN)
    except (Exception, KeyboardInterrupt) as error:
        sentence, status = _ending(error)
        if isinstance(error, BrokenPipeError):
            # else Python tells at its end that it cannot write the rest
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        if sentence:
            print(sentence, file=sys.stderr, flush=True)
        sys.exit(status)
    finally:
        sys.stdout, sys.stderr = output, errors
        threading.excepthook = thread_failed
        for number, handler in before.items():
            signal.signal(number, handler)


def _ending(error: BaseException) -> tuple[str, int]:
    """The sentence and the exit status for an error; one that is a bug is raised again."""
    if isinstance(error, KeyboardInterrupt):
        text = str(error) if isinstance(error, Interrupted) else "interrupted"
        return text, 128 + getattr(error, "number", signal.SIGINT)
    if isinstance(error, InputError):
        return f"error: {error}", error.status
    if isinstance(error, OSError):
        return _of_the_system(error)
    return _of_a_library(error)


def _of_the_system(error: OSError) -> tuple[str, int]:
    """Do the part of :func:`_ending` for an error about a file or the output."""
    if isinstance(error, BrokenPipeError):
        sentence = "the reader of this command's output has ended; continue a run with --resume"
        return f"error: {sentence}", 128 + signal.SIGPIPE
    if error.errno in DISK_FULL:
        where = error.filename or "the folder that is written to"
        return f"error: {where}: no space left on the disk; free some space and run again", 2
    if error.filename is None:
        raise error
    return f"error: {error.filename}: {error.strerror}; give another path", 2


def _of_a_library(error: BaseException) -> tuple[str, int]:
    """Do the part of :func:`_ending` for an error of torch or of an allocator."""
    text = str(error)
    reason = text.strip().rpartition("\n")[2] or type(error).__name__
    for message, sentence, status in _OF_TORCH:
        if isinstance(error, RuntimeError) and re.search(message, text):
            return f"error: {sentence.format(reason)}", status
    if not is_out_of_memory(error):
        raise error
    less = "smaller images, batches or settings need less"
    return f"error: not enough memory ({reason}); {less}", 2


def command_needs(extra: str, *modules: str) -> None:
    """End the process with one sentence if it is a command of this package without the modules of its extra.

    Called by a package's ``__init__``, which ``python -m`` imports while ``sys.argv[0]`` is still ``-m``: importing a
    part of the package needs less than the commands.
    """
    missing = ", ".join(module for module in modules if find_spec(module) is None)
    if sys.argv[:1] == ["-m"] and missing:
        needed = f"this command needs {missing}, not installed here; pip install -e '.[{extra}]'"
        print(f"error: {needed}", file=sys.stderr)
        sys.exit(2)


def _terminate(number: int, _frame: object) -> None:
    raise Interrupted(number, "terminated")


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    # TensorBoard's thread; the main thread meets the same full disk, or lost folder, at its next write
    if not isinstance(failure.exc_value, OSError):
        threading.__excepthook__(failure)
