"""The search: its grid, TPE and the quick way over it, pruning, and a study that goes on after a kill."""

import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable

import pytest
from filelock import FileLock
from optuna.trial import TrialState, create_trial
from support import refuses
from support.shell_job import Shell

from dem_apps.jobs.executor import SearchConfig
from dem_apps.jobs.search import DEM_RANGES, Plan, Values, dem_allows, finished_search

SETTINGS = {"share": 0.2, "train": {"seed": 0}}
ENTROPY = {"tau": 1.0, "alpha": 1.0}
Score = Callable[[Values, int], float]


def peak(values, seed=0):
    """Highest at τ = 1.3, α = 0.4."""
    return -((values["tau"] - 1.3) ** 2) - (values["alpha"] - 0.4) ** 2


def search(folder, plan, score=peak, script="", seeds=1, left=None, given=SETTINGS, **config):
    """All trials of the study, once the plan has no more; ``left`` is added to it then."""

    def jobs(run, values):
        numbers = range(seeds)
        ends = [
            f"""{script} echo '{{"score": {score(values, n)}}}' > "$RUN/new"; mv "$RUN/new" "$RUN/eval.json" """
            for n in numbers
        ]
        return [
            Shell(run.name, end, (), run / f"seed{n}", "score")
            for n, end in zip(numbers, ends, strict=True)
        ]

    settings = SearchConfig(**{"study_dir": str(folder), **config})
    with finished_search("x.tune", [], settings, plan, given, ["workers"], jobs, {}) as (_, study):
        if left is not None:
            study.add_trial(left)
        return study.get_trials()


def points(trials):
    return [(trial.params["tau"], trial.params["alpha"]) for trial in trials]


def tpe(trials, seed=0):
    return Plan(DEM_RANGES, ENTROPY, trials, seed, "score", dem_allows)


def test_the_space_is_the_papers_and_respects_proposition_a1():
    assert DEM_RANGES == {"tau": (0.1, 2.0, 0.1), "alpha": (0.0, 2.0, 0.1)}
    # in tenths, so that no rounding is involved
    for tau, alpha in itertools.product(range(21), repeat=2):
        allowed = dem_allows({"tau": tau / 10, "alpha": alpha / 10})
        assert allowed == (tau > 0 and tau * alpha <= 200)


def test_a_search_larger_than_the_grid_ends_with_the_grid(tmp_path):
    ranges = {"tau": (1.0, 2.0, 1.0), "alpha": (0.0, 2.0, 1.0)}
    trials = search(tmp_path / "s", Plan(ranges, ENTROPY, 100, 0, "score", dem_allows))
    assert sorted(points(trials)) == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]


def test_a_stopped_study_continues_as_an_unbroken_one(tmp_path, capsys):
    unbroken = search(tmp_path / "unbroken", tpe(8))
    assert points(unbroken)[0] == (1.0, 1.0)
    assert len(set(points(unbroken))) == 8
    assert all(dem_allows(trial.params) for trial in unbroken)
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert lines[0] == "trial 0  tau 1  alpha 1  score -0.4500  (best -0.4500, trial 0)"
    left = create_trial(
        state=TrialState.RUNNING, params=unbroken[5].params, distributions=unbroken[5].distributions
    )
    search(tmp_path / "stopped", tpe(5), left=left)  # and then a kill
    assert points(search(tmp_path / "stopped", tpe(8))) == points(unbroken)
    assert points(search(tmp_path / "other", tpe(8, seed=1))) != points(unbroken)


def test_a_study_may_be_in_a_database(tmp_path):
    storage = f"sqlite:///{tmp_path}/study.db"
    search(tmp_path / "s", tpe(1), storage=storage)
    assert len(search(tmp_path / "s", tpe(2), storage=storage)) == 2
    assert not (tmp_path / "s/journal.log").exists()


def test_a_study_killed_in_the_middle_repeats_no_scored_trial(tmp_path):
    folder = tmp_path / "s"

    def work():
        os.setsid()
        search(folder, tpe(8), script="sleep 0.1;")

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    while len(list(folder.glob("trials/*/seed0/eval.json"))) < 3:
        assert process.is_alive()
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.join()
    trials = search(folder, tpe(8))
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 8
    assert points(trials) == points(search(tmp_path / "unbroken", tpe(8)))
    starts = [
        len(file.read_text().splitlines()) for file in sorted(folder.glob("trials/*/seed0/starts"))
    ]
    assert len(starts) == 8
    assert sum(starts) <= 9, "at most the one that was killed ran again"


def test_a_failed_trial_counts_and_a_killed_one_is_retried_by_the_next_start(tmp_path, capsys):
    script = 'case "$RUN" in *0001/*) echo broken; exit 2;; *0002/*) kill -9 $$;; esac; '
    trials = search(tmp_path / "s", tpe(4), script=script)
    complete, fail, running = TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING
    assert [trial.state for trial in trials] == [complete, fail, running, complete]
    printed = capsys.readouterr().out
    assert printed.count("failed: it ended with status 2: broken (all of its output: ") == 1
    assert printed.count("killed: a signal ended it, status -9 ") == 1
    again = search(tmp_path / "s", tpe(4))
    assert [trial.state for trial in again] == [complete, fail, complete, complete]
    assert points(again) == points(trials)
    assert capsys.readouterr().out.count("\n") == 2


def test_a_trial_below_the_median_of_five_is_pruned_after_one_seed(tmp_path, capsys):
    scores = {number: 0.1 * number for number in range(5)} | {5: 0.19, 6: 0.21}
    numbers = {}

    def score(values, seed):
        number = numbers.setdefault((values["tau"], values["alpha"]), len(numbers))
        return scores[number] + 0.01 * seed

    trials = search(tmp_path / "s", tpe(7), score, seeds=2)
    assert [trial.state for trial in trials] == [
        *[TrialState.COMPLETE] * 5,
        TrialState.PRUNED,
        TrialState.COMPLETE,
    ]
    assert trials[6].value == pytest.approx(0.215)
    assert sorted(
        file.parent.name for file in (tmp_path / "s/trials/0005").glob("*/eval.json")
    ) == ["seed0"]
    assert "pruned after 1 of 2 seeds" in capsys.readouterr().out


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path):
    search(tmp_path / "s", tpe(1))

    def refused(message, **config):
        refuses(message, search, tmp_path / "s", tpe(2), **config)

    refused("share 0.2, not 0.3", given={**SETTINGS, "share": 0.3})
    refused("train.seed 0, not 1", given={**SETTINGS, "train": {"seed": 1}})
    other = f"sqlite:///{tmp_path}/study.db"
    refused("does not know its trials; give their --storage, or name another folder", storage=other)
    with FileLock(tmp_path / "s/study.lock"):
        refused("another command runs this search; wait for it, or name another folder")
    journal = tmp_path / "s" / "journal.log"
    journal.with_name("journal.log.lock").symlink_to("s/journal.log")  # of a killed command
    assert search(tmp_path / "s", tpe(2))[1].state == TrialState.COMPLETE
    journal.write_bytes(b"{junk\n" + journal.read_bytes())
    refused("journal.log: the study cannot be opened")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    refused("holds files already", study_dir=str(tmp_path / "mine"))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "storage", ["nonsense", "sqlite://user:secret@host/x", "sqlite:////nowhere/at/all.db"]
)
def test_a_storage_that_cannot_be_opened_is_one_sentence_without_its_password(storage, tmp_path):
    sentence = r"^--storage: .*such as sqlite:///study.db$"
    assert "secret" not in refuses(sentence, search, tmp_path / "s", tpe(1), storage=storage)
