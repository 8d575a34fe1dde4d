"""The search: what it searches, when it prunes, that it goes on after a kill, and that its choice is judged anew."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import shlex
import signal
import time
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import rl.tune
from dem_apps.errors import InputError
from dem_apps.jobs.tune import median_after
from dem_apps.runtime.command import run_command
from rl.config import TrainConfig, resolve
from rl.tune import TuneConfig, search_space, settings_of, tune

ENV = "MiniGrid-Empty-Random-5x5-v0"
# Best at ent_coef 0.01 and alpha 1; seeds add a little; alpha 0 ends with an error; fresh seeds are worse by 0.1.
TRAINER = """
import json, math, os, sys, time
value = dict(zip(sys.argv[1::2], sys.argv[2::2]))
seed, run, alpha = int(value["--seed"]), value["--run-dir"], float(value["--alpha"])
if alpha == 0:
    sys.exit("error: no alpha")
os.makedirs(run, exist_ok=True)
with open(run + "/starts", "a") as file:
    file.write("x")
time.sleep(float(os.environ.get("PACE", 0)))
figure = 1 - 0.2 * abs(math.log10(float(value["--ent-coef"])) + 2) - 0.1 * abs(alpha - 1) + 0.01 * (seed % 10)
with open(run + "/eval.json.tmp", "w") as file:
    json.dump({"mean_return": figure - 0.1 * (seed > 999)}, file)
os.replace(run + "/eval.json.tmp", run + "/eval.json")
"""
TRAIN_FLAGS = ["--env", ENV, "--timesteps", "64"]


@pytest.fixture(autouse=True)
def _stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stand_in.py").write_text(TRAINER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def search(folder: Path, **changes: Any) -> Path:
    config = TuneConfig(**{"trials": 12, "seeds": 2, "final_seeds": 2, "study_dir": str(folder), **changes})
    return tune(config, TrainConfig(env=ENV, timesteps=64), TRAIN_FLAGS, module="stand_in")


def table(folder: Path) -> list[list[str]]:
    return [line.split(",") for line in (folder / "trials.csv").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    (folder / "stand_in.py").write_text(TRAINER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        with open(folder / "printed.txt", "w") as printed, redirect_stdout(printed):
            return search(folder / "study")


def test_a_pruned_trial_is_not_called_failed(finished: Path) -> None:
    printed = (finished.parent / "printed.txt").read_text()
    assert printed.count("  pruned: after 1 of 2 seeds") == sum(row[4] == "pruned" for row in table(finished)[1:])
    assert "failed: after" not in printed


def test_trials_run_all_their_seeds_or_are_pruned_after_one(finished: Path) -> None:
    head, *rows = table(finished)
    assert head == ["trial", "log10_ent_coef", "alpha", "return", "state"]
    assert len(rows) == 12
    assert rows[0][:3] == ["0", "-3.0", "1.0"]  # rl.train's own settings come first
    finished_after_one: list[float] = []
    for number, row in enumerate(rows):
        seeds = [path.parent.name for path in sorted((finished / "trials" / f"{number:04d}").glob("*/eval.json"))]
        if row[4] == "fail":
            assert float(row[2]) == 0
            continue
        ((first, second),) = [_expected(row)]
        worse = len(finished_after_one) >= 5 and first < sorted_median(finished_after_one)
        assert row[4] == ("pruned" if worse else "complete")
        assert seeds == (["seed0"] if worse else ["seed0", "seed1"])
        if not worse:
            assert float(row[3]) == pytest.approx((first + second) / 2)
            finished_after_one.append(first)
    assert {row[4] for row in rows} >= {"complete", "pruned"}


def _expected(row: list[str]) -> tuple[float, float]:
    coefficient = settings_of({"log10_ent_coef": float(row[1])})["ent_coef"]
    figure = 1 - 0.2 * abs(math.log10(coefficient) + 2) - 0.1 * abs(float(row[2]) - 1)
    return figure, figure + 0.01


def sorted_median(values: list[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def test_the_choice_is_judged_with_fresh_seeds(finished: Path) -> None:
    rows = [row for row in table(finished)[1:] if row[4] == "complete"]
    best = max(rows, key=lambda row: float(row[3]))
    final = json.loads((finished / "final.json").read_text())
    assert final["trial"] == int(best[0])
    assert final["search_return"] == float(best[3])
    assert final["fresh_seeds"] == [1000, 1001]
    first = _expected(best)[0] - 0.1
    assert final["fresh_returns"] == pytest.approx([first, first + 0.01])
    assert final["fresh_mean_return"] == pytest.approx(first + 0.005)
    chosen = yaml.safe_load((finished / "best.yaml").read_text())
    assert chosen == {"loss": "adadem", **settings_of({"log10_ent_coef": float(best[1]), "alpha": float(best[2])})}
    assert resolve(TrainConfig(env=ENV, **chosen)).ent_coef == chosen["ent_coef"]


def test_a_killed_search_goes_on_to_the_same_choice(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "killed"
    monkeypatch.setenv("PACE", "0.1")

    def work() -> None:
        os.setsid()
        search(folder)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    while len(list(folder.rglob("eval.json"))) < 7:
        assert process.is_alive()
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
    process.join()
    monkeypatch.setenv("PACE", "0")
    assert not (folder / "final.json").exists()
    search(folder)
    assert table(folder) == table(finished)
    assert (folder / "final.json").read_bytes() == (finished / "final.json").read_bytes()
    starts = sum(len(file.read_text()) for file in folder.rglob("starts"))
    assert starts <= 1 + sum(len(file.read_text()) for file in finished.rglob("starts"))


def test_nothing_is_pruned_before_five_trials_are_finished() -> None:
    finished = [[0.1, 0.9], [0.2, 0.8], [0.3, 0.7], [0.4, 0.6]]
    assert median_after(finished, 1) is None
    assert median_after([*finished, [0.9, 0.9]], 1) == 0.3
    assert median_after([*finished, [0.9, 0.9]], 2) == 0.5


@pytest.mark.parametrize(
    ("settings", "names", "points"),
    [
        ({"loss": "entropy"}, ["log10_ent_coef"], 13),
        ({"loss": "adadem-mec"}, ["log10_ent_coef", "alpha"], 13 * 9),
        ({"loss": "adadem-mec", "alpha": 0.5}, ["log10_ent_coef"], 13),
        # of 8 values of tau and 9 of alpha, 59 pairs with tau * alpha at most 2
        ({"loss": "dem"}, ["log10_ent_coef", "tau", "alpha"], 13 * 59),
        ({"loss": "dem", "alpha": 2.0}, ["log10_ent_coef", "tau"], 13 * 4),
    ],
)  # fmt: skip
def test_what_is_searched(settings: dict[str, Any], names: list[str], points: int) -> None:
    space = search_space(TrainConfig(**settings))
    # momentum joins them where rl.train has a flag for it
    assert [name for name in space.distributions if name != "momentum"] == names
    per_momentum = 5 if "momentum" in space.distributions else 1
    assert len(space.points()) == points * per_momentum


def test_settings_of_a_point() -> None:
    assert settings_of({"log10_ent_coef": -3.0, "alpha": 0.5}) == {"alpha": 0.5, "ent_coef": 0.001}
    assert settings_of({"log10_ent_coef": -2.75}) == {"ent_coef": 0.001778}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--train.loss", "none"], "--train.loss: 'none' has nothing to search"),
        (["--train.ent-coef", "0.1"], "--train.ent-coef: leave it out, the search finds it"),
        (["--train.run-dir", "x"], "--train.run-dir: leave it out"),
        (["--loss", "dem"], "--loss: a flag of rl.train; write --train.loss"),
        (["--seeds", "0"], "--seeds: expected 1 or more, got 0"),
        (["--trails", "3"], "unknown argument '--trails'; did you mean '--trials'?"),
        (["--train.env", "MiniGrid-Unlok-v0"], "unknown environment 'MiniGrid-Unlok-v0'"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        rl.tune.main([*arguments, "--study-dir", str(tmp_path / "study")])
    assert not (tmp_path / "study").exists()


def test_a_folder_of_another_search_is_refused(finished: Path) -> None:
    with pytest.raises(InputError, match="its study belongs to another configuration"):
        search(finished, seeds=3)


def test_an_interrupted_search_names_the_folder_that_it_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACE", "0.3")
    monkeypatch.setattr(rl.tune, "tune", partial(tune, module="stand_in"))
    arguments = ["--train.env", ENV, "--train.timesteps", "64", "--trials", "1", "--seeds", "1", "--final-seeds", "1"]
    searching = multiprocessing.get_context("fork").Process(target=run_command, args=(lambda: rl.tune.main(arguments),))
    searching.start()
    while not list(tmp_path.rglob("starts")):
        assert searching.is_alive()
        time.sleep(0.002)
    os.kill(searching.pid, signal.SIGTERM)  # type: ignore[arg-type]
    searching.join()
    assert searching.exitcode == 143
    (study,) = Path("runs").iterdir()
    command = shlex.join(["python", "-m", "rl.tune", *arguments, "--study-dir", str(study)])
    assert capfd.readouterr().err == f"interrupted; the same command continues: {command}\n"
    rl.tune.main(shlex.split(command)[3:])
    assert json.loads((study / "final.json").read_text())["trials"] == 1
