"""Commands that are killed at one write after the other, each in a process that begins with everything imported."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Python's audit events of what changes a folder, whatever library does it.
_CHANGES = ("os.rename", "os.link", "os.symlink", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")


def command(module: str, *arguments: str) -> Callable[[], None]:
    """What ``python -m MODULE ARGUMENTS`` does."""

    def run() -> None:
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    return run


def writes(work: Callable[[], None], folder: Path, stop_at: int | None = None) -> tuple[int, list[str]]:
    """Status of a process that does the work in ``folder``, and its writes below it.

    It is killed before number ``stop_at`` of these: a file opened to be written, renamed, linked, removed or flushed.
    """
    journal = folder.with_name(f"{folder.name}.writes")
    child = os.fork()
    if child == 0:
        try:
            _work(work, folder, journal, stop_at)
        finally:
            os._exit(99)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, journal.read_text().splitlines()


def _work(work: Callable[[], None], folder: Path, journal: Path, stop_at: int | None) -> None:
    os.chdir(folder)
    parent, root = os.getpid(), str(folder.resolve())
    seen = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    output = os.open(folder.with_name(f"{folder.name}.output"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    count = 0

    def written(what: str, name: Any) -> None:
        nonlocal count
        path = os.path.abspath(os.fsdecode(name)) if isinstance(name, (str, bytes, os.PathLike)) else ""
        if os.getpid() != parent or not path.startswith(f"{root}/"):
            return
        if count == stop_at:
            os.kill(parent, signal.SIGKILL)
        count += 1
        os.write(seen, f"{what} {os.path.relpath(path, root)}\n".encode())

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if (event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or event in _CHANGES:
            written(event, given[0])

    flush = os.fsync
    sys.stdout = sys.stderr = open(output, "w", buffering=1)  # noqa: SIM115
    sys.addaudithook(hook)
    os.fsync = lambda descriptor: written("flush", os.readlink(f"/proc/self/fd/{descriptor}")) or flush(descriptor)
    try:
        work()
        code: Any = 0
    except SystemExit as end:
        code = end.code or 0
    except Exception:
        traceback.print_exc()
        code = 99
    sys.stdout.flush()
    os._exit(code)
