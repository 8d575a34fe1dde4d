"""What of a grid of trainings is done, runs or failed, and the time left: a live table, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from dem_apps.jobs.job import Job


class GridProgress:
    """Shows how far a grid is. Call :meth:`started` and :meth:`ended` for each job, :meth:`refresh` once in a while.

    Args:
        cells: the jobs of each (row, column) of the table, such as (environment, arm).
        console: where to; a terminal gets a live table, anything else a line per event.

    Attributes:
        done: names of the jobs that have a result.
    """

    def __init__(self, cells: dict[tuple[str, str], list[Job]], console: Console) -> None:
        self._cells, self._console = cells, console
        self._jobs = [job for jobs in cells.values() for job in jobs]
        self.done = {job.name for job in self._jobs if job.scores() is not None}
        self._steps = {job.name: job.steps if job.name in self.done else job.step() for job in self._jobs}
        self._failed: set[str] = set()
        self._elsewhere, self._waits = 0, False
        self._running: dict[str, tuple[Job, float, int]] = {}
        self._before = sum(self._steps.values())
        self._started = time.monotonic()
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(self.table(), console=console, auto_refresh=False)
            self._live.start()
        else:
            self._print(f"{len(self._jobs)} runs, {len(self.done)} of them done before")

    def started(self, job: Job) -> None:
        """A training begins or goes on."""
        self._running[job.name] = job, time.monotonic(), self._steps[job.name]
        if self._live is None:
            self._print(f"{job.name}  starts at step {self._steps[job.name]:,} of {job.steps:,}")

    def ended(self, job: Job, failure: str | None = None) -> None:
        """A training has its result, or none."""
        running = self._running.pop(job.name, None)
        if failure is None:
            self.done.add(job.name)
            self._steps[job.name] = job.steps
        else:
            self._failed.add(job.name)
        if self._live is None:
            took = "" if running is None else f" after {_clock(time.monotonic() - running[1])}"
            self._print(f"{job.name}  {_result(job) if failure is None else f'failed: {failure}'}{took}")
            self._print(f"  {self.outlook()}")

    def refresh(self, waiting_for: Sequence[str] = ()) -> None:
        """Look how far the running trainings are and show it.

        Args:
            waiting_for: jobs of other commands, or trainings that outlived one, once nothing else is left.
        """
        self._elsewhere = len(waiting_for)
        if waiting_for and not self._waits:
            self._waits = True
            if self._live is None:
                self._print(f"waiting for what another command runs: {', '.join(waiting_for)}")
        for name, (job, _, _) in list(self._running.items()):
            self._steps[name] = min(job.step(), job.steps)
        if self._live is not None:
            self._live.update(self.table(), refresh=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()

    def outlook(self) -> str:
        """How many runs are done and failed, and the time that the rest takes at the pace since the start."""
        failed = f", {len(self._failed)} failed" if self._failed else ""
        elsewhere = f", {self._elsewhere} in another command" if self._elsewhere else ""
        steps = sum(self._steps.values()) - self._before
        # failed jobs are not tried again in this start
        left = sum(job.steps - self._steps[job.name] for job in self._jobs if job.name not in self._failed)
        if not left:
            time_left = ""
        elif steps <= 0:
            time_left = ", time left not known yet"
        else:
            time_left = f", {_clock(left * (time.monotonic() - self._started) / steps)} left"
        running = f"{len(self._running)} running{elsewhere}"
        return f"{len(self.done)} of {len(self._jobs)} runs done{failed}, {running}{time_left}"

    def table(self) -> Group:
        """Done runs of each cell, then a line per running one, then the outlook."""
        rows, columns = (list(dict.fromkeys(names)) for names in zip(*self._cells, strict=True))
        grid = Table(title="runs done")
        for column in ("", *columns):
            grid.add_column(column)
        for row in rows:
            grid.add_row(row, *(self._cell(self._cells.get((row, column), ())) for column in columns))
        running = Table(title="running")
        for column in ("run", "step", "of", "steps/s", "left"):
            running.add_column(column, justify="left" if column == "run" else "right")
        for job, started, first in list(self._running.values()):
            step = self._steps[job.name]
            rate = (step - first) / max(time.monotonic() - started, 1e-9)
            left = _clock((job.steps - step) / rate) if rate > 0 else "?"
            running.add_row(job.name, f"{step:,}", f"{job.steps:,}", f"{rate:,.0f}", left)
        return Group(grid, running, self.outlook())

    def _cell(self, jobs: Sequence[Job]) -> str:
        done, running, failed = (
            sum(job.name in names for job in jobs) for names in (self.done, self._running, self._failed)
        )
        parts = [f"{done} of {len(jobs)}"]
        parts += [f"{count} {what}" for count, what in ((running, "running"), (failed, "failed")) if count]
        return ", ".join(parts)

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)


def _result(job: Job) -> str:
    score = job.score()
    return "done" if score is None else f"done, {job.metric.replace('_', ' ')} {score:.3f}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
