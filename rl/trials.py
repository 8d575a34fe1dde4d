"""Trials of several seeds each, given up half-way when they are worse than half of the others.

A trial is pruned as soon as the mean of its seeds is below the median that the finished trials had after as many
seeds: the rule of Optuna's MedianPruner, with seeds in the place of steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from dem_apps.jobs.search import Values
from dem_apps.jobs.study import Claim, StudyFolder, TrialFailed, TrialKilled
from rl.config import TrainConfig
from rl.jobs import Job, JobFailed, JobKilled, Trainings, flags

#: The weight of the entropy term is searched as its logarithm.
LOG_COEFFICIENT = "log10_ent_coef"
#: Finished trials before any is pruned, as in Optuna's MedianPruner.
_BEFORE_PRUNING = 5


class TrialPruned(TrialFailed):
    """A trial was given up after some of its seeds."""

    outcome = "pruned"


class PruningStudy(StudyFolder):
    """A study that enters trials as pruned that :attr:`pruned` names, so that TPE ranks them below all others."""

    def __init__(self, path: Path, settings: dict[str, Any], storage: str | None) -> None:
        super().__init__(path, settings, storage)
        self.pruned: set[int] = set()

    def settle(self, claim: Claim, value: float | None) -> None:
        """As in StudyFolder."""
        if value is not None or claim.number not in self.pruned:
            super().settle(claim, value)
            return
        with self.locked():
            self._study.tell(claim.number, state=TrialState.PRUNED)
            claim.lock.release()


class SeededTrials:
    """Scores a trial: the mean return of its seeds' last policies, sampled actions.

    Args:
        folder: the study.
        train_flags: of ``rl.train``, what all trials share.
        config: the same, resolved.
        seeds: per trial.
        trainings: runs them.
    """

    def __init__(
        self, folder: PruningStudy, train_flags: Sequence[str], config: TrainConfig, seeds: int, trainings: Trainings
    ) -> None:
        self.config = config
        self._folder, self._flags = folder, tuple(train_flags)
        self._seeds, self._trainings = seeds, trainings

    def __call__(self, claim: Claim) -> float:
        """The score.

        Raises:
            TrialPruned: below the median of the finished trials.
            TrialFailed: a training ended with an error.
            TrialKilled: a signal ended it.
        """
        returns: list[float] = []
        for index in range(self._seeds):
            job = self.job(claim.run, claim.values, self.config.seed + index)
            try:
                self._trainings(job, lambda _job: None, claim.lock)
            except JobKilled as error:
                raise TrialKilled(f"seed {self.config.seed + index}, {error}") from error
            except JobFailed as error:
                raise TrialFailed(f"seed {self.config.seed + index}, {error}") from error
            returns.append(final_return(job))
            self._prune(claim, returns)
        return statistics.fmean(returns)

    def job(self, folder: Path, values: Values, seed: int) -> Job:
        """The training of a point with a seed."""
        chosen = flags({**settings_of(values), "seed": seed})
        steps = self.config.timesteps or 0
        return Job(f"{folder.name} seed {seed}", (*self._flags, *chosen), folder / f"seed{seed}", steps)

    def _prune(self, claim: Claim, returns: list[float]) -> None:
        if len(returns) == self._seeds:
            return
        median = median_after(self._finished(claim.run), len(returns))
        mean = statistics.fmean(returns)
        if median is not None and mean < median:
            self._folder.pruned.add(claim.number)
            raise TrialPruned(
                f"after {len(returns)} of {self._seeds} seeds, {mean:.4f} is below the median {median:.4f}"
            )

    def _finished(self, this: Path) -> list[list[float]]:
        """The returns of the trials, this one excepted, that have all of their seeds; read from their folders."""
        finished = []
        for trial in sorted(path for path in this.parent.iterdir() if path.is_dir() and path != this):
            jobs = [self.job(trial, {}, self.config.seed + index) for index in range(self._seeds)]
            if all(job.scores() is not None for job in jobs):
                finished.append([final_return(job) for job in jobs])
        return finished


def median_after(finished: Sequence[Sequence[float]], count: int) -> float | None:
    """The median over finished trials of the mean of their first ``count`` seeds; None while they are too few."""
    if len(finished) < _BEFORE_PRUNING:
        return None
    return statistics.median(statistics.fmean(returns[:count]) for returns in finished)


def final_return(job: Job) -> float:
    """What a finished training is scored by."""
    scores = job.scores()
    assert scores is not None
    return float(scores["mean_return"])


def settings_of(values: Values) -> dict[str, float]:
    """A point as settings of ``rl.train``."""
    settings = {name: value for name, value in values.items() if name != LOG_COEFFICIENT}
    if LOG_COEFFICIENT in values:
        settings["ent_coef"] = float(f"{10 ** values[LOG_COEFFICIENT]:.4g}")
    return settings
