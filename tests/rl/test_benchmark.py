"""The grid, its report, its mistakes; rl.plots: table, CSV file, figures; the search and its choice's fresh scores."""

import csv
import json
import math
import re
from dataclasses import replace
from itertools import product

import pytest
import yaml
from filelock import FileLock
from support import ROOT, cases, refuses
from support.report_runs import STAND_IN, rl_run, seg_run
from support.shell_job import train_by

import rl.tune
from dem_apps.report.intervals import difference_interval
from dem_apps.runtime.settings import parse_config
from rl.benchmark import BenchmarkConfig, benchmark, grid_jobs
from rl.config import TrainConfig, resolve
from rl.plots import main as plots
from rl.results.comparison import arm_names, find_runs
from rl.tune import TuneConfig, search_plan, settings_of, tune

ENV = "MiniGrid-Empty-Random-5x5-v0"


def config(path, **changes):
    settings = {
        "envs": {ENV: {"timesteps": 20}},
        "arms": {"none": {"loss": "none"}, "adadem": {"loss": "adadem"}},
        "seeds": [0, 1, 2],
        "folder": str(path),
        "baseline": "none",
        "workers": 2,
        **changes,
    }
    return BenchmarkConfig(**settings)


def test_what_fails_is_listed_and_the_rest_is_reported_and_not_repeated(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    for loss, seed in product(("none", "adadem"), (1, 2)):
        rl_run(tmp_path / loss / str(seed), (seed + len(loss)) / 20, loss, seed, ENV)
    train_by(tmp_path / "stand_in.py", monkeypatch)
    short = {"short": {"env": ENV, "timesteps": 20}}
    settings = config(tmp_path / "grid", seeds=[13, 1, 2], envs=short, train={"ent_coef": 0.1})
    assert len(benchmark(settings)) == 2
    output = capsys.readouterr()
    log = tmp_path / "grid" / "short" / "none" / "seed13.log"
    assert (
        f"failed: short  none  seed 13: it ended with status 1: error: unlucky (all of its output: {log})"
        in output.err
    )
    assert "4 of 6 runs" in output.out
    assert "| adadem | 2 | 0.375 ± 0.035 (**+0.100 [+0.100, +0.100], better**) |" in re.sub(
        " +", " ", output.out
    )
    report = {path.name: path.read_bytes() for path in (tmp_path / "grid" / "report").iterdir()}
    assert {"runs.csv", "table.md", "returns_sampled.png", "returns_greedy.svg"} <= set(report)
    benchmark(replace(settings, report_only=True))
    assert {
        path.name: path.read_bytes() for path in (tmp_path / "grid" / "report").iterdir()
    } == report


@cases(
    (
        {"envs": {}},
        "--config: needs a file that names envs and arms, such as configs/rl/paper.yaml",
    ),
    (
        {"arms": {"none": {"los": "adadem"}}},
        f"{ENV}, none: unknown key 'los'; did you mean 'loss'?",
    ),
)
def test_mistakes_are_one_sentence_before_anything_runs(changes, message, tmp_path):
    refuses(re.escape(message), benchmark, config(tmp_path / "grid", **changes))
    assert not (tmp_path / "grid").exists()


def test_hyperparameters_of_an_arm_are_merged_into_those_of_its_environment_and_of_all_runs(
    tmp_path,
):
    def given(**hyperparameters):
        return {"hyperparameters": hyperparameters}

    arms = {"slow": {"loss": "none", **given(learning_rate=0.1, n_epochs=1)}}
    settings = config(
        tmp_path,
        envs={ENV: given(n_envs=2, n_epochs=2)},
        train=given(n_steps=32, n_envs=1),
        arms=arms,
    )
    ((job, *_),) = grid_jobs(replace(settings, baseline=None)).values()
    merged = parse_config(TrainConfig, "x", "x", job.flags).hyperparameters
    assert merged == {"n_steps": 32, "n_envs": 2, "n_epochs": 1, "learning_rate": 0.1}


@pytest.mark.parametrize(
    ("file", "runs", "steps"), [("paper", 162, 59_400_000), ("coefficients", 72, 21_600_000)]
)
def test_the_grids_in_configs(file, runs, steps):
    settings = BenchmarkConfig(
        **yaml.safe_load((ROOT / "configs" / "rl" / f"{file}.yaml").read_text())
    )
    seeds = len(settings.seeds)
    jobs = [
        job
        for jobs in grid_jobs(replace(settings, seeds=settings.seeds[:1])).values()
        for job in jobs
    ]
    assert len({job.run for job in jobs}) * seeds == len(jobs) * seeds == runs
    assert (
        seeds
        * sum(resolve(parse_config(TrainConfig, "x", "x", job.flags)).timesteps for job in jobs)
        == steps
    )


MEANS = {"none": (0.1, 0.3, 0.2), "adadem": (0.7, 0.8, 0.9)}


@pytest.fixture
def runs(tmp_path):
    for loss, means in MEANS.items():
        for seed, mean in enumerate(means):
            for env in ("MiniGrid-Unlock-v0", "MiniGrid-Empty-5x5-v0"):
                rl_run(tmp_path / "runs" / env / loss / f"seed{seed}", mean, loss, seed, env)
    return tmp_path / "runs"


def test_the_command_compares_arms_seed_by_seed(runs, tmp_path, capsys):
    plots([str(runs), "--out", str(tmp_path / "report")])
    table = re.sub(" +", " ", capsys.readouterr().out)  # columns are aligned
    by_seed = [dict(enumerate(MEANS[loss])) for loss in ("adadem", "none")]
    difference = difference_interval(*by_seed)
    ends = f"+{difference.estimate:.3f} [+{difference.low:.3f}, +{difference.high:.3f}], better"
    unlock = table.partition("## MiniGrid-Unlock-v0\n")[2]
    assert f"| adadem | 3 | 0.800 ± 0.100 (**{ends}**) |" in unlock
    assert "| none | 3 | 0.200 ± 0.100 |" in unlock
    assert "12 runs; figures, table.md and runs.csv are in" in table
    rows = list(csv.DictReader((tmp_path / "report/runs.csv").open()))
    assert len(rows) == 12
    ours = next(row for row in rows if row["arm"] == "adadem" and row["seed"] == "1")
    assert (ours["last_mean_return_sampled"], ours["best_mean_return_greedy"]) == ("0.8", "0.4")
    assert (ours["steps_to_goal"], ours["ent_coef"]) == ("20.0", "0.1")
    files = {file.name for file in (tmp_path / "report").iterdir()}
    assert {
        f"{name}.{kind}"
        for name in ("returns_sampled", "returns_greedy", "policy_entropy")
        for kind in ("png", "svg")
    } <= files


@cases((0.9, "20 ± 0 (+0 [+0, +0]) |"), (0.1, "20 ± 0 |"))
def test_steps_to_the_goal_differ_only_where_every_run_reached_it(mean, shown, tmp_path, capsys):
    for loss, seed in product(("none", "adadem"), range(2)):
        rl_run(
            tmp_path / loss / str(seed), mean if (loss, seed) == ("none", 1) else 0.9, loss, seed
        )
    plots([str(tmp_path), "--out", str(tmp_path / "report")])
    assert (
        re.sub(" +", " ", capsys.readouterr().out)
        .partition("| adadem |")[2]
        .partition("\n")[0]
        .endswith(shown)
    )


def test_a_run_of_another_command_is_left_out_and_named(tmp_path, capsys):
    other, mine = seg_run(tmp_path / "segmenter"), rl_run(tmp_path / "policy")
    assert [run.path for run in find_runs([tmp_path])] == [mine]
    assert capsys.readouterr().err == f"note: {other} is no run of rl.train and is left out\n"
    refuses("segmenter: no finished run of rl.train in or below it", find_runs, [other])


def test_arms_are_named_after_what_tells_them_apart(tmp_path):
    rl_run(tmp_path / "a")
    run = rl_run(tmp_path / "b")
    (run / "config.yaml").write_text(
        (run / "config.yaml").read_text().replace("ent_coef: 0.1", "ent_coef: 0.5")
    )
    assert arm_names(find_runs([tmp_path])) == ["entropy, ent-coef 0.1", "entropy, ent-coef 0.5"]


@cases(
    (["--out", "x"], "RUN: name one or more run folders"),
    (["{runs}/nothing", "--out", "x"], "no finished run of rl.train in or below it"),
    (
        ["{runs}", "--out", "{runs}/r", "--baseline", "nne"],
        "--baseline: 'nne' is not one of none, adadem",
    ),
)
def test_mistakes_of_a_comparison_are_one_sentence(arguments, message, runs):
    refuses(re.escape(message), plots, [argument.format(runs=runs) for argument in arguments])


def test_two_runs_of_one_seed_are_refused(tmp_path):
    rl_run(tmp_path / "a")
    rl_run(tmp_path / "b")
    refuses(
        "both have the arm entropy and the seed 0; leave one out",
        plots,
        [str(tmp_path), "--out", str(tmp_path / "report")],
    )


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


@pytest.fixture
def _stand_in(tmp_path, monkeypatch):
    (tmp_path / "stand_in.py").write_text(TRAINER)
    train_by(tmp_path / "stand_in.py", monkeypatch)


def search(folder, **changes):
    config = TuneConfig(
        **{"trials": 12, "seeds": 2, "final_seeds": 2, "study_dir": str(folder), **changes}
    )
    tune(config, TrainConfig(env=ENV, timesteps=64), TRAIN_FLAGS)
    return folder


@pytest.mark.usefixtures("_stand_in")
def test_the_best_of_the_trials_is_judged_with_fresh_seeds(tmp_path):
    finished = search(tmp_path / "study")
    rows = list(csv.DictReader((finished / "trials.csv").open()))
    assert len(rows) == 12
    assert list(rows[0].values())[:3] == ["0", "-3.0", "1.0"]  # rl.train's own settings come first
    assert {row["state"] for row in rows} == {"complete", "pruned", "fail"}

    best = max(
        (row for row in rows if row["state"] == "complete"), key=lambda row: float(row["return"])
    )
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
    refuses("seeds 2, not 3", search, finished, seeds=3)

    taken = finished / "final" / f"{final['trial']:04d}" / "seed1000"
    (taken / "eval.json").unlink()
    with FileLock(taken / "run.lock"):  # of a training that outlived a killed command
        refuses("seed1000: this fresh seed of the choice has no return", search, finished)


@cases(
    ({"loss": "entropy"}, ["log10_ent_coef"]),
    ({"loss": "adaptive-entropy"}, ["log10_ent_coef"]),
    ({"loss": "adadem-mec"}, ["log10_ent_coef", "alpha"]),
    ({"loss": "adadem-mec", "alpha": 0.5}, ["log10_ent_coef"]),
    ({"loss": "dem"}, ["log10_ent_coef", "tau", "alpha"]),
    ({"loss": "dem", "alpha": 2.0}, ["log10_ent_coef", "tau"]),
)
def test_what_is_searched(settings, names):
    plan = search_plan(TrainConfig(**settings), trials=1)
    assert list(plan.ranges) == list(plan.first) == names
    assert plan.first["log10_ent_coef"] == -3.0
    larger = search_plan(TrainConfig(**settings, ent_coef=0.03), trials=1)
    assert larger.first == {**plan.first, "log10_ent_coef": -1.5}
    # Prop. A.1 is of dem alone
    point = {"tau": 1.25, "alpha": 2.0}
    allowed = plan.allowed({name: point[name] for name in names if name in point})
    assert allowed == (settings["loss"] != "dem")


@cases(
    (["--train.loss", "none"], "--train.loss: 'none' has nothing to search"),
    (["--train.ent-coef", "0.1"], "--train.ent-coef: leave it out, the search finds it"),
    (["--train.run-dir", "x"], "--train.run-dir: leave it out"),
    (["--loss", "dem"], "--loss: is a flag of rl.train; write --train.loss"),
)
def test_mistakes_of_a_search_are_one_sentence(arguments, message, tmp_path):
    refuses(re.escape(message), rl.tune.main, [*arguments, "--study-dir", str(tmp_path / "study")])
    assert not (tmp_path / "study").exists()
