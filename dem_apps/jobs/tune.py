"""What ``seg.tune`` and ``rl.tune`` share: where a study is, and trials that are trainings, one for each seed.

A trial is pruned as soon as the mean of its seeds is below the median that the finished trials had after as many
seeds: the rule of Optuna's MedianPruner, with seeds in the place of steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from optuna.trial import FrozenTrial

from dem_apps.jobs.executor import Executor
from dem_apps.jobs.executors import ExecutorConfig
from dem_apps.jobs.job import Job, JobFailed, JobPruned
from dem_apps.jobs.search import Plan, Space, Values
from dem_apps.jobs.study import ClaimedTrial, StudyFolder, run_study
from dem_apps.runtime.run_claim import new_run_dir
from dem_apps.runtime.settings import option
from dem_apps.runtime.signals import command_line, going_on_with

#: The jobs of a trial, one per seed, from its folder and its point.
TrialJobs = Callable[[Path, Values], list[Job]]
#: Finished trials before any is pruned, as in Optuna's MedianPruner.
_BEFORE_PRUNING = 5


@dataclass(frozen=True)
class _Study:
    """Where the study is."""

    study_dir: str | None = option(
        None, "folder of the study; default: a new one under runs/", value="DIR", group="study"
    )
    storage: str | None = option(
        None, "database such as sqlite:///study.db; default: journal.log in the folder", value="URL"
    )


@dataclass(frozen=True)
class SearchConfig(ExecutorConfig, _Study):
    """Settings of every search."""


Config = TypeVar("Config", bound=SearchConfig)


def run_command_of(module: str, config: Config, arguments: Sequence[str], run: Callable[[Config], object]) -> None:
    """Run a search in its folder, a new one where none is named; who interrupts it is told how to go on."""
    arguments = list(arguments)
    if config.study_dir is not None:
        with going_on_with(f"the same command continues: {command_line(module, arguments)}"):
            run(config)
        return
    made = new_run_dir(*module.split("."))
    try:
        run_command_of(module, replace(config, study_dir=str(made)), [*arguments, "--study-dir", str(made)], run)
    finally:
        with suppress(OSError):
            made.rmdir()  # of a search that is refused; what holds anything stays


class Trials:
    """Scores a trial: the mean over its jobs, which run one after another.

    Args:
        jobs: of a trial.
        executor: runs them; they hold the trial's lock, so nobody takes the trial for killed while one of them lives.
    """

    def __init__(self, jobs: TrialJobs, executor: Executor) -> None:
        self._jobs, self._executor = jobs, executor

    def __call__(self, claim: ClaimedTrial) -> float:
        """The score; jobs that have a result from an earlier start are not run again.

        Raises:
            JobPruned: below the median of the finished trials.
            JobFailed: a training ended with an error, or cannot be scored.
            JobKilled: a signal ended it.
        """
        jobs, scores = self._jobs(claim.run, claim.values), list[float]()
        for job in jobs:
            self._executor.run(job, [claim.lock])
            score = job.score()
            if score is None:
                raise JobFailed(f"{job.run} has no {job.metric}")
            scores.append(score)
            if len(scores) < len(jobs):
                self._prune(claim, scores, len(jobs))
        return statistics.fmean(scores)

    def _prune(self, claim: ClaimedTrial, scores: list[float], seeds: int) -> None:
        median, mean = median_after(self._finished(claim.run), len(scores)), statistics.fmean(scores)
        if median is not None and mean < median:
            raise JobPruned(f"after {len(scores)} of {seeds} seeds, {mean:.4f} is below the median {median:.4f}")

    def _finished(self, this: Path) -> list[list[float]]:
        """The scores of the trials, this one excepted, that have all of their seeds; read from their folders."""
        trials = sorted(path for path in this.parent.iterdir() if path.is_dir() and path != this)
        found = [[job.score() for job in self._jobs(trial, {})] for trial in trials]
        return [[score for score in scores if score is not None] for scores in found if None not in scores]


def median_after(finished: Sequence[Sequence[float]], count: int) -> float | None:
    """The median over finished trials of the mean of their first ``count`` seeds; None while they are too few."""
    if len(finished) < _BEFORE_PRUNING:
        return None
    return statistics.median(statistics.fmean(scores[:count]) for scores in finished)


def run_search(
    folder: StudyFolder, space: Space, plan: Plan, jobs: TrialJobs, executor: Executor, workers: int,
    write_results: Callable[[list[FrozenTrial]], object],
) -> None:  # fmt: skip
    """Run or continue a study, and write what it has found so far even if it is interrupted.

    Args:
        folder: the study.
        space: what the plan chooses from.
        plan: what to try.
        jobs: of a trial.
        executor: runs them; it is stopped at the end.
        workers: trials at a time.
        write_results: called with the trials, while nobody else writes files about them.
    """
    try:
        run_study(folder, space, plan, Trials(jobs, executor), workers, lambda line: print(line, flush=True))
    finally:
        executor.stop()
        with folder.locked():
            write_results(folder.trials())
