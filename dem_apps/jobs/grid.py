"""A grid of trainings that any number of commands work off together, and that goes on when it is started again."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any

from dem_apps.jobs.executor import Claim, Executor
from dem_apps.jobs.job import Job, JobFailed, JobKilled
from dem_apps.jobs.progress import GridProgress
from dem_apps.jobs.shared_work import work_off

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
    grid = _Grid([job for jobs in cells.values() for job in jobs if job.name not in view.done], executor, view)
    try:
        work_off(grid, workers, poll)
    finally:
        executor.stop()
        view.close()
    return grid.failures


class _Grid:
    """The jobs that are not done, as shared work."""

    def __init__(self, jobs: list[Job], executor: Executor, view: GridProgress) -> None:
        self.failures: dict[str, str] = {}
        self._waiting, self._executor, self._view = jobs, executor, view
        # a failure from before is tried again, one that another command has meanwhile is not
        self._failed_before = {job.name: job.failure() for job in jobs}

    def claim(self) -> tuple[Job, Claim] | None:
        """The first job that nobody else runs, and that nobody else has ended meanwhile."""
        for job in list(self._waiting):
            claim = self._executor.claim(job.lock)
            if claim is None:
                continue
            self._waiting.remove(job)
            failure = job.failure()
            if job.scores() is not None:
                self._ended(job, None)
            elif failure is not None and failure != self._failed_before[job.name]:
                self._ended(job, failure.partition(" ")[2])
            else:
                self._view.started(job)
                return job, claim
            claim.release()
        return None

    def run(self, piece: tuple[Job, Claim]) -> None:
        """Run a job, and leave word for other commands if it fails."""
        job, claim = piece
        try:
            job.note_failure(None)
            self._executor.run(job, [claim])
        except JobKilled:
            raise
        except JobFailed as error:
            job.note_failure(f"{datetime.now().isoformat()} {error}")
            raise
        finally:
            claim.release()

    def settle(self, piece: tuple[Job, Claim], outcome: Future[Any]) -> None:
        """Tell the view."""
        try:
            outcome.result()
        except JobFailed as error:
            self._ended(piece[0], str(error))
        else:
            self._ended(piece[0], None)

    def elsewhere(self) -> list[str]:
        """All that was not to be had."""
        return [job.name for job in self._waiting]

    def look(self, waiting_for: Sequence[str]) -> None:
        """Show how far everything is."""
        self._view.refresh(waiting_for)

    def _ended(self, job: Job, failure: str | None) -> None:
        if failure is not None:
            self.failures[job.name] = failure
        self._view.ended(job, failure)
