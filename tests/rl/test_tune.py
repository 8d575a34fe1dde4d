"""The search: its space, and the fresh evaluation of its choice. Kills: tests/dem_apps/jobs/test_search.py."""

import csv
import json
import math
import re

import pytest
import yaml
from support.cases import cases
from support.refusals import refuses

import rl.tune
from rl.config import TrainConfig, resolve
from rl.tune import TuneConfig, search_space, settings_of, tune

ENV = "MiniGrid-Empty-Random-5x5-v0"
# Best at ent_coef 0.01 and alpha 1; seeds add a little; alpha 0 ends with an error; fresh seeds are worse by 0.1.
TRAINER = """
import json, math, os, sys
words = [word for argument in sys.argv[1:] for word in argument.split("=", 1)]
value = dict(zip(words[::2], words[1::2]))
seed, run, alpha = int(value["--seed"]), value["--run-dir"], float(value["--alpha"])
if alpha == 0:
    sys.exit("error: no alpha")
os.makedirs(run, exist_ok=True)
figure = 1 - 0.2 * abs(math.log10(float(value["--ent-coef"])) + 2) - 0.1 * abs(alpha - 1) + 0.01 * (seed % 10)
with open(run + "/eval.json.tmp", "w") as file:
    json.dump({"mean_return": figure - 0.1 * (seed > 999)}, file)
os.replace(run + "/eval.json.tmp", run + "/eval.json")
"""
TRAIN_FLAGS = ["--env", ENV, "--timesteps", "64"]


@pytest.fixture(autouse=True)
def _stand_in(tmp_path, monkeypatch):
    (tmp_path / "stand_in.py").write_text(TRAINER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def search(folder, **changes):
    config = TuneConfig(**{"trials": 12, "seeds": 2, "final_seeds": 2, "study_dir": str(folder), **changes})
    return tune(config, TrainConfig(env=ENV, timesteps=64), TRAIN_FLAGS, module="stand_in")


def test_the_best_of_the_trials_is_judged_with_fresh_seeds(tmp_path):
    finished = search(tmp_path / "study")
    rows = list(csv.DictReader((finished / "trials.csv").open()))
    assert len(rows) == 12
    assert list(rows[0].values())[:3] == ["0", "-3.0", "1.0"]  # rl.train's own settings come first
    assert {row["state"] for row in rows} == {"complete", "pruned", "fail"}

    best = max((row for row in rows if row["state"] == "complete"), key=lambda row: float(row["return"]))
    chosen = yaml.safe_load((finished / "best.yaml").read_text())
    point = {name: float(best[name]) for name in ("log10_ent_coef", "alpha")}
    assert chosen == {"loss": "adadem", **settings_of(point)}
    assert resolve(TrainConfig(env=ENV, **chosen)).ent_coef == chosen["ent_coef"]
    final = json.loads((finished / "final.json").read_text())
    assert (final["trial"], final["search_return"]) == (int(best["trial"]), float(best["return"]))
    assert final["fresh_seeds"] == [1000, 1001]
    first = 0.9 - 0.2 * abs(math.log10(chosen["ent_coef"]) + 2) - 0.1 * abs(chosen["alpha"] - 1)
    assert final["fresh_returns"] == pytest.approx([first, first + 0.01])
    assert final["fresh_mean_return"] == pytest.approx(first + 0.005)
    assert final["search_return"] == pytest.approx(first + 0.105)
    refuses("its study belongs to another configuration", search, finished, seeds=3)


@cases(
    ({"loss": "entropy"}, ["log10_ent_coef"], 13),
    ({"loss": "adadem-mec"}, ["log10_ent_coef", "alpha"], 13 * 9),
    ({"loss": "adadem-mec", "alpha": 0.5}, ["log10_ent_coef"], 13),
    # of 8 values of tau and 9 of alpha, 59 pairs with tau * alpha at most 2
    ({"loss": "dem"}, ["log10_ent_coef", "tau", "alpha"], 13 * 59),
    ({"loss": "dem", "alpha": 2.0}, ["log10_ent_coef", "tau"], 13 * 4),
)  # fmt: skip
def test_what_is_searched(settings, names, points):
    space = search_space(TrainConfig(**settings))
    assert list(space.distributions) == names
    assert len(space.points()) == points


@cases(
    (["--train.loss", "none"], "--train.loss: 'none' has nothing to search"),
    (["--train.ent-coef", "0.1"], "--train.ent-coef: leave it out, the search finds it"),
    (["--train.run-dir", "x"], "--train.run-dir: leave it out"),
    (["--loss", "dem"], "--loss: a flag of rl.train; write --train.loss"),
    (["--train.env", "MiniGrid-Unlok-v0"], "unknown environment 'MiniGrid-Unlok-v0'"),
)
def test_mistakes_are_one_sentence(arguments, message, tmp_path):
    refuses(re.escape(message), rl.tune.main, [*arguments, "--study-dir", str(tmp_path / "study")])
    assert not (tmp_path / "study").exists()
