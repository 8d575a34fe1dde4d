"""Where the trainings of a grid or a search run: processes on this machine, or tasks of Ray on a shared folder."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from dem_apps.errors import InputError
from dem_apps.jobs.job import Job, JobFailed, JobKilled, run_job
from dem_apps.runtime.settings import option

#: For small networks on a CPU, where one thread is the fastest.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class ExecutorConfig:
    """Where trainings run."""

    executor: str = option(
        "local", "where they run; local: processes on this machine, ray: a cluster", choices=("local", "ray"),
        group="where trainings run",
    )  # fmt: skip
    workers: int = option(1, "trainings at a time", at_least=1, at_most=1000)
    ray_address: str = option(
        "auto", "the cluster's head; auto: of the cluster that this machine is in", value="HOST:PORT"
    )
    cores_per_job: int = option(1, "cores that ray sets aside for a training", at_least=1)
    gpus_per_job: float = option(0.0, "GPUs that ray sets aside for a training, or a share of one", at_least=0)


@dataclass(frozen=True)
class SearchConfig(ExecutorConfig):
    """Settings of every search."""

    study_dir: str | None = option(
        None, "folder of the study; default: a new one under runs/", value="DIR", group="study"
    )
    storage: str | None = option(
        None, "database such as sqlite:///study.db; default: journal.log in the folder", value="URL"
    )


class Executor:
    """Runs jobs as processes on this machine, with the ``environment`` variables."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._stop = threading.Event()

    def run(self, job: Job) -> None:
        """As :func:`dem_apps.jobs.job.run_job`, from any thread."""
        run_job(job, self._environment, stop=self._stop)

    @contextmanager
    def threads(self, workers: int) -> Iterator[ThreadPoolExecutor]:
        """Threads for so many jobs; if the block is interrupted, what runs in them saves and ends."""
        with ThreadPoolExecutor(workers) as threads:
            try:
                yield threads
            except BaseException:
                self._stop.set()
                threads.shutdown(cancel_futures=True)
                raise


class RayExecutor(Executor):
    """Runs jobs as tasks on the nodes of a Ray cluster, which share the folders of the runs; an InputError without."""

    def __init__(self, environment: Mapping[str, str], config: ExecutorConfig) -> None:
        super().__init__({**{key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}, **environment})
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        handler = signal.getsignal(signal.SIGTERM)
        try:
            import ray

            ray.init(address=config.ray_address, log_to_driver=False, logging_level=logging.CRITICAL)
        except ImportError as error:
            raise InputError("--executor ray: needs ray, not installed here; pip install -e '.[cluster]'") from error
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            why = " ".join(str(error).split())[:200]
            raise InputError(f"--ray-address: no cluster of Ray's at '{config.ray_address}' ({why})") from error
        finally:
            signal.signal(signal.SIGTERM, handler)  # Ray takes it for itself
        self._ray: Any = ray
        self._task: Any = ray.remote(run_job).options(num_cpus=config.cores_per_job, num_gpus=config.gpus_per_job)

    def run(self, job: Job) -> None:
        """See :meth:`Executor.run`."""
        errors = self._ray.exceptions
        task = self._task.remote(replace(job, run=job.run.absolute()), self._environment, os.getcwd())
        try:
            while not self._ray.wait([task], timeout=0.2)[0]:
                if self._stop.is_set():
                    self._ray.cancel(task, force=False)  # the training saves first
                    break
            self._ray.get(task)
        except errors.TaskCancelledError as error:
            raise JobKilled("stopped") from error
        except errors.RayTaskError as error:
            raise error.cause if isinstance(error.cause, JobFailed) else JobFailed(f"{error.cause}") from error
        except errors.RayError as error:
            raise JobKilled(f"its node went down ({' '.join(str(error).split())[:200]})") from error


def build_executor(config: ExecutorConfig, environment: Mapping[str, str]) -> Executor:
    """The executor that the settings ask for; ``environment`` holds variables of the trainings."""
    return Executor(environment) if config.executor == "local" else RayExecutor(environment, config)


def threads_of_jobs(config: ExecutorConfig) -> dict[str, str]:
    """Threads of a training: Ray's cores, or its share of this machine's, unless ``OMP_NUM_THREADS`` is set."""
    threads = config.cores_per_job if config.executor == "ray" else max(1, (os.cpu_count() or 1) // config.workers)
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
