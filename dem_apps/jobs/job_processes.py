"""Trainings as processes, which a search or a grid starts from several threads and ends together."""

from __future__ import annotations

import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from dem_apps.jobs.study import FileLock


class NotStarted(Exception):
    """:meth:`Subprocesses.stop` was called before."""


class Subprocesses:
    """Runs commands, from as many threads as wanted; :meth:`stop` ends those that are running.

    Args:
        environment: of every process.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._running: set[subprocess.Popen[bytes]] = set()
        self._mutex = threading.Lock()
        self.stopped = False

    def run(self, command: Sequence[str], log: Path, locks: Sequence[FileLock]) -> int:
        """Run a command to its end.

        Args:
            command: and its arguments.
            log: takes the command line and all that is printed, after what stands there already.
            locks: inherited by the process: they are held while it lives, even if this one is killed.

        Returns:
            its exit status; minus the signal's number if a signal killed it.

        Raises:
            NotStarted: :meth:`stop` was called before.
        """
        with open(log, "ab") as output:
            output.write(f"$ {shlex.join(command)}\n".encode())
            output.flush()
            with self._mutex:
                if self.stopped:
                    raise NotStarted
                process = subprocess.Popen(
                    command, env=self._environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    pass_fds=[lock.fileno() for lock in locks],
                )  # fmt: skip
                self._running.add(process)
            status = process.wait()
        with self._mutex:
            self._running.discard(process)
        return status

    def stop(self) -> None:
        """End the processes that are running, each after it has saved, and start no more."""
        with self._mutex:
            self.stopped = True
            running = list(self._running)
            for process in running:
                process.terminate()
        for process in running:
            process.wait()


def ending_signal(status: int) -> int | None:
    """The signal that ended a training, killed or after it had saved; None if it ended by itself.

    >>> ending_signal(-9), ending_signal(143), ending_signal(2)
    (9, 15, None)
    """
    if status < 0:
        return -status
    # what run_command makes of Ctrl-C and SIGTERM
    return status - 128 if status - 128 in (signal.SIGINT, signal.SIGTERM) else None
