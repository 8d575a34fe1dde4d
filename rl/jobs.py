"""Trainings as processes of ``python -m rl.train``, each in a folder of its own; a killed one goes on when asked again.

Whoever runs a training holds a lock beside its folder, and the training inherits it. So a training that outlived the
command that started it is waited for, and never started a second time in the same folder.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dem_apps.jobs.job_processes import NotStarted, Subprocesses, ending_signal
from dem_apps.jobs.study import FileLock
from dem_apps.runtime.load_state import required
from dem_apps.runtime.safe_io import read_json

#: What a training leaves that was killed before its first checkpoint.
_LEFTOVERS = ("config.yaml", "environment.json", "metrics.jsonl", "checkpoints", "events.out.tfevents.", ".tmp")


@dataclass(frozen=True)
class Job:
    """One training.

    Args:
        name: how it is called in tables and messages.
        flags: of ``rl.train``, without ``--run-dir`` and ``--resume``.
        run: its run folder; its output goes to ``<run>.log`` beside it.
        steps: environment steps of the whole training.
    """

    name: str
    flags: tuple[str, ...]
    run: Path
    steps: int

    @property
    def log(self) -> Path:
        """The file that takes what the training prints."""
        return self.run.with_name(f"{self.run.name}.log")

    def scores(self) -> dict[str, Any] | None:
        """The run's ``eval.json``; None while it is not finished.

        Raises:
            InputError: it is damaged, or none of ``rl.train``.
        """
        file = self.run / "eval.json"
        if not file.is_file():
            return None
        scores = read_json(file)
        required(scores, str(file), mean_return=(float, int))
        return dict(scores)

    def step(self) -> int:
        """The step of the last whole line in ``metrics.jsonl``; 0 where there is none."""
        try:
            with open(self.run / "metrics.jsonl", "rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - 8192, 0))
                lines = file.read().splitlines()
        except FileNotFoundError:
            return 0
        for line in reversed(lines):
            try:
                return int(json.loads(line)["step"])
            except (ValueError, TypeError, LookupError, RecursionError):
                continue  # cut short, at either end
        return 0


class JobFailed(Exception):
    """A training ended without a result. The message says how, and where its output is."""


class JobKilled(JobFailed):
    """It was ended from outside, and may well have a result when it is run again."""


class Trainings:
    """Runs jobs, from as many threads as wanted; :meth:`stop` ends those that are running and starts no more.

    Args:
        module: what runs as ``python -m MODULE``.
        poll: seconds between looks at a training that an earlier command left behind.
    """

    def __init__(self, module: str = "rl.train", poll: float = 1.0) -> None:
        self._module, self._poll = module, poll
        # one thread per training: more only get in each other's way on networks of this size
        self._processes = Subprocesses({**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})

    def __call__(self, job: Job, started: Callable[[Job], object] = lambda job: None, *held: FileLock) -> None:
        """Return when the job has a result, its own or that of an earlier start.

        Args:
            job: what to run.
            started: called when it starts or is found running.
            held: locks that the training inherits as well.

        Raises:
            JobFailed: it ended without one.
            JobKilled: a signal ended it, or :meth:`stop` was called.
        """
        job.run.parent.mkdir(parents=True, exist_ok=True)
        started(job)
        lock = FileLock(job.run.with_name(f"{job.run.name}.lock"))
        while not lock.acquire(wait=False):
            if self._processes.stopped:
                raise JobKilled("stopped")
            time.sleep(self._poll)
        try:
            if job.scores() is None:
                self._train(job, (lock, *held))
        finally:
            lock.release()

    def stop(self) -> None:
        """End the trainings that are running, each after it has saved, and start no more."""
        self._processes.stop()

    def _train(self, job: Job, locks: tuple[FileLock, ...]) -> None:
        command = [sys.executable, "-m", self._module, *job.flags, "--run-dir", str(job.run)]
        if (job.run / "checkpoints" / "last.json").is_file():
            command.append("--resume")
        elif _only_leftovers(job.run):
            shutil.rmtree(job.run, ignore_errors=True)
        try:
            status = self._processes.run(command, job.log, locks)
        except NotStarted:
            raise JobKilled("stopped") from None
        if (number := ending_signal(status)) is not None:
            raise JobKilled(f"killed by signal {number}")
        if status != 0:
            raise JobFailed(f"status {status}, {_last_line(job.log)} (all of its output: {job.log})")
        if job.scores() is None:
            raise JobFailed(f"ended without an eval.json (all of its output: {job.log})")


def flags(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings of ``rl.train`` as its flags; mappings and lists as JSON.

    >>> flags({"env": "CartPole-v1", "eval_freq": 500, "hyperparameters": {"n_steps": 64}})
    ('--env', 'CartPole-v1', '--eval-freq', '500', '--hyperparameters', '{"n_steps": 64}')
    """
    parts: list[str] = []
    for name, value in settings.items():
        text = value if isinstance(value, str) else json.dumps(value)
        parts += [f"--{name.replace('_', '-')}", text]
    return tuple(parts)


def _only_leftovers(run: Path) -> bool:
    """Whether a folder holds nothing but what a training writes before its first checkpoint."""
    return run.is_dir() and all(any(name in path.name for name in _LEFTOVERS) for path in run.iterdir())


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "nothing was printed"
