"""A training as a process with a run folder, on this machine or as a task of Ray on a folder that machines share."""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from filelock import FileLock, Timeout

from dem_apps.errors import InputError, first_words, passed_on
from dem_apps.runtime.documents import read_json, required
from dem_apps.runtime.run_reader import LOCK
from dem_apps.runtime.settings import option, parse_config

#: Environment variables of trainings.
Variables = Mapping[str, str]
Config = TypeVar("Config")
TrainingConfig = TypeVar("TrainingConfig")
Item = TypeVar("Item")
Result = TypeVar("Result")
#: For small networks on a CPU, where one thread is the fastest.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
#: Between two looks at what trainings print.
_LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class ExecutorConfig:
    """Settings of the place where trainings run."""

    executor: str = option(
        "local",
        "where the trainings run: local = processes on this machine, ray = a cluster",
        choices=("local", "ray"),
        group="where trainings run",
    )
    workers: int = option(1, "number of trainings that run at a time", at_least=1, at_most=1000)
    ray_address: str = option(
        "auto",
        "the cluster's head; auto: of the cluster that this machine is in",
        value="HOST:PORT",
        flag_only="ray-address",
    )
    cores_per_job: int = option(1, "cores that ray sets aside for a training", at_least=1)
    gpus_per_job: float = option(
        0.0, "GPUs that ray sets aside for a training, or a share of one", at_least=0
    )


@dataclass(frozen=True)
class SearchConfig(ExecutorConfig):
    """Settings of every search."""

    study_dir: str | None = option(
        None, "folder of the study; default: a new one under runs/", value="DIR", group="study"
    )
    storage: str | None = option(
        None,
        "database such as sqlite:///study.db (default: journal.log in the folder)",
        value="URL",
    )


def parse_search(
    search_class: type[Config],
    train_class: type[TrainingConfig],
    module: str,
    train_module: str,
    examples: str,
    argv: Sequence[str],
) -> tuple[Config, TrainingConfig, list[str]]:
    """Read the settings of a search over trainings.

    ``--config FILE`` and ``--train.FLAG`` belong to the training, everything else to the search.

    Returns:
        The settings of the search, those of its trainings, and the flags that made these.

    Raises:
        InputError: see :func:`parse_config`; or a flag of the training without its prefix.
    """
    search_flags, train_flags = list[str](), list[str]()
    misplaced = set(get_type_hints(train_class)) - set(get_type_hints(search_class))
    flags = search_flags
    for argument in argv:
        if argument.startswith("--train.") or argument.partition("=")[0] == "--config":
            flags = train_flags
        elif argument.startswith("--"):
            flags = search_flags
            name = re.split("[.=]", argument[2:])[0].replace("-", "_")
            if name in misplaced:
                raise InputError(
                    f"{argument}: is a flag of {train_module}; write --train.{argument[2:]}"
                )
        flags.append(re.sub("^--train[.]", "--", argument))
    # --config goes to the training, and is named in the search's help all the same
    config_help = f"YAML file of {train_module}"
    search = parse_config(search_class, f"python -m {module}", examples, search_flags, config_help)
    train = parse_config(train_class, f"python -m {train_module}", examples, train_flags)
    return search, train, train_flags


class JobFailed(Exception):
    """A training ended without a result. The message says how, and where its output is."""


class JobKilled(JobFailed):
    """A signal ended a training; the next start of the command continues it."""


class JobTaken(JobKilled):
    """Another command runs the training."""


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

    @property
    def finished(self) -> bool:
        """True once the run has its ``eval.json``."""
        return (self.run / "eval.json").is_file()

    def score(self) -> float | None:
        """Return the :attr:`metric` of a finished run, or None where it could not be measured.

        Raises:
            InputError: ``eval.json`` is damaged or has no such number.
        """
        file = self.run / "eval.json"
        scores = required(read_json(file), str(file), **{self.metric: float | None})
        value: float | None = scores[self.metric]
        return value

    def last_line(self) -> str:
        """Return the last line that the training has printed."""
        text = self.log.read_text(errors="replace") if self.log.is_file() else ""
        return text.rstrip().rpartition("\n")[2].strip()

    def command(self) -> list[str]:
        """Return the command that starts or continues the run."""
        command = [sys.executable, "-m", self.module, *self.flags, "--run-dir", str(self.run)]
        if (self.run / "config.yaml").is_file():
            command.append("--resume")
        return command


def run_job(
    job: Job,
    environment: Variables,
    folder: str | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run a job until it has its result; return at once where it has one already.

    Args:
        job: the training.
        environment: more variables of its process.
        folder: where the process starts; by default here.
        stop: asks the training to save and end.

    Raises:
        JobFailed: or one of its kinds; see there.
    """
    if job.finished:
        return
    job.run.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{job.run}.lock", timeout=0):
            if job.run.is_dir():  # a training may have outlived the command that started it
                FileLock(job.run / LOCK, timeout=0).acquire().lock.release()
            status = 0
            if not job.finished:
                status = _process(job, environment, folder, stop)
    except Timeout as error:
        raise JobTaken(
            "another command runs it, or its training goes on after the command was killed"
        ) from error
    output = f"(all of its output: {job.log})"
    # a training that saves and stops at a signal ends with 128 + the signal's number
    if status < 0 or status - 128 in (signal.SIGINT, signal.SIGTERM):
        raise JobKilled(f"a signal ended it, status {status} {output}")
    if status != 0:
        raise JobFailed(f"it ended with status {status}: {job.last_line()} {output}")
    if not job.finished:
        raise JobFailed(f"it ended without an eval.json {output}")


def _process(
    job: Job, environment: Variables, folder: str | None, stop: threading.Event | None
) -> int:
    """Return the exit status of the training, minus the signal's number if a signal killed it."""
    stop = stop or threading.Event()
    if stop.is_set():
        return -signal.SIGTERM
    command = job.command()
    with open(job.log, "ab", buffering=0) as log:
        log.write(os.fsencode(f"$ {shlex.join(command)}\n"))
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            while process.poll() is None and not stop.wait(0.05):
                pass
        finally:  # also where Ray cancels its task
            process.terminate()
            status = process.wait()
    return status


class Executor:
    """Runs jobs as processes on this machine, with the ``environment`` variables."""

    def __init__(self, environment: Variables) -> None:
        self._environment = dict(environment)
        self._stop = threading.Event()

    def run(self, job: Job) -> None:
        """Run a job as :func:`run_job` does, from any thread."""
        run_job(job, self._environment, stop=self._stop)

    def run_all(
        self,
        workers: int,
        items: Iterator[Item],
        work: Callable[[Item], Result],
        ended: Callable[[Item, Future[Result]], None],
        look: Callable[[Sequence[Item]], None] = lambda _: None,
    ) -> None:
        """Do the work of every item in threads; after an interruption the jobs at work save and end.

        Args:
            workers: the number of threads.
            items: each is taken when a thread is free.
            work: called in a thread with an item.
            ended: called in this thread with an item and its outcome.
            look: called now and then with the items at work.
        """
        running: dict[Future[Result], Item] = {}
        with ThreadPoolExecutor(workers) as threads:
            try:
                while True:
                    for item in islice(items, workers - len(running)):
                        running[threads.submit(work, item)] = item
                    if not running:
                        return
                    done, _ = wait(running, _LOOK_SECONDS, FIRST_COMPLETED)
                    for future in done:
                        ended(running.pop(future), future)
                    if not done:
                        look([*running.values()])
            finally:
                self._stop.set()


class RayExecutor(Executor):
    """Runs jobs as tasks on the nodes of a Ray cluster, which share the folders of the runs.

    Raises:
        InputError: Ray is not installed, or there is no cluster at the address.
    """

    def __init__(self, environment: Variables, config: ExecutorConfig) -> None:
        super().__init__({"PYTHONPATH": os.environ.get("PYTHONPATH", ""), **environment})
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        handler = signal.getsignal(signal.SIGTERM)
        try:
            import ray
        except ImportError as error:
            raise InputError(
                "--executor ray: ray is not installed; run pip install -e '.[cluster]'"
            ) from error
        with passed_on(f"--ray-address: Ray has no cluster at '{config.ray_address}'"):
            ray.init(config.ray_address, log_to_driver=False, logging_level=logging.CRITICAL)
        signal.signal(signal.SIGTERM, handler)  # Ray takes it for itself
        self._ray: Any = ray
        self._task: Any = ray.remote(run_job).options(
            num_cpus=config.cores_per_job, num_gpus=config.gpus_per_job
        )

    def run(self, job: Job) -> None:
        """Run a job on the cluster, see :meth:`Executor.run`."""
        absolute = replace(job, run=job.run.absolute())
        task = self._task.remote(absolute, self._environment, os.getcwd())
        try:
            while not self._ray.wait([task], timeout=0.2)[0]:
                if self._stop.is_set():
                    self._ray.cancel(task, force=False)  # the training saves first
                    break
            self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, JobFailed):
                raise cause from error
            # it was cancelled, or its node is gone
            raise JobKilled(first_words(error)) from error


def build_executor(config: ExecutorConfig, environment: Variables) -> Executor:
    """Return the executor that the settings ask for, with variables of the trainings."""
    if config.executor == "ray":
        return RayExecutor(environment, config)
    return Executor(environment)


def threads_of_jobs(config: ExecutorConfig) -> dict[str, str]:
    """Return a training's threads: Ray's cores, or its share of this machine's.

    ``OMP_NUM_THREADS`` wins where it is set.
    """
    threads = max(1, (os.cpu_count() or 1) // config.workers)
    if config.executor == "ray":
        threads = config.cores_per_job
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
