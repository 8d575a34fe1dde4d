"""Jobs on a cluster of Ray's: :class:`RayExecutor`, the executor of ``--executor ray``.

Each job is a task of Ray's, which finds a node with room for it and starts it again elsewhere when that node dies. The
training is a process of its own on the node (:mod:`dem_apps.jobs.cluster.node`), from its last checkpoint.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError
from dem_apps.jobs.cluster import node as on_node
from dem_apps.jobs.cluster import supervise, transfer
from dem_apps.jobs.cluster.connect import check_nodes, connected, refused, usable_nodes
from dem_apps.jobs.cluster.node import Order
from dem_apps.jobs.executor import Claim, file_claim, judge
from dem_apps.jobs.job import Job, JobFailed, JobKilled
from dem_apps.runtime.file_lock import FileLock
from dem_apps.runtime.safe_io import first_words

#: How often Ray starts a job again that went down with its node, or with a process of Ray's.
_STARTS_AGAIN = 20
#: Seconds until a file that another machine has written is seen here: network disks remember for a while what is not
#: there (``acdirmax`` of NFS, a minute).
_SEEN_WITHIN = 70.0
#: Of this command's environment, what the trainings get too: where Python finds code.
_PASSED_ON = ("PYTHONPATH",)


class RayExecutor:
    """Runs jobs on the nodes of a cluster.

    Args:
        environment: variables of every training.
        address: ``HOST:PORT`` of the cluster's head, or ``auto`` for the cluster that this machine is a node of.
        cores: that Ray sets aside for each job.
        gpus: likewise; a share of one is allowed.
        folder: of the study, which all nodes share.
        collect: they do not share it: runs are made on the nodes' own disks and come back.

    Raises:
        InputError: there is no such cluster, or a node of it cannot run the jobs.
    """

    def __init__(
        self, environment: Mapping[str, str], address: str, cores: int, gpus: float, folder: Path, collect: bool
    ) -> None:
        self._ray: Any = connected(address)
        for module in (on_node, transfer):  # by name the nodes would have to import this package, and torch with it
            self._ray.cloudpickle.register_pickle_by_value(module)
        passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        self._environment = {**passed_on, **environment}
        self._running: set[Any] = set()
        self._changed = threading.Condition()
        self._stopped = False
        self._home: Any = None
        self._token: Path | None = None
        try:
            nodes = usable_nodes(self._ray, cores, gpus)
            if collect:
                self._home = self._home_actor()
            else:
                folder.mkdir(parents=True, exist_ok=True)
                self._token = folder / f".shared-{uuid.uuid4().hex}"
                self._token.touch()
            check_nodes(self._ray, nodes, self._order([], [], ""))
        except BaseException:
            self.stop()
            raise
        self._task = self._ray.remote(on_node.run_job).options(num_cpus=cores, num_gpus=gpus, max_retries=_STARTS_AGAIN)

    def claim(self, path: Path) -> FileLock | None:
        """See :meth:`dem_apps.jobs.executor.Executor.claim`.

        It is this command's. The training on its node holds another lock, and the next start of a job waits for that.
        """
        return file_claim(path)

    def run(self, job: Job, claims: Sequence[Claim]) -> None:
        """See :meth:`dem_apps.jobs.executor.Executor.run`; the claims are held by whoever calls.

        Raises:
            InputError: the node that Ray chose cannot run jobs of this command.
        """
        if job.scores() is not None:
            return
        order = self._order(job.command_from(resumed=False), job.command_from(resumed=True), str(job.run))
        with self._changed:
            if self._stopped:
                raise JobKilled("stopped")
            task, ray = self._task.remote(order), self._ray
            self._running.add(task)
        try:
            answer = self._answer(ray, task)
        finally:
            with self._changed:
                self._running.discard(task)
                self._changed.notify_all()
        if "refused" in answer:
            raise InputError(refused(answer["node"], answer["refused"]))
        if answer["finished"]:
            _wait_until_seen(job)
        judge(job, answer["status"])

    def stop(self) -> None:
        """See :meth:`dem_apps.jobs.executor.Executor.stop`; the connection to the cluster ends with it."""
        with self._changed:
            self._stopped = True
            for task in self._running:
                self._ray.cancel(task, force=False)  # a training that runs saves first
            while self._running:
                self._changed.wait(0.2)
            ray, self._ray = self._ray, None
        if ray is None:  # stopped before
            return
        if self._home is not None:
            with suppress(ray.exceptions.RayError):  # of a cluster that is gone
                ray.get(self._home.close.remote())
        if self._token is not None:
            self._token.unlink(missing_ok=True)
        ray.shutdown()

    def _answer(self, ray: Any, task: Any) -> dict[str, Any]:
        """What the node says in the end."""
        errors = ray.exceptions
        try:
            answer = ray.get(task)
        except errors.TaskCancelledError as error:
            raise JobKilled("stopped") from error
        except errors.RayTaskError as error:  # such as a full disk on either side of a collected run
            raise JobFailed(f"on its node: {first_words(error.cause or error, 300)}") from error
        except errors.RayError as error:
            raise JobKilled(f"its nodes went down, {_STARTS_AGAIN} times ({first_words(error)})") from error
        assert isinstance(answer, dict)
        return answer

    def _order(self, begin: list[str], resume: list[str], run: str) -> Order:
        return Order(
            begin, resume, sys.executable, run, os.getcwd(), self._environment, on_node.versions(),
            None if self._token is None else str(self._token), inspect.getsource(supervise), self._home,
        )  # fmt: skip

    def _home_actor(self) -> Any:
        """On this machine, whose disk the runs come back to; it ends with this command."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=False)
        return self._ray.remote(on_node.Home).options(num_cpus=0, scheduling_strategy=here).remote()


def _wait_until_seen(job: Job) -> None:
    deadline = time.monotonic() + _SEEN_WITHIN
    while job.scores() is None and time.monotonic() < deadline:
        time.sleep(0.5)
