"""A search: Optuna's TPE (Bergstra et al., NeurIPS 2011) over a grid of settings, in a study that a folder holds.

A trial is a training for each seed; after each Optuna's MedianPruner may end it. The same command continues the study.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from dem_apps.errors import InputError, first_words, refused
from dem_apps.jobs.executor import Executor, Job, JobFailed, JobKilled, SearchConfig, build_executor
from dem_apps.report.tables import markdown, write_csv
from dem_apps.runtime.files import new_run_dir, refuse_used_folder
from dem_apps.runtime.progress import Progress
from dem_apps.runtime.settings import dotted
from dem_apps.runtime.signals import command_line, going_on_with

Values = dict[str, float]
#: The jobs of a trial, one for each seed, from its folder and its point.
TrialJobs = Callable[[Path, Values], list[Job]]
_DIGITS = 10  # 3 * 0.1 and 0.3 are the same point


@dataclass(frozen=True)
class Space:
    """A finite grid: low end, high end and step of each parameter, and which combinations exist."""

    ranges: Mapping[str, tuple[float, float, float]]
    allowed: Callable[[Values], bool] = lambda _: True

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The ranges as Optuna has them."""
        return {
            name: FloatDistribution(low, high, step=step)
            for name, (low, high, step) in self.ranges.items()
        }

    def points(self) -> list[Values]:
        """Every allowed combination."""
        axes = [
            [round(low + index * step, _DIGITS) for index in range(round((high - low) / step) + 1)]
            for low, high, step in self.ranges.values()
        ]
        every = (dict(zip(self.ranges, combination, strict=True)) for combination in product(*axes))
        return [values for values in every if self.allowed(values)]


def dem_allows(values: Values) -> bool:
    """Whether 0 < τ ≤ 2/α, Prop. A.1 of the paper."""
    return values["tau"] > 0 and round(values["tau"] * values["alpha"], _DIGITS) <= 2


#: DEM*'s: τ and α from 0 to 2 in steps of 0.1 (paper, Sec. 3.2 and App. B) without what Prop. A.1 rules out.
DEM_SPACE = Space({"tau": (0.1, 2.0, 0.1), "alpha": (0.0, 2.0, 0.1)}, dem_allows)


@dataclass(frozen=True)
class Plan:
    """The points that a search tries: none twice, from ``first`` on, ``trials`` at most; failed ones count."""

    space: Space
    first: Values
    trials: int
    seed: int  #: of the sampler: with the same seed and trials so far, the next point is the same
    score: str  #: what the trials maximise, in tables

    def next_point(self, tried: Sequence[FrozenTrial]) -> Values | None:
        """The free point that is the fewest steps away from TPE's proposal; None at the end."""
        taken = [trial.params for trial in tried]
        free = [values for values in self.space.points() if values not in taken]
        if len(tried) >= self.trials or not free:
            return None
        if self.first in free:
            return self.first
        seed = random.Random(f"{self.seed}/{len(tried)}").randrange(2**31)
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        # a copy in memory is asked, so that the proposal leaves no trace in the study
        copy = optuna.create_study(sampler=sampler, direction="maximize")
        copy.add_trials(tried)
        proposal = copy.ask(self.space.distributions).params
        steps = {name: step for name, (_, _, step) in self.space.ranges.items()}
        return min(
            free,
            key=lambda point: sum(
                abs(point[name] - proposal[name]) / steps[name] for name in steps
            ),
        )


@contextmanager
def opened_study(
    module: str,
    arguments: Sequence[str],
    config: SearchConfig,
    settings: Mapping[str, Any],
    free: Sequence[str] = (),
) -> Iterator[tuple[Path, optuna.Study]]:
    """The folder of a study and the study, begun or continued; an interruption says how to go on.

    ``module`` and ``arguments`` are the command's, ``settings`` what scores depend on, of its ``train`` all but the
    ``free`` ones. Raises InputError: a folder that is used, of other settings or by another command, or no storage.
    """
    path = Path(config.study_dir) if config.study_dir else new_run_dir(*module.split("."))
    again = arguments if config.study_dir else [*arguments, "--study-dir", str(path)]
    if not (path / "trials").is_dir():
        refuse_used_folder(path, "--study-dir")
    (path / "trials").mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    # of a trial that goes on
    warnings.filterwarnings("ignore", message="The reported value is ignored")
    then = f"the same command continues: {command_line(module, again)}"
    taken = f"{path}: another command runs this search; wait for it, or name another folder"
    with (
        refused(lambda _: taken, Timeout),
        FileLock(path / "study.lock", timeout=0),
        going_on_with(then),
    ):
        yield path, _study(path, config.storage, settings, free)


def _study(
    path: Path, storage: str | None, settings: Mapping[str, Any], free: Sequence[str]
) -> optuna.Study:
    journal = path / "journal.log"
    # Optuna's own lock, of a killed command: the study's is held here
    for left in path.glob(f"{journal.name}.lock*"):
        left.unlink()
    if storage is None and journal.is_file():
        *_, cut = journal.read_bytes().rpartition(b"\n")
        # a line that a full disk or a power cut ended
        os.truncate(journal, journal.stat().st_size - len(cut))
    try:
        backend = JournalStorage(JournalFileBackend(str(journal))) if storage is None else storage
        study = optuna.create_study(
            storage=backend,
            study_name="search" if storage is None else str(path.resolve()),
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
            load_if_exists=True,
        )
    except (
        Exception
    ) as error:  # SQLAlchemy's and those of every database driver have no class in common
        if isinstance(error, json.JSONDecodeError):
            raise InputError(
                f"{journal}: is damaged ({first_words(error)}); name another folder"
            ) from error
        if storage is None:
            raise
        raise InputError(
            f"--storage: cannot be opened ({type(error).__name__}); expected a database URL such as sqlite:///study.db"
        ) from error
    if not study.get_trials(deepcopy=False) and any((path / "trials").iterdir()):
        raise InputError(
            f"{path}: the study does not know its trials; give their --storage, or name another folder"
        )
    saved = study.user_attrs.get("settings")
    if saved is None:
        study.set_user_attr("settings", dict(settings))
        return study
    there, here = dotted(saved), dotted(settings)
    for key in (*here, *there):
        if key.removeprefix("train.") not in free and there.get(key) != here.get(key):
            different = f"{key} is {there.get(key)!r} there, {here.get(key)!r} here"
            raise InputError(
                f"{path}: its study belongs to another configuration ({different}); name another folder"
            )
    return study


def refuse_given(train: Any, **reasons: str) -> None:
    """An InputError for a setting of the trainings that the search decides; ``reasons`` by the setting's name."""
    reasons["run_dir"] = "each training has a folder of its own under --study-dir"
    reasons["resume"] = "the same command again continues the study in --study-dir"
    for name, why in reasons.items():
        if getattr(train, name) != getattr(type(train)(), name):
            raise InputError(f"--train.{name.replace('_', '-')}: leave it out, {why}")


def run_search(
    path: Path,
    study: optuna.Study,
    config: SearchConfig,
    plan: Plan,
    jobs: TrialJobs,
    environment: Mapping[str, str],
) -> None:
    """Run trials in ``path/trials/NNNN`` until the plan has no more, unfinished ones first; writes ``trials.csv``."""
    finished = sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))
    bar = Progress(max(plan.trials, finished), finished, title="search", unit="trials")
    executor = build_executor(config, environment)
    work = partial(_score, path, jobs, executor)
    try:
        with (
            closing(bar),
            closing(executor.each(config.workers, _trials(study, plan), work)) as ended,
        ):
            for trial, future in ended:
                point = "  ".join(f"{name} {value:g}" for name, value in trial.params.items())
                bar.ended(f"trial {trial.number}  {point}  {_settled(study, trial, future)}")
    finally:
        _write_trials(path, study, plan.score)


def _trials(study: optuna.Study, plan: Plan) -> Iterator[optuna.Trial]:
    """The trials that a kill has left unfinished, then the plan's next ones, in the study when they are asked for."""
    for left in study.get_trials(states=(TrialState.RUNNING,)):
        yield optuna.Trial(study, left._trial_id)
    while (values := plan.next_point(study.get_trials(deepcopy=False))) is not None:
        # whole at once: a kill leaves no trial with some of its parameters
        study.add_trial(
            create_trial(
                state=TrialState.RUNNING, params=values, distributions=plan.space.distributions
            )
        )
        yield optuna.Trial(study, study.get_trials(deepcopy=False)[-1]._trial_id)


def _score(path: Path, jobs: TrialJobs, executor: Executor, trial: optuna.Trial) -> float:
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


def _write_trials(path: Path, study: optuna.Study, score: str) -> None:
    """``trials.csv``, a line per trial: its number, its point, its score (empty without one) and its state."""
    rows = []
    for trial in study.get_trials(deepcopy=False):
        value = trial.value if trial.state == TrialState.COMPLETE else None
        rows.append(
            {"trial": trial.number, **trial.params, score: value, "state": trial.state.name.lower()}
        )
    write_csv(path / "trials.csv", rows)


def print_trials(study: optuna.Study, score: str) -> None:
    """The ten best trials as a table."""
    trials, best = study.get_trials(deepcopy=False), scored(study)
    pruned = sum(trial.state == TrialState.PRUNED for trial in trials)
    print(f"{len(best)} of {len(trials)} trials scored, {pruned} pruned\n")
    rows = [
        [str(trial.number), *(f"{each:g}" for each in trial.params.values()), f"{trial.value:.4f}"]
        for trial in best
    ]
    print(markdown(["trial", *best[0].params, score], rows[:10]), end="")
