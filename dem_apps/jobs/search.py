"""A search: TPE over a grid of settings, in an Optuna study that a folder holds and that the same command continues.

TPE is Optuna's (Bergstra et al., NeurIPS 2011). A trial is one training or several, one for each seed; after each seed
Optuna's MedianPruner may end it.
"""

from __future__ import annotations

import csv
import io
import random
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from rich.table import Table

from dem_apps.errors import InputError
from dem_apps.jobs.executor import Executor, SearchConfig, build_executor, progress
from dem_apps.jobs.job import Job, JobFailed, JobKilled
from dem_apps.runtime.files import new_run_dir, write_atomically
from dem_apps.runtime.signals import command_line, going_on_with

Values = dict[str, float]
#: The next point, or None where there is nothing to start now; from all trials so far.
Plan = Callable[[Sequence[FrozenTrial]], Values | None]
#: The jobs of a trial, one for each seed, from its folder and its point.
TrialJobs = Callable[[Path, Values], list[Job]]
_DIGITS = 10  # 3 * 0.1 and 0.3 are the same point


@dataclass(frozen=True)
class Space:
    """A finite grid: each parameter's range, with a step, and which combinations exist."""

    distributions: Mapping[str, FloatDistribution]
    allowed: Callable[[Values], bool] = lambda values: True

    def points(self) -> list[Values]:
        """Every allowed combination."""
        axes = []
        for one in self.distributions.values():
            assert one.step is not None
            steps = round((one.high - one.low) / one.step)
            axes.append([round(one.low + index * one.step, _DIGITS) for index in range(steps + 1)])
        every = (dict(zip(self.distributions, combination, strict=True)) for combination in product(*axes))
        return [values for values in every if self.allowed(values)]


def dem_allows(values: Values) -> bool:
    """Whether 0 < τ ≤ 2/α, Prop. A.1 of the paper."""
    return values["tau"] > 0 and round(values["tau"] * values["alpha"], _DIGITS) <= 2


#: DEM*'s: τ and α from 0 to 2 in steps of 0.1 (paper, Sec. 3.2 and App. B) without what Prop. A.1 rules out.
DEM_SPACE = Space(
    {"tau": FloatDistribution(0.1, 2.0, step=0.1), "alpha": FloatDistribution(0.0, 2.0, step=0.1)}, dem_allows
)


def tpe_plan(space: Space, trials: int, seed: int, first: Values) -> Plan:
    """TPE, no point twice, from ``first`` on; with the same seed and trials so far, the next point is the same."""

    def plan(tried: Sequence[FrozenTrial]) -> Values | None:
        taken = [trial.params for trial in tried]
        free = [values for values in space.points() if values not in taken]
        if len(tried) >= trials or not free:
            return None
        return first if first in free else _suggested(space, tried, free, seed)

    return plan


def _suggested(space: Space, tried: Sequence[FrozenTrial], free: list[Values], seed: int) -> Values:
    """TPE's proposal, asked again until the point is free; after a hundred times a free point at random."""
    seed = random.Random(f"{seed}/{len(tried)}").randrange(2**31)
    sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
    # a copy in memory is asked, so that refused proposals leave no trace in the study
    copy = optuna.create_study(sampler=sampler, direction="maximize")
    copy.add_trials(tried)
    for _ in range(100):
        proposal = copy.ask(dict(space.distributions))
        values = {name: round(value, _DIGITS) for name, value in proposal.params.items()}
        if values in free:
            return values
        copy.tell(proposal, state=TrialState.FAIL)
    return random.Random(seed).choice(free)


@contextmanager
def opened_study(
    module: str, arguments: Sequence[str], config: SearchConfig, settings: Mapping[str, Any]
) -> Iterator[tuple[Path, optuna.Study]]:
    """The folder of a study and the study, begun or continued; an interruption says how to go on.

    ``module`` and ``arguments`` are the command's; ``settings`` are what makes the scores of two trials comparable.
    Raises InputError: the folder holds something else, other settings or another command at work, or the storage cannot
    be opened.
    """
    path = Path(config.study_dir) if config.study_dir else new_run_dir(*module.split("."))
    again = arguments if config.study_dir else [*arguments, "--study-dir", str(path)]
    if path.exists() and not (path / "trials").is_dir() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path}: holds other files, and a study needs a folder of its own; name another one")
    (path / "trials").mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    warnings.filterwarnings("ignore", message="The reported value is ignored")  # of a trial that goes on
    try:
        with FileLock(path / "study.lock", timeout=0), going_on_with(
            f"the same command continues: {command_line(module, again)}"
        ):  # fmt: skip
            yield path, _study(path, config.storage, settings)
    except Timeout as error:
        raise InputError(f"{path}: another command runs this search; wait for it, or name another folder") from error


def _study(path: Path, storage: str | None, settings: Mapping[str, Any]) -> optuna.Study:
    try:
        backend = JournalStorage(JournalFileBackend(str(path / "journal.log"))) if storage is None else storage
        study = optuna.create_study(
            storage=backend, study_name="search" if storage is None else str(path.resolve()), direction="maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5), load_if_exists=True,
        )  # fmt: skip
    except Exception as error:  # SQLAlchemy's and those of every database driver have no class in common
        if storage is None:
            raise
        raise InputError(
            f"--storage: cannot be opened ({type(error).__name__}); expected a database URL such as sqlite:///study.db"
        ) from error
    if not study.get_trials(deepcopy=False) and any((path / "trials").iterdir()):
        raise InputError(f"{path}: its trials are of another --storage; give that one, or name another folder")
    saved = study.user_attrs.get("settings")
    if saved is None:
        study.set_user_attr("settings", dict(settings))
    elif (different := _first_difference(saved, settings)) is not None:
        raise InputError(f"{path}: its study belongs to another configuration ({different}); name another folder")
    return study


def _first_difference(there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = "") -> str | None:
    for key in [*here, *(key for key in there if key not in here)]:
        old, new = there.get(key), here.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            if (inner := _first_difference(old, new, f"{prefix}{key}.")) is not None:
                return inner
        elif old != new:
            return f"{prefix}{key} is {old!r} there, {new!r} here"
    return None


def run_search(
    path: Path, study: optuna.Study, config: SearchConfig, space: Space, plan: Plan, most: int, jobs: TrialJobs,
    environment: Mapping[str, str],
) -> None:  # fmt: skip
    """Run trials until the plan has no more, ``most`` at most, those first that a kill left without an end.

    Trial N runs ``jobs`` in ``path/trials/NNNN``.
    """
    trials = study.get_trials()
    waiting = [optuna.Trial(study, trial._trial_id) for trial in trials if trial.state == TrialState.RUNNING]
    waiting += [study.ask() for trial in trials if trial.state == TrialState.WAITING]
    most -= sum(trial.state.is_finished() for trial in trials)
    executor, running = build_executor(config, environment), dict[Future[float], optuna.Trial]()
    with progress(max(most, 0), "trials") as ended, executor.threads(config.workers) as threads:
        while True:
            while len(running) < config.workers and (trial := _next(study, plan, waiting)) is not None:
                for name, one in space.distributions.items():
                    trial.suggest_float(name, one.low, one.high, step=one.step)
                running[threads.submit(_score, path, study, trial, jobs, executor)] = trial
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                trial = running.pop(future)
                point = "  ".join(f"{name} {value:g}" for name, value in trial.params.items())
                ended(f"trial {trial.number}  {point}  {_settled(study, trial, future)}")


def _next(study: optuna.Study, plan: Plan, waiting: list[optuna.Trial]) -> optuna.Trial | None:
    if waiting:
        return waiting.pop(0)
    values = plan(study.get_trials(deepcopy=False))
    if values is None:
        return None
    study.enqueue_trial(values)
    return study.ask()


def _score(path: Path, study: optuna.Study, trial: optuna.Trial, jobs: TrialJobs, executor: Executor) -> float:
    """The mean over the trial's jobs, one after another; those with a result are not run again."""
    scores = list[float]()
    every = jobs(path / "trials" / f"{trial.number:04d}", trial.params)
    for job in every:
        executor.run(job)
        if (score := job.score()) is None:
            raise JobFailed(f"{job.run} has no {job.metric}")
        scores.append(score)
        if len(scores) < len(every):
            trial.report(statistics.fmean(scores), len(scores))
            if trial.should_prune():
                raise optuna.TrialPruned(f"after {len(scores)} of {len(every)} seeds")
    return statistics.fmean(scores)


def _settled(study: optuna.Study, trial: optuna.Trial, future: Future[float]) -> str:
    """Enter the outcome into the study; in words."""
    try:
        study.tell(trial, future.result())
    except JobKilled as error:
        return f"killed: {error}; the next start of this command continues it"
    except JobFailed as error:
        study.tell(trial, state=TrialState.FAIL)
        return f"failed: {error}"
    except optuna.TrialPruned as error:
        study.tell(trial, state=TrialState.PRUNED)
        return f"pruned {error}"
    best = scored(study)[0]
    return f"score {future.result():.4f}  (best {best.value:.4f}, trial {best.number})"


def scored(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that have a score, the best first."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return sorted(trials, key=lambda trial: -(trial.value or 0.0))


def best_trial(path: Path, study: optuna.Study) -> FrozenTrial:
    """The highest score, the earliest of equals; an InputError where no trial has one."""
    if not scored(study):
        raise InputError(f"{path}: no trial has a score; the logs in {path / 'trials'} say why")
    return scored(study)[0]


def write_trials(path: Path, study: optuna.Study, score_name: str) -> None:
    """``trials.csv``, a line per trial: its number, its point, its score (empty without one) and its state."""
    text, trials = io.StringIO(), study.get_trials(deepcopy=False)
    names = list(trials[0].params) if trials else []
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", *names, score_name, "state"])
    for trial in trials:
        point = [trial.params.get(name) for name in names]
        score = trial.value if trial.state == TrialState.COMPLETE else None
        writer.writerow([trial.number, *point, score, trial.state.name.lower()])
    write_atomically(path / "trials.csv", text.getvalue().encode())


def trials_table(study: optuna.Study, score_name: str, rows: int = 10) -> Table:
    """The best ``rows`` trials, for a terminal."""
    trials, best = study.get_trials(deepcopy=False), scored(study)
    pruned = sum(trial.state == TrialState.PRUNED for trial in trials)
    table = Table(title=f"{len(best)} of {len(trials)} trials scored, {pruned} pruned")
    for column in ("trial", *best[0].params, score_name):
        table.add_column(column, justify="right")
    for trial in best[:rows]:
        table.add_row(str(trial.number), *(f"{value:g}" for value in trial.params.values()), f"{trial.value:.4f}")
    return table
