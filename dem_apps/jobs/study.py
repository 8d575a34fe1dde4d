"""A study: the trials of a search, in a folder that survives kills and that several commands may share.

The trials are kept by Optuna, in a journal file or an SQL database. Only the thread that calls :func:`run_study`
touches it; the trials themselves run in other threads or processes. Whoever runs a trial holds a lock on its file, so
a trial that the study calls running while its lock is free was killed, and is run again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.trial import FrozenTrial, TrialState

from dem_apps.errors import InputError
from dem_apps.jobs.job import JobFailed, JobKilled, JobPruned
from dem_apps.jobs.search import Plan, Space, Values, best_trial, score
from dem_apps.jobs.shared_work import work_off
from dem_apps.jobs.study_storage import open_study, without_password
from dem_apps.runtime.checkpoint import write_atomically
from dem_apps.runtime.file_lock import FileLock
from dem_apps.runtime.load_state import required
from dem_apps.runtime.run_claim import refuse_ways_out
from dem_apps.runtime.safe_io import read_yaml


@dataclass(frozen=True)
class ClaimedTrial:
    """A trial that is ours to run.

    Args:
        number: its number in the study.
        values: the point to score.
        run: its run folder, ``trials/NNNN``, which exists if an earlier attempt was killed.
        lock: held until the score is in the study.
    """

    number: int
    values: Values
    run: Path
    lock: FileLock


class StudyFolder:
    """An Optuna study and the folder that its trials run in.

    ``study.yaml`` says what the study is, ``journal.log`` is the study itself unless it lives in a database,
    ``trials/NNNN`` are the runs. Several commands on one machine, or on one shared disk, may work in one folder.

    Args:
        path: the folder; made if missing, continued if it holds a study of the same settings.
        settings: what makes scores of two trials comparable, as YAML-able values.
        storage: an SQLAlchemy database URL; None takes ``journal.log``.

    Raises:
        InputError: the folder holds something else or other settings, or the storage cannot be opened.
    """

    def __init__(self, path: Path, settings: dict[str, Any], storage: str | None = None) -> None:
        self.path = path
        self._lock_file = path / "study.lock"
        # in this order: whoever makes a study makes the lock file first, so what is there comes after one
        if path.exists() and (not path.is_dir() or any(path.iterdir())) and not self._lock_file.is_file():
            raise InputError(f"{path}: holds other files, and a study needs a folder of its own; name another one")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (PermissionError, NotADirectoryError) as error:
            raise InputError(f"{path}: cannot be written ({error.strerror}); name another folder") from error
        refuse_ways_out(path)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with self.locked():
            (path / "trials").mkdir(exist_ok=True)
            name = self._identify({"storage": without_password(storage), **settings})
            self._study = open_study(path / "journal.log", storage, name)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes the study, or writes files about it, meanwhile."""
        lock = FileLock(self._lock_file)
        lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def trials(self) -> list[FrozenTrial]:
        """All trials so far, by number."""
        return self._study.get_trials(deepcopy=False)

    def claim(self, space: Space, plan: Plan, tried: set[int]) -> ClaimedTrial | None:
        """The next trial to run: one that was killed, unless in ``tried``, else a new one; None if there is none."""
        with self.locked():
            trials = self.trials()
            for trial in trials:
                if trial.state == TrialState.RUNNING and trial.number not in tried:
                    lock = self._trial_lock(trial.number)
                    if lock is not None:
                        return ClaimedTrial(trial.number, dict(trial.params), self._run(trial.number), lock)
            values = plan(trials)
            if values is None:
                return None
            # one record, so that no kill can leave a trial without its point
            self._study.add_trial(
                optuna.create_trial(
                    state=TrialState.RUNNING, params=dict(values), distributions=dict(space.distributions)
                )
            )
            number = self.trials()[-1].number
            lock = self._trial_lock(number)
            if lock is None:
                raise InputError(
                    f"{self._run(number)}: another process uses this trial's folder; is it a second study?"
                )
            return ClaimedTrial(number, values, self._run(number), lock)

    def settle(self, claim: ClaimedTrial, value: float | None, without: TrialState = TrialState.FAIL) -> None:
        """Enter a score, or with None how the trial ended ``without`` one, and let go of it.

        TPE ranks a pruned trial below all others, and leaves a failed one out.
        """
        with self.locked():
            self._study.tell(claim.number, value, state=without if value is None else None)
            claim.lock.release()

    def running_elsewhere(self, tried: set[int]) -> list[int]:
        """Numbers of running trials that are not in ``tried``."""
        return [t.number for t in self.trials() if t.state == TrialState.RUNNING and t.number not in tried]

    def _run(self, number: int) -> Path:
        return self.path / "trials" / f"{number:04d}"

    def _trial_lock(self, number: int) -> FileLock | None:
        lock = FileLock(self._run(number).with_suffix(".lock"))
        return lock if lock.acquire(wait=False) else None

    def _identify(self, settings: dict[str, Any]) -> str:
        """The study's name, which is chosen once; refuses a folder of other settings."""
        file = self.path / "study.yaml"
        if not file.is_file():
            # a name of its own, since a database may hold the studies of many folders
            name = f"{self.path.resolve().name}-{uuid.uuid4().hex[:8]}"
            write_atomically(file, yaml.safe_dump({"study": name, **settings}, sort_keys=False).encode())
            return name
        try:
            saved = read_yaml(file)
            required(saved, str(file), study=str)
        except InputError as error:
            raise InputError(f"{error}; it is not the description of a study") from error
        name = saved.pop("study")
        difference = _first_difference(saved, settings)
        if difference is not None:
            key, there, here = difference
            raise InputError(
                f"{self.path}: its study belongs to another configuration ({key} is {there!r} there, {here!r} here); "
                "name another folder"
            )
        return str(name)


def run_study(
    folder: StudyFolder,
    space: Space,
    plan: Plan,
    run_trial: Callable[[ClaimedTrial], float],
    workers: int = 1,
    report: Callable[[str], None] = print,
    poll: float = 1.0,
) -> None:
    """Run trials until the plan has no more and nobody, here or in another command, is still running one.

    Args:
        folder: the study.
        space: what the plan chooses from.
        plan: what to try.
        run_trial: scores a claim, higher is better; called in a thread. A :class:`JobFailed` that it raises ends
            this trial and not the search.
        workers: trials at a time.
        report: called with one line for each trial that ends.
        poll: seconds between looks at what other commands have done.
    """
    work_off(_Search(folder, space, plan, run_trial, report), workers, poll)


class _Search:
    """The trials of a study, as shared work; each at most once in this start of the command."""

    def __init__(
        self, folder: StudyFolder, space: Space, plan: Plan, run_trial: Callable[[ClaimedTrial], float],
        report: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._folder, self._space, self._plan, self._report = folder, space, plan, report
        self.run = run_trial
        self._tried: set[int] = set()
        self._started, self._ended, self._said = time.monotonic(), 0, False

    def claim(self) -> ClaimedTrial | None:
        """A trial that was killed, else a new one."""
        claim = self._folder.claim(self._space, self._plan, self._tried)
        if claim is not None:
            self._tried.add(claim.number)
        return claim

    def settle(self, piece: ClaimedTrial, outcome: Future[Any]) -> None:
        """Enter the outcome into the study, and say so."""
        result = _settled(self._folder, piece, outcome)
        self._ended += 1
        pace = (time.monotonic() - self._started) / self._ended
        point = "  ".join(f"{name} {value:g}" for name, value in piece.values.items())
        self._report(f"trial {piece.number}  {point}  {result}  {_outlook(self._folder, self._plan, pace)}")

    def elsewhere(self) -> list[str]:
        """Trials that another command runs."""
        return [str(number) for number in self._folder.running_elsewhere(self._tried)]

    def look(self, waiting_for: Sequence[str]) -> None:
        """Say once what is waited for."""
        if waiting_for and not self._said:
            self._report(f"waiting for what another command still runs: trial {', '.join(waiting_for)}")
            self._said = True


def _settled(folder: StudyFolder, claim: ClaimedTrial, outcome: Future[Any]) -> str:
    """Enter the outcome into the study; in words."""
    try:
        value = float(outcome.result())
    except JobKilled as error:
        claim.lock.release()
        return f"killed: {error}; run again with the next start of this command"
    except JobFailed as error:
        folder.settle(claim, None, TrialState.PRUNED if isinstance(error, JobPruned) else TrialState.FAIL)
        return f"{error.outcome}: {error}"
    folder.settle(claim, value)
    return f"score {value:.4f}"


def _outlook(folder: StudyFolder, plan: Plan, seconds: float) -> str:
    """How many trials have ended, the best of them, and the time that the rest will take at most."""
    trials = folder.trials()
    ended = sum(trial.state.is_finished() for trial in trials)
    best = best_trial(trials)
    most = max(plan.most, ended)
    left = timedelta(seconds=round(seconds * (most - ended)))
    best_text = "" if best is None else f", best {score(best):.4f} (trial {best.number})"
    return f"[{ended} of {most}{best_text}, {left} left]"


def _first_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    for key in [*here, *(key for key in there if key not in here)]:
        old, new = there.get(key), here.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            inner = _first_difference(old, new)
            if inner is not None:
                return f"{key}.{inner[0]}", *inner[1:]
        elif old != new:
            return key, old, new
    return None
