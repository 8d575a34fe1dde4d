"""A map over processes, for work that needs few imports."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import starmap
from typing import IO, Any, TypeVar

Result = TypeVar("Result")
#: Reads a search path, a function and items, and writes each result. A process that nothing reads from any more ends.
_PROGRAM = """
import pickle, signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
sys.path[:] = pickle.load(sys.stdin.buffer)
function, items = pickle.load(sys.stdin.buffer)
for item in items:
    pickle.dump(function(*item), sys.stdout.buffer)
    sys.stdout.flush()
"""


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def starmap_in_processes(
    function: Callable[..., Result], items: Sequence[tuple[Any, ...]], processes: int
) -> Generator[Result, None, None]:
    """Yields ``function(*item)`` in order; one process is this one. RuntimeError if another one ends early.

    A process imports the function's module and nothing else. multiprocessing does worse: its spawn and forkserver
    import the main module, which may import torch or, in a script without a guard, start again. A fork inherits locks
    of threads and of files, and lives on when its parent is killed.
    """
    if processes == 1:
        yield from starmap(function, items)
        return
    with ExitStack() as running:
        outputs = [
            running.enter_context(_process(function, items[first::processes]))
            for first in range(processes)
        ]
        for index in range(len(items)):
            try:
                result = pickle.load(outputs[index % processes])
            except (EOFError, pickle.UnpicklingError) as error:
                raise RuntimeError(
                    "a process ended before its work was done; see its message above"
                ) from error
            yield result


@contextmanager
def _process(function: Callable[..., Any], items: Sequence[tuple[Any, ...]]) -> Iterator[IO[bytes]]:
    """The output of a process that works through the items; it is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches the parent alone
    )
    with process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            pickle.dump(sys.path, process.stdin)
            pickle.dump((function, items), process.stdin)
            process.stdin.close()
            yield process.stdout
        finally:
            process.kill()
