"""One training as a process: its command line, its run folder and its result."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dem_apps.runtime.files import read_json, required


class JobFailed(Exception):
    """A training ended without a result. The message says how, and where its output is."""


class JobKilled(JobFailed):
    """A signal ended it; the next start of the command continues it."""


class JobTaken(JobKilled):
    """Another command runs it."""


@dataclass(frozen=True)
class Job:
    """One training: ``python -m MODULE FLAGS --run-dir RUN [--resume]``."""

    name: str  #: in tables and messages
    module: str  #: a training command, such as ``seg.train``
    flags: tuple[str, ...]  #: all but ``--run-dir`` and ``--resume``
    run: Path  #: its run folder; beside it lie ``RUN.log`` and ``RUN.lock``
    metric: str  #: the number in ``eval.json`` that scores the run; higher is better

    @property
    def log(self) -> Path:
        """The file that takes the command line and the output of all starts."""
        return self.run.with_name(f"{self.run.name}.log")

    def scores(self) -> dict[str, Any] | None:
        """The run's ``eval.json``, None while it is not finished; an InputError where it has no :attr:`metric`."""
        file = self.run / "eval.json"
        if not file.is_file():
            return None
        return required(read_json(file), str(file), **{self.metric: (int, float, type(None))})

    def score(self) -> float | None:
        """The :attr:`metric` of a finished run; None without one."""
        value: float | None = (self.scores() or {}).get(self.metric)
        return value

    def command(self) -> list[str]:
        """The command that starts or continues the run."""
        resume = ["--resume"] if (self.run / "config.yaml").is_file() else []
        return [sys.executable, "-m", self.module, *self.flags, "--run-dir", str(self.run), *resume]


def run_job(
    job: Job, environment: Mapping[str, str], folder: str | None = None, stop: threading.Event | None = None
) -> None:
    """Return when the job has its result, at once where it has one already; see the exceptions above.

    ``environment`` are more variables of the process, ``folder`` is where it starts; ``stop`` asks it to save and end.
    """
    if job.scores() is not None:
        return
    job.run.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{job.run}.lock", timeout=0):
            status = _process(job, environment, folder, stop or threading.Event()) if job.scores() is None else 0
    except Timeout as error:
        raise JobTaken("another command runs it") from error
    output = f"(all of its output: {job.log})"
    # a training that a signal has stopped after it has saved ends with 128 + the signal's number
    number = -status if status < 0 else status - 128
    if status < 0 or number in (signal.SIGINT, signal.SIGTERM):
        raise JobKilled(f"signal {number} {output}")
    if status != 0:
        last = job.log.read_text(errors="replace").rstrip().rpartition("\n")[2].strip()
        raise JobFailed(f"status {status}, {last} {output}")
    if job.scores() is None:
        raise JobFailed(f"ended without an eval.json {output}")


def _process(job: Job, environment: Mapping[str, str], folder: str | None, stop: threading.Event) -> int:
    """Exit status of the training, minus the signal's number if a signal killed it."""
    if stop.is_set():
        return -signal.SIGTERM
    command = job.command()
    with open(job.log, "ab") as log:
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            while process.poll() is None and not stop.wait(0.05):
                pass
        finally:  # also where Ray cancels its task
            process.terminate()
            status = process.wait()
    return status


def flags(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings as flags; mappings and lists as JSON.

    >>> flags({"env": "CartPole-v1", "eval_freq": 500, "hyperparameters": {"n_steps": 64}, "source.root": "GTA5"})
    ('--env', 'CartPole-v1', '--eval-freq', '500', '--hyperparameters', '{"n_steps": 64}', '--source.root', 'GTA5')
    """
    parts: list[str] = []
    for name, value in settings.items():
        parts += [f"--{str(name).replace('_', '-')}", value if isinstance(value, str) else json.dumps(value)]
    return tuple(parts)
