"""A training as a process with a run folder, on this machine or as a task of Ray on a folder that machines share."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from filelock import FileLock, Timeout

from dem_apps.errors import InputError, first_words
from dem_apps.runtime.documents import read_json, required
from dem_apps.runtime.run_reader import LOCK
from dem_apps.runtime.settings import option, parse_config

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
    """Where trainings run."""

    executor: str = option(
        "local",
        "where they run; local: processes on this machine, ray: a cluster",
        choices=("local", "ray"),
        group="where trainings run",
    )
    workers: int = option(1, "trainings at a time", at_least=1, at_most=1000)
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
        None, "database such as sqlite:///study.db; default: journal.log in the folder", value="URL"
    )


def parse_search(
    search_class: type[Config],
    train_class: type[TrainingConfig],
    module: str,
    train_module: str,
    example: str,
    argv: Sequence[str],
) -> tuple[Config, TrainingConfig, list[str]]:
    """Read the settings of a search over trainings: the search's own, the trainings', and the flags that made these.

    ``--config FILE`` and ``--train.FLAG`` are of the training, everything else of the search. Raises InputError: as of
    :func:`parse_config`, or a flag of the training without its prefix.
    """
    own, train_flags = list[str](), list[str]()
    misplaced = set(get_type_hints(train_class)) - set(get_type_hints(search_class))
    to = own
    for argument in argv:
        if argument.startswith("--"):
            name = argument.partition("=")[0]
            to = train_flags if name == "--config" or name.startswith("--train.") else own
            if to is own and name[2:].partition(".")[0].replace("-", "_") in misplaced:
                raise InputError(f"{name}: a flag of {train_module}; write --train.{name[2:]}")
            argument = "--" + argument[2:].removeprefix("train.")
        to.append(argument)
    # --config goes to the training, and is named in the search's help all the same
    search = parse_config(
        search_class, f"python -m {module}", example, own, f"YAML file of {train_module}"
    )
    return (
        search,
        parse_config(train_class, f"python -m {train_module}", example, train_flags),
        train_flags,
    )


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
        return required(read_json(file), str(file), **{self.metric: float | None})

    def last_line(self) -> str:
        """The last line that its process has printed."""
        text = self.log.read_text(errors="replace") if self.log.is_file() else ""
        return text.rstrip().rpartition("\n")[2].strip()

    def score(self) -> float | None:
        """The :attr:`metric` of a finished run; None without one."""
        value: float | None = (self.scores() or {}).get(self.metric)
        return value

    def command(self) -> list[str]:
        """The command that starts or continues the run."""
        resume = ["--resume"] if (self.run / "config.yaml").is_file() else []
        return [sys.executable, "-m", self.module, *self.flags, "--run-dir", str(self.run), *resume]


def run_job(
    job: Job,
    environment: Mapping[str, str],
    folder: str | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Return when the job has its result, at once where it has one already; see the exceptions above.

    ``environment`` are more variables of the process, ``folder`` is where it starts; ``stop`` asks it to save and end.
    """
    if job.scores() is not None:
        return
    job.run.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{job.run}.lock", timeout=0):
            if job.run.is_dir():  # a training may have outlived the command that started it
                FileLock(job.run / LOCK, timeout=0).acquire().lock.release()
            status = (
                _process(job, environment, folder, stop or threading.Event())
                if job.scores() is None
                else 0
            )
    except Timeout as error:
        raise JobTaken(
            "another command runs it, or its training goes on after the command was killed"
        ) from error
    output = f"(all of its output: {job.log})"
    # a training that a signal has stopped after it has saved ends with 128 + the signal's number
    number = -status if status < 0 else status - 128
    if status < 0 or number in (signal.SIGINT, signal.SIGTERM):
        raise JobKilled(f"signal {number} {output}")
    if status != 0:
        raise JobFailed(f"status {status}, {job.last_line()} {output}")
    if job.scores() is None:
        raise JobFailed(f"ended without an eval.json {output}")


def _process(
    job: Job, environment: Mapping[str, str], folder: str | None, stop: threading.Event
) -> int:
    """Exit status of the training, minus the signal's number if a signal killed it."""
    if stop.is_set():
        return -signal.SIGTERM
    command = job.command()
    with open(job.log, "ab") as log:
        log.write(os.fsencode(f"$ {shlex.join(command)}\n"))
        log.flush()
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

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._stop = threading.Event()

    def run(self, job: Job) -> None:
        """As :func:`run_job`, from any thread."""
        run_job(job, self._environment, stop=self._stop)

    def each(
        self,
        workers: int,
        items: Iterator[Item],
        work: Callable[[Item], Result],
        look: Callable[[Sequence[Item]], None] = lambda _: None,
    ) -> Generator[tuple[Item, Future[Result]], None, None]:
        """The items as their ``work`` ends, which is done by so many threads; to be closed.

        An item is taken when a thread is free; ``look`` is called with those at work now and then. After an
        interruption, and when it is closed, the jobs at work save and end.
        """
        running: dict[Future[Result], Item] = {}
        with ThreadPoolExecutor(workers) as threads:
            try:
                while True:
                    for item in islice(items, workers - len(running)):
                        running[threads.submit(work, item)] = item
                    if not running:
                        return
                    ended = wait(running, _LOOK_SECONDS, FIRST_COMPLETED).done
                    for future in ended:
                        yield running.pop(future), future
                    if not ended:
                        look([*running.values()])
            except BaseException:
                self._stop.set()
                threads.shutdown(cancel_futures=True)
                raise


class RayExecutor(Executor):
    """Runs jobs as tasks on the nodes of a Ray cluster, which share the folders of the runs; an InputError without."""

    def __init__(self, environment: Mapping[str, str], config: ExecutorConfig) -> None:
        super().__init__(
            {
                **{key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ},
                **environment,
            }
        )
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        handler = signal.getsignal(signal.SIGTERM)
        try:
            import ray

            ray.init(
                address=config.ray_address, log_to_driver=False, logging_level=logging.CRITICAL
            )
        except ImportError as error:
            raise InputError(
                "--executor ray: needs ray, not installed here; pip install -e '.[cluster]'"
            ) from error
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            why = first_words(error, 200)
            raise InputError(
                f"--ray-address: no cluster of Ray's at '{config.ray_address}' ({why})"
            ) from error
        finally:
            signal.signal(signal.SIGTERM, handler)  # Ray takes it for itself
        self._ray: Any = ray
        self._task: Any = ray.remote(run_job).options(
            num_cpus=config.cores_per_job, num_gpus=config.gpus_per_job
        )

    def run(self, job: Job) -> None:
        """See :meth:`Executor.run`."""
        errors = self._ray.exceptions
        task = self._task.remote(
            replace(job, run=job.run.absolute()), self._environment, os.getcwd()
        )
        try:
            while not self._ray.wait([task], timeout=0.2)[0]:
                if self._stop.is_set():
                    self._ray.cancel(task, force=False)  # the training saves first
                    break
            self._ray.get(task)
        except errors.TaskCancelledError as error:
            raise JobKilled("stopped") from error
        except errors.RayTaskError as error:
            raise (
                error.cause if isinstance(error.cause, JobFailed) else JobFailed(f"{error.cause}")
            ) from error
        except errors.RayError as error:
            raise JobKilled(f"its node went down ({first_words(error, 200)})") from error


def build_executor(config: ExecutorConfig, environment: Mapping[str, str]) -> Executor:
    """The executor that the settings ask for; ``environment`` holds variables of the trainings."""
    return Executor(environment) if config.executor == "local" else RayExecutor(environment, config)


def threads_of_jobs(config: ExecutorConfig) -> dict[str, str]:
    """Threads of a training: Ray's cores, or its share of this machine's, unless ``OMP_NUM_THREADS`` is set."""
    threads = (
        config.cores_per_job
        if config.executor == "ray"
        else max(1, (os.cpu_count() or 1) // config.workers)
    )
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
