"""Where jobs run: the one interface between a grid or a search and what starts its trainings.

:class:`LocalExecutor` has processes on this machine. Another one, such as a cluster's, gives the same three methods. It
promises that nobody else runs a job while its claim is held, and that the job's run folder is here when it has ended.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from dem_apps.jobs.job import Job, JobFailed, JobKilled
from dem_apps.runtime.file_lock import FileLock
from dem_apps.runtime.safe_io import opened_to_append


class Claim(Protocol):
    """The right to run a job, which is gone at the latest with all who hold it."""

    def release(self) -> None:
        """Give it back."""
        ...

    def fileno(self) -> int:
        """An open file that stands for it, for a process to inherit."""
        ...


class Executor(Protocol):
    """Runs jobs, from as many threads as wanted."""

    def claim(self, path: Path) -> Claim | None:
        """Take what a lock file stands for, such as :attr:`Job.lock`; None while somebody else has it.

        Somebody else may be another command, or a training that outlived its command.
        """
        ...

    def run(self, job: Job, claims: Sequence[Claim]) -> None:
        """Return when a job has a result; at once where it has one already.

        Args:
            job: what to run, from its last checkpoint if it has one.
            claims: of the job, and whatever else is to stay taken while it runs, even if this process is killed.

        Raises:
            JobFailed: it ended without a result.
            JobKilled: a signal ended it, or :meth:`stop` was called.
        """
        ...

    def stop(self) -> None:
        """End what is running, each job after it has saved, and start no more."""
        ...


class LocalExecutor:
    """Jobs are processes on this machine, which inherit their claims.

    Args:
        environment: variables of every process, over those of this one.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._mutex = threading.Lock()
        self._stopped = False

    def claim(self, path: Path) -> FileLock | None:
        """See :meth:`Executor.claim`."""
        return file_claim(path)

    def run(self, job: Job, claims: Sequence[Claim]) -> None:
        """See :meth:`Executor.run`."""
        if job.scores() is not None:
            return
        judge(job, self._status(job, claims))

    def stop(self) -> None:
        """See :meth:`Executor.stop`."""
        with self._mutex:
            self._stopped = True
            running = list(self._running)
            for process in running:
                process.terminate()
        for process in running:
            process.wait()

    def _status(self, job: Job, claims: Sequence[Claim]) -> int:
        """Run the process to its end; its exit status, minus the signal's number if a signal killed it."""
        command = job.command()
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with opened_to_append(job.log) as output:
            with self._mutex:
                if self._stopped:
                    raise JobKilled("stopped")
                output.write(f"$ {shlex.join(command)}\n".encode())
                output.flush()
                process = subprocess.Popen(
                    command, env=self._environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    pass_fds=[claim.fileno() for claim in claims],
                )  # fmt: skip
                self._running.add(process)
            status = process.wait()
        with self._mutex:
            self._running.discard(process)
        return status


def file_claim(path: Path) -> FileLock | None:
    """The lock on a file, whose folder is made if missing; None while somebody else has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    return lock if lock.acquire(wait=False) else None


def judge(job: Job, status: int) -> None:
    """Return if a process that has ended with ``status``, minus a signal's number, has left a result.

    Raises:
        JobFailed: it has not.
        JobKilled: a signal ended it.
    """
    output = f"(all of its output: {job.log})"
    if (number := _ending_signal(status)) is not None:
        raise JobKilled(f"signal {number} {output}")
    if status != 0:
        raise JobFailed(f"status {status}, {_last_line(job.log)} {output}")
    if job.scores() is None:
        raise JobFailed(f"ended without an eval.json {output}")


def one_thread() -> dict[str, str]:
    """For small networks on a CPU, where more threads than one only get in each other's way."""
    return {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _ending_signal(status: int) -> int | None:
    """The signal that ended a training, killed or after it had saved; None if it ended by itself.

    >>> _ending_signal(-9), _ending_signal(143), _ending_signal(2)
    (9, 15, None)
    """
    if status < 0:
        return -status
    # what run_command makes of Ctrl-C and SIGTERM
    return status - 128 if status - 128 in (signal.SIGINT, signal.SIGTERM) else None


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "nothing was printed"
