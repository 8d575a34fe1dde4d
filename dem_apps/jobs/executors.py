"""Which executor runs the trainings of a grid or a search: the settings that all of them share, and how one is made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from dem_apps.errors import InputError
from dem_apps.jobs.executor import Executor, LocalExecutor
from dem_apps.runtime.settings import option

EXECUTORS = ("local", "ray")


@dataclass(frozen=True)
class ExecutorConfig:
    """Where trainings run."""

    executor: str = option(
        "local", "where they run; local: processes on this machine, ray: a cluster", choices=EXECUTORS,
        group="where trainings run",
    )  # fmt: skip
    workers: int = option(1, "trainings at a time", at_least=1, at_most=1000)
    ray_address: str = option("auto", "the cluster's head; auto: of the cluster that this machine is in",
                              value="HOST:PORT")  # fmt: skip
    cores_per_job: int = option(1, "cores that ray sets aside for a training", at_least=1)
    gpus_per_job: float = option(0.0, "GPUs that ray sets aside for a training, or a share of one", at_least=0)
    collect: bool = option(False, "with ray: the nodes share no disk, runs are made on their own and come back")


def build_executor(config: ExecutorConfig, environment: Mapping[str, str], folder: Path) -> Executor:
    """The executor that the settings ask for.

    Args:
        config: the settings.
        environment: variables of the trainings.
        folder: of the grid or the study; made if missing where nodes have to share it.

    Raises:
        InputError: a flag of Ray's without it, no Ray, no cluster, or one that cannot run the trainings.
    """
    if config.executor == "local":
        _refuse_flags_of_ray(config)
        return LocalExecutor(environment)
    from dem_apps.jobs.cluster.executor import RayExecutor  # whoever stays on one machine needs no Ray

    return RayExecutor(
        environment, config.ray_address, config.cores_per_job, config.gpus_per_job, folder, config.collect
    )


def threads_of_jobs(config: ExecutorConfig) -> dict[str, str]:
    """As many as Ray sets cores aside, here each job's share of the machine's, unless the environment says how many."""
    threads = config.cores_per_job if config.executor == "ray" else max(1, (os.cpu_count() or 1) // config.workers)
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}


def _refuse_flags_of_ray(config: ExecutorConfig) -> None:
    defaults = ExecutorConfig()
    for field in fields(ExecutorConfig):
        if field.name not in ("executor", "workers") and getattr(config, field.name) != getattr(defaults, field.name):
            raise InputError(f"--{field.name.replace('_', '-')}: is for --executor ray; add that, or leave it out")
