"""A search: Optuna's TPE (Bergstra et al., NeurIPS 2011) over a grid of settings, in a study that a folder holds.

A trial is a training for each seed; after each Optuna's MedianPruner may end it. The same command continues the study.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import yaml
from filelock import FileLock, Timeout
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from dem_apps.errors import InputError, refused
from dem_apps.jobs.executor import (
    Job,
    JobFailed,
    JobKilled,
    SearchConfig,
    Variables,
    build_executor,
)
from dem_apps.report.tables import write_csv
from dem_apps.runtime.documents import Document, Settings
from dem_apps.runtime.files import new_run_dir, refuse_used_folder, write_atomically
from dem_apps.runtime.progress import Progress
from dem_apps.runtime.settings import dotted
from dem_apps.runtime.signals import command_line, going_on_with

Values = dict[str, float]
#: Low end, high end and step.
Range = tuple[float, float, float]
#: The jobs of a trial, one for each seed, from its folder and its point.
TrialJobs = Callable[[Path, Values], list[Job]]
#: DEM*'s τ and α (paper, Sec. 3.2 and App. B), of which Prop. A.1 rules some combinations out.
DEM_RANGES = {"tau": (0.1, 2.0, 0.1), "alpha": (0.0, 2.0, 0.1)}
_DIGITS = 10  # 3 * 0.1 and 0.3 are the same point
#: Proposals of which none is new, after which no point is left.
_PROPOSALS = 200


def dem_allows(values: Values) -> bool:
    """Return whether 0 < τ ≤ 2/α, Prop. A.1 of the paper."""
    return values["tau"] > 0 and round(values["tau"] * values["alpha"], _DIGITS) <= 2


@dataclass(frozen=True)
class Plan:
    """The points that a search tries, from ``first`` on.

    No point is tried twice. At most ``trials`` are tried, and failed ones count.
    """

    ranges: Mapping[str, Range]  #: of each parameter
    first: Values
    trials: int
    seed: int  #: of the sampler: with the same seed and trials so far, the next point is the same
    score: str  #: what the trials maximise, in tables
    allowed: Callable[[Values], bool] = lambda _: True  #: which combinations exist

    def next_trial(self, tried: Sequence[FrozenTrial]) -> FrozenTrial | None:
        """Return the next trial, at TPE's first proposal that is allowed and new; None at the end."""
        if len(tried) >= self.trials:
            return None
        # TPE proposes points in a copy of the study. The study itself gets only complete trials,
        # so a command that is killed leaves no incomplete trial.
        sampler = optuna.samplers.TPESampler(
            seed=1000 * self.seed + len(tried), multivariate=True, constant_liar=True
        )
        copy = optuna.create_study(sampler=sampler, direction="maximize")
        copy.add_trials(tried)
        distributions: dict[str, BaseDistribution] = {
            name: FloatDistribution(low, high, step=step)
            for name, (low, high, step) in self.ranges.items()
        }
        taken, point = [trial.params for trial in tried], self.first
        for _ in range(_PROPOSALS):
            if point not in taken and self.allowed(point):
                return create_trial(
                    state=TrialState.RUNNING, params=point, distributions=distributions
                )
            proposal = copy.ask(distributions).params
            point = {name: round(value, _DIGITS) for name, value in proposal.items()}
        return None


@contextmanager
def finished_search(
    module: str,
    arguments: Sequence[str],
    config: SearchConfig,
    plan: Plan,
    settings: Settings,
    free: Iterable[str],
    jobs: TrialJobs,
    environment: Variables,
) -> Iterator[tuple[Path, optuna.Study]]:
    """Run or continue a search to its end; if it is interrupted, a message says how to continue.

    Args:
        module: the command, such as ``seg.tune``.
        arguments: those of the command.
        config: the search.
        plan: its points.
        settings: what scores depend on.
        free: settings of ``settings["train"]`` that may differ when a study is continued.
        jobs: the jobs of a trial.
        environment: variables of the trainings.

    Yields:
        The study's folder and the study, in which at least one trial has a score.

    Raises:
        InputError: a folder that is used, of other settings or by another command; no storage; or no trial with a
            score.
    """
    path = Path(config.study_dir) if config.study_dir else new_run_dir(*module.split("."))
    if not (path / "trials").is_dir():
        refuse_used_folder(path, "--study-dir")
        (path / "trials").mkdir(parents=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    # Optuna's, where a trial goes on
    warnings.filterwarnings("ignore", message="The reported value is ignored")
    then = f"the same command continues: {command_line(module, arguments)}"
    if not config.study_dir:
        then += f" --study-dir {path}"
    taken = f"{path}: another command runs this search; wait for it, or name another folder"
    with (
        refused(lambda _: taken, Timeout),
        FileLock(path / "study.lock", timeout=0),
        going_on_with(then),
    ):
        print(f"study    {path}", flush=True)
        study = _study(path, config.storage)
        current = dotted(settings)
        for key in free:
            current.pop(f"train.{key}", None)
        for key, value in study.user_attrs.get("settings", current).items():
            if current.get(key) != value:
                raise InputError(
                    f"{path}: its study was begun with {key} {value!r}, not {current.get(key)!r}; name another folder"
                )
        study.set_user_attr("settings", current)
        _run(path, study, config, plan, jobs, environment)
        if not study.get_trials(states=(TrialState.COMPLETE,)):
            raise InputError(f"{path}: no trial has a score; the logs in {path / 'trials'} say why")
        yield path, study


def _study(path: Path, storage: str | None) -> optuna.Study:
    """Open the study in the folder's journal, or in a database."""
    journal = path / "journal.log"
    # A killed command leaves Optuna's own lock behind. It can be deleted: the caller holds the
    # study's lock, so no other command uses the journal.
    for left in path.glob(f"{journal.name}.lock*"):
        left.unlink()
    try:
        study = optuna.create_study(
            storage=storage or JournalStorage(JournalFileBackend(str(journal))),
            study_name=str(path.resolve()) if storage else "search",
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
            load_if_exists=True,
        )
    except Exception as error:  # drivers of databases have no class in common
        why = type(error).__name__  # the message may hold a password
        where = "--storage" if storage else str(journal)
        raise InputError(
            f"{where}: the study cannot be opened ({why}); give a study, or a database such as sqlite:///study.db"
        ) from error
    if not study.trials and any((path / "trials").iterdir()):
        raise InputError(
            f"{path}: the study does not know its trials; give their --storage, or name another folder"
        )
    return study


def refuse_given(train: Any, **reasons: str) -> None:
    """Refuse a setting of the trainings that the search decides; ``reasons`` by the setting's name."""
    reasons["run_dir"] = "each training has a folder of its own under --study-dir"
    reasons["resume"] = "the same command again continues the study in --study-dir"
    for name, why in reasons.items():
        if getattr(train, name) != getattr(type(train)(), name):
            raise InputError(f"--train.{name.replace('_', '-')}: leave it out, {why}")


def _run(
    path: Path,
    study: optuna.Study,
    config: SearchConfig,
    plan: Plan,
    jobs: TrialJobs,
    environment: Variables,
) -> None:
    """Run trials in ``path/trials/NNNN`` until the plan has no more, unfinished ones first; writes ``trials.csv``."""
    executor = build_executor(config, environment)
    finished = sum(trial.state.is_finished() for trial in study.trials)
    bar = Progress(max(plan.trials, finished), finished, title="search", unit="trials")

    def work(trial: optuna.Trial) -> float:
        folder = path / "trials" / f"{trial.number:04d}"
        return _mean_score(trial, jobs(folder, trial.params), executor.run)

    def ended(trial: optuna.Trial, outcome: Future[float]) -> None:
        point = "  ".join(f"{name} {value:g}" for name, value in trial.params.items())
        bar.ended(f"trial {trial.number}  {point}  {_settled(study, trial, outcome)}")

    try:
        with closing(bar):
            executor.run_all(config.workers, _trials(study, plan), work, ended)
    finally:
        _write_trials(path, study, plan.score)


def _trials(study: optuna.Study, plan: Plan) -> Iterator[optuna.Trial]:
    """Yield the trials that a kill has left unfinished, then the plan's next ones, each when it is asked for."""
    for left in study.get_trials(states=(TrialState.RUNNING,)):
        yield optuna.Trial(study, left._trial_id)
    while (trial := plan.next_trial(study.trials)) is not None:
        study.add_trial(trial)
        yield optuna.Trial(study, study.trials[-1]._trial_id)


def _mean_score(trial: optuna.Trial, jobs: Sequence[Job], run: Callable[[Job], None]) -> float:
    """Run a trial's jobs one after another; those with a result are not run again."""
    scores = list[float]()
    for job in jobs:
        run(job)
        score = job.score()
        if score is None:
            raise JobFailed(f"{job.run} has no {job.metric}")
        scores.append(score)
        if len(scores) < len(jobs):
            trial.report(statistics.fmean(scores), len(scores))
            if trial.should_prune():
                raise optuna.TrialPruned(f"after {len(scores)} of {len(jobs)} seeds")
    return statistics.fmean(scores)


def _settled(study: optuna.Study, trial: optuna.Trial, outcome: Future[float]) -> str:
    """Enter the outcome into the study, and return it in words."""
    try:
        score = outcome.result()
    except JobKilled as error:
        return f"killed: {error}; the next start of this command continues it"
    except JobFailed as error:
        study.tell(trial, state=TrialState.FAIL)
        return f"failed: {error}"
    except optuna.TrialPruned as error:
        study.tell(trial, state=TrialState.PRUNED)
        return f"pruned {error}"
    study.tell(trial, score)
    return f"score {score:.4f}  (best {study.best_value:.4f}, trial {study.best_trial.number})"


def _write_trials(path: Path, study: optuna.Study, score: str) -> None:
    """Write ``trials.csv``, a line per trial: its number, its point, its score (empty without one) and its state."""
    rows: list[Document] = []
    for trial in study.trials:
        value = trial.value if trial.state == TrialState.COMPLETE else None
        state = trial.state.name.lower()
        rows.append({"trial": trial.number, **trial.params, score: value, "state": state})
    write_csv(path / "trials.csv", rows)


def write_choice(
    path: Path, remark: str, choice: Settings, module: str, train_flags: Sequence[str]
) -> None:
    """Write ``best.yaml`` with the settings that were found, and print the command of the final run."""
    file = path / "best.yaml"
    text = f"# {remark}\n# python -m {module} --config FILE --config THIS_FILE\n"
    text += yaml.safe_dump(dict(choice), sort_keys=False)
    write_atomically(file, text.encode())
    print(
        f"files    {path}: best.yaml, trials.csv\n"
        f"next     {command_line(module, [*train_flags, '--config', str(file)])}"
    )
