"""A grid of trainings that any number of commands work off together, and that goes on when it is started again.

Whoever runs a job holds a claim on it, and so does the training itself. A job that is claimed elsewhere is passed over
and looked at again; a claim that is free while the job has no result means that it was never begun, or killed.
"""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import datetime

from dem_apps.jobs.executor import Claim, Executor
from dem_apps.jobs.job import Job, JobFailed, JobKilled
from dem_apps.jobs.progress import GridProgress

#: The jobs of each (row, column) of a grid, such as (environment, arm): one per seed.
Cells = dict[tuple[str, str], list[Job]]


def run_grid(cells: Cells, executor: Executor, workers: int, view: GridProgress, poll: float = 1.0) -> dict[str, str]:
    """Run what has no result yet, until every job has one or has failed, here or in another command.

    Args:
        cells: the jobs.
        executor: runs them; it is stopped at the end.
        workers: jobs at a time.
        view: is told what happens.
        poll: seconds between looks at what other commands have done.

    Returns:
        what went wrong, by the name of the job; empty if everything is done. A failure does not stop the rest.
    """
    grid = _Grid([job for jobs in cells.values() for job in jobs], executor, workers, view)
    try:
        while True:
            grid.start()
            if grid.running:
                grid.collect(poll)
            elif grid.waiting:
                time.sleep(poll)
            else:
                return grid.failures
            view.refresh()
    finally:
        executor.stop()
        grid.pool.shutdown(wait=False, cancel_futures=True)
        view.close()


class _Grid:
    """What is waiting and what is running, of one command."""

    def __init__(self, jobs: list[Job], executor: Executor, workers: int, view: GridProgress) -> None:
        self.waiting = [job for job in jobs if job.name not in view.done]
        self.running: dict[Future[None], Job] = {}
        self.failures: dict[str, str] = {}
        self.pool = ThreadPoolExecutor(workers)
        # a failure from before is tried again, one that another command has meanwhile is not
        self._failed_before = {job.name: job.failure() for job in self.waiting}
        self._executor, self._workers, self._view = executor, workers, view

    def start(self) -> None:
        """Begin jobs while there are workers for them."""
        elsewhere = []
        for job in list(self.waiting):
            if len(self.running) == self._workers:
                return
            claim = self._executor.claim(job.lock)
            if claim is None:
                elsewhere.append(job)
            else:
                self.waiting.remove(job)
                self._begin(job, claim)
        self._view.elsewhere(elsewhere)

    def collect(self, timeout: float) -> None:
        """Take what has ended, after ``timeout`` seconds at most."""
        for future in wait(self.running, timeout=timeout, return_when=FIRST_COMPLETED).done:
            job, failure = self.running.pop(future), None
            try:
                future.result()
            except JobFailed as error:
                failure = self.failures[job.name] = str(error)
            self._view.ended(job, failure)

    def _begin(self, job: Job, claim: Claim) -> None:
        failure = job.failure()
        if job.scores() is not None:
            self._view.ended(job)
        elif failure is not None and failure != self._failed_before[job.name]:
            self.failures[job.name] = failure.partition(" ")[2]
            self._view.ended(job, self.failures[job.name])
        else:
            self._view.started(job)
            self.running[self.pool.submit(_run, self._executor, job, claim)] = job
            return
        claim.release()


def _run(executor: Executor, job: Job, claim: Claim) -> None:
    try:
        job.note_failure(None)
        executor.run(job, [claim])
    except JobKilled:
        raise
    except JobFailed as error:
        job.note_failure(f"{datetime.now().isoformat()} {error}")
        raise
    finally:
        claim.release()
