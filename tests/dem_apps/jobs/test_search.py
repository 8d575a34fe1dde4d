from __future__ import annotations

import csv
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from optuna.trial import TrialState
from PIL import Image

from dem_apps.errors import InputError
from dem_apps.jobs.job import JobFailed, JobKilled
from dem_apps.jobs.search import DEM_SPACE, QuickPlan, TPEPlan, best_trial, dem_allows, quick_trials, score, scored
from dem_apps.jobs.search_report import dem_grid, plot_dem_search, write_trials
from dem_apps.jobs.study import StudyFolder, run_study

SETTINGS = {"share": 0.2, "train": {"seed": 0}}
ENTROPY = {"tau": 1.0, "alpha": 1.0}

# scores its point after a moment; a line in the file given for each start
SCRIPT = """
import sys, time
from pathlib import Path
from dem_apps.jobs.search import DEM_SPACE, TPEPlan
from dem_apps.jobs.study import StudyFolder, run_study

def run_trial(claim):
    with open(sys.argv[2], "a") as file:
        file.write(f"{claim.number} {claim.values['tau']} {claim.values['alpha']}\\n")
    time.sleep(0.15)
    return claim.values["tau"]

study = StudyFolder(Path(sys.argv[1]), {"share": 0.2, "train": {"seed": 0}})
run_study(study, DEM_SPACE, TPEPlan(DEM_SPACE, 12), run_trial, workers=2)
"""


def peak(claim) -> float:
    """Highest at τ = 1.3, α = 0.4."""
    return -((claim.values["tau"] - 1.3) ** 2) - (claim.values["alpha"] - 0.4) ** 2


def run(folder, plan, run_trial=peak, **options) -> list[str]:
    lines: list[str] = []
    run_study(folder, DEM_SPACE, plan, run_trial, report=lines.append, poll=0.02, **options)
    return lines


def points(folder) -> list[tuple[float, float]]:
    return [(trial.params["tau"], trial.params["alpha"]) for trial in folder.trials()]


def test_the_grid_is_the_papers_and_respects_proposition_a1():
    grid = [(values["tau"], values["alpha"]) for values in DEM_SPACE.points()]
    # in tenths, so that no rounding is involved
    expected = [(t / 10, a / 10) for t in range(1, 21) for a in range(21) if t * a <= 200]
    assert sorted(grid) == sorted(expected)
    assert dem_allows({"tau": 0.1, "alpha": 0.0})
    assert not dem_allows({"tau": 1.1, "alpha": 1.9})
    assert not dem_allows({"tau": 0.0, "alpha": 0.0})


@pytest.mark.parametrize("storage", [None, "sqlite:///{}/study.db"], ids=["journal", "sqlite"])
def test_tpe_stays_on_the_allowed_grid_and_repeats_nothing(tmp_path, storage):
    folder = StudyFolder(tmp_path / "s", SETTINGS, storage and storage.format(tmp_path))
    lines = run(folder, TPEPlan(DEM_SPACE, 12, first=(ENTROPY,)))
    tried = points(folder)
    assert len(tried) == len(set(tried)) == 12
    assert set(tried) <= {(values["tau"], values["alpha"]) for values in DEM_SPACE.points()}
    assert tried[0] == (1.0, 1.0)
    assert len(lines) == 12
    assert lines[0].startswith("trial 0  tau 1  alpha 1  score -0.4500  [1 of 12, best -0.4500 (trial 0), ")
    assert (tmp_path / "s" / "journal.log").is_file() == (storage is None)


def test_tpe_finds_more_than_chance(tmp_path):
    found, by_chance = [], []
    for seed in range(2):
        folder = StudyFolder(tmp_path / str(seed), SETTINGS)
        run(folder, TPEPlan(DEM_SPACE, 30, seed))
        found.append(score(best_trial(folder.trials())))
        drawn = random.Random(seed).sample(DEM_SPACE.points(), 30)
        by_chance.append(max(-((v["tau"] - 1.3) ** 2) - (v["alpha"] - 0.4) ** 2 for v in drawn))
    assert np.mean(found) > np.mean(by_chance)
    assert max(found) > -0.021  # at most one step beside the peak in both


def test_a_study_that_was_stopped_continues_as_an_unbroken_one(tmp_path):
    unbroken = StudyFolder(tmp_path / "unbroken", SETTINGS)
    run(unbroken, TPEPlan(DEM_SPACE, 16))
    run(StudyFolder(tmp_path / "stopped", SETTINGS), TPEPlan(DEM_SPACE, 13))
    stopped = StudyFolder(tmp_path / "stopped", SETTINGS)
    run(stopped, TPEPlan(DEM_SPACE, 16))
    assert points(stopped) == points(unbroken)
    other = StudyFolder(tmp_path / "other", SETTINGS)
    run(other, TPEPlan(DEM_SPACE, 16, seed=1))
    assert points(other) != points(unbroken)


def test_a_plan_larger_than_the_grid_ends_with_the_grid():
    assert TPEPlan(DEM_SPACE, 1000).most == 350


def test_the_quick_way_is_alpha_first_and_then_tau(tmp_path):
    folder = StudyFolder(tmp_path / "s", SETTINGS)
    run(folder, QuickPlan(), workers=3)
    tried = points(folder)
    assert tried[:21] == [(1.0, tenths / 10) for tenths in range(21)]
    assert tried[21:] == [(tenths / 10, 0.4) for tenths in range(1, 21) if tenths != 10]
    assert len(tried) == QuickPlan().most
    assert best_trial(folder.trials()).params == {"tau": 1.3, "alpha": 0.4}
    assert [values["tau"] for values in quick_trials(2.0)] == [tenths / 10 for tenths in range(1, 11)]


def test_the_quick_way_waits_for_the_last_alpha(tmp_path):
    folder, plan = StudyFolder(tmp_path / "s", SETTINGS), QuickPlan()
    claims = [folder.claim(DEM_SPACE, plan, set(range(21))) for _ in range(21)]
    for claim in claims[:-1]:
        folder.settle(claim, claim.values["alpha"])
    assert plan(folder.trials()) is None
    folder.settle(claims[-1], 2.0)
    assert plan(folder.trials()) == {"tau": 0.1, "alpha": 2.0}


def test_a_failed_trial_is_one_line_and_stops_nothing(tmp_path):
    def run_trial(claim):
        if claim.number == 1:
            raise JobFailed("status 2, see 0001.log")
        return peak(claim)

    folder = StudyFolder(tmp_path / "s", SETTINGS)
    lines = run(folder, TPEPlan(DEM_SPACE, 4), run_trial)
    assert sum("failed: status 2, see 0001.log" in line for line in lines) == 1
    assert [trial.state for trial in folder.trials()] == [
        TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE, TrialState.COMPLETE,
    ]  # fmt: skip
    # a start after it does not try the same again
    assert run(StudyFolder(tmp_path / "s", SETTINGS), TPEPlan(DEM_SPACE, 4), run_trial) == []


def test_a_killed_trial_is_retried_by_the_next_start_alone(tmp_path):
    attempts: Counter[int] = Counter()

    def run_trial(claim):
        attempts[claim.number] += 1
        if claim.number == 2 and attempts[2] == 1:
            raise JobKilled("signal 9, see 0002.log")
        return peak(claim)

    folder = StudyFolder(tmp_path / "s", SETTINGS)
    lines = run(folder, TPEPlan(DEM_SPACE, 5), run_trial)
    assert sum("killed: signal 9" in line for line in lines) == 1
    assert len(scored(folder.trials())) == 4
    before = points(folder)
    run(StudyFolder(tmp_path / "s", SETTINGS), TPEPlan(DEM_SPACE, 5), run_trial)
    assert len(scored(folder.trials())) == 5
    assert points(folder) == before
    assert attempts == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1}


def test_a_study_killed_in_the_middle_repeats_no_scored_trial(tmp_path):
    started = tmp_path / "started.txt"
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "s"), str(started)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not started.is_file() or started.read_text().count("\n") < 5):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    folder = StudyFolder(tmp_path / "s", SETTINGS)
    done = {trial.number for trial in scored(folder.trials())}
    killed = {trial.number for trial in folder.trials()} - done
    assert done
    assert killed
    again: list[int] = []

    def run_trial(claim):
        again.append(claim.number)
        return claim.values["tau"]

    run(folder, TPEPlan(DEM_SPACE, 12), run_trial)
    assert len(scored(folder.trials())) == len(folder.trials()) == 12
    assert len(set(points(folder))) == 12
    assert sorted(again) == sorted(set(range(12)) - done)
    # a killed trial is tried at the same point
    first = {tuple(map(float, line.split())) for line in started.read_text().splitlines()}
    assert first <= {(number, *point) for number, point in enumerate(points(folder))}


@pytest.mark.parametrize("storage", [None, "sqlite:///{}/study.db"], ids=["journal", "sqlite"])
def test_two_commands_share_one_study(tmp_path, storage):
    ran: list[tuple[float, float]] = []

    def run_trial(claim):
        ran.append((claim.values["tau"], claim.values["alpha"]))
        time.sleep(0.02)
        return peak(claim)

    def command():
        folder = StudyFolder(tmp_path / "s", SETTINGS, storage and storage.format(tmp_path))
        run(folder, TPEPlan(DEM_SPACE, 10), run_trial, workers=2)
        ends.append(len(scored(folder.trials())))

    ends: list[int] = []
    commands = [threading.Thread(target=command) for _ in range(2)]
    for thread in commands:
        thread.start()
    for thread in commands:
        thread.join(60)
    assert ends == [10, 10]  # each waits for the other's last trial
    assert len(ran) == len(set(ran)) == 10


def test_a_torn_last_line_of_the_journal_is_dropped(tmp_path):
    run(StudyFolder(tmp_path / "s", SETTINGS), TPEPlan(DEM_SPACE, 3))
    with open(tmp_path / "s" / "journal.log", "ab") as journal:
        journal.write(b'{"op_code":4,"worker_id":"')
    run(StudyFolder(tmp_path / "s", SETTINGS), TPEPlan(DEM_SPACE, 5))
    assert len(scored(StudyFolder(tmp_path / "s", SETTINGS).trials())) == 5


def test_a_folder_of_other_settings_is_refused(tmp_path):
    StudyFolder(tmp_path / "s", SETTINGS)
    with pytest.raises(InputError, match=r"another configuration \(share is 0.2 there, 0.3 here\)"):
        StudyFolder(tmp_path / "s", {**SETTINGS, "share": 0.3})
    with pytest.raises(InputError, match=r"another configuration \(train.seed is 0 there, 1 here\)"):
        StudyFolder(tmp_path / "s", {**SETTINGS, "train": {"seed": 1}})
    with pytest.raises(InputError, match=r"another configuration \(storage is None there"):
        StudyFolder(tmp_path / "s", SETTINGS, f"sqlite:///{tmp_path}/study.db")


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        StudyFolder(tmp_path, SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("storage", ["nonsense", "nosuch://host/db", "sqlite:////nowhere/at/all.db"])
def test_a_storage_that_cannot_be_opened_is_one_sentence(tmp_path, storage):
    with pytest.raises(InputError, match=r"^storage: .*such as sqlite:///study.db$"):
        StudyFolder(tmp_path / "s", SETTINGS, storage)


def test_a_password_is_not_written_into_the_folder(tmp_path):
    with pytest.raises(InputError) as caught:
        StudyFolder(tmp_path / "s", SETTINGS, "sqlite://user:secret@host/x")
    assert "secret" not in str(caught.value)
    assert "secret" not in (tmp_path / "s" / "study.yaml").read_text()


def test_table_and_picture_show_every_trial(tmp_path):
    def run_trial(claim):
        if claim.number == 2:
            raise JobFailed("x")
        return 0.25 + 0.01 * claim.number

    folder = StudyFolder(tmp_path / "s", SETTINGS)
    run(folder, TPEPlan(DEM_SPACE, 4, first=(ENTROPY, {"tau": 0.3, "alpha": 2.0})), run_trial)
    trials = folder.trials()
    write_trials(tmp_path / "trials.csv", DEM_SPACE, trials, "miou")
    rows = list(csv.DictReader((tmp_path / "trials.csv").open()))
    assert rows[1] == {"trial": "1", "tau": "0.3", "alpha": "2.0", "miou": "0.26", "state": "complete"}
    assert (rows[2]["miou"], rows[2]["state"]) == ("", "fail")
    scores, allowed = dem_grid(trials)
    assert (scores[10, 9], scores[20, 2]) == (0.25, 0.26)  # [α / 0.1, τ / 0.1 - 1]
    assert np.isfinite(scores).sum() == 3
    assert allowed.sum() == 350
    assert allowed[20, 9]
    assert not allowed[20, 10]  # α = 2, τ = 1.1
    plot_dem_search(tmp_path / "search.png", trials, "mIoU")
    picture = np.asarray(Image.open(tmp_path / "search.png").convert("RGB"))
    plot_dem_search(tmp_path / "search.png", trials[:1], "mIoU")
    assert (picture != np.asarray(Image.open(tmp_path / "search.png").convert("RGB"))).any()
    plot_dem_search(tmp_path / "empty.png", [], "mIoU")
    assert Path(tmp_path / "empty.png").is_file()
