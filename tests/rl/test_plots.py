"""rl.plots: what its table, its CSV file and its figures say, and mistakes."""

import csv
import re

import pytest
from support.refusals import refuses
from support.report_runs import rl_run

from dem_apps.report.intervals import difference_interval
from rl.plots import main
from rl.results.comparison import arm_names, find_runs

MEANS = {"none": (0.1, 0.3, 0.2), "adadem": (0.7, 0.8, 0.9)}


@pytest.fixture
def runs(tmp_path):
    for loss, means in MEANS.items():
        for seed, mean in enumerate(means):
            for env in ("MiniGrid-Unlock-v0", "MiniGrid-Empty-5x5-v0"):
                rl_run(tmp_path / "runs" / env / loss / f"seed{seed}", mean, loss, seed, env)
    return tmp_path / "runs"


def test_the_command_compares_arms_seed_by_seed(runs, tmp_path, capsys):
    main([str(runs), "--out", str(tmp_path / "report")])
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
    assert {f"{name}.{kind}" for name in ("returns_sampled", "returns_greedy", "policy_entropy")
            for kind in ("png", "svg")} <= files  # fmt: skip


def test_arms_are_named_after_what_tells_them_apart(tmp_path):
    rl_run(tmp_path / "a")
    run = rl_run(tmp_path / "b")
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("ent_coef: 0.1", "ent_coef: 0.5"))
    assert arm_names(find_runs([tmp_path])) == ["entropy, ent-coef 0.1", "entropy, ent-coef 0.5"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "RUN: name one or more run folders"),
        (["{runs}/nothing", "--out", "x"], "no finished run in or below it"),
        (
            ["{runs}", "--out", "{runs}/r", "--baseline", "nne"],
            "--baseline: 'nne' is not one of the arms none, adadem; did",
        ),
    ],
)
def test_mistakes_are_one_sentence(arguments, message, runs):
    refuses(re.escape(message), main, [argument.format(runs=runs) for argument in arguments])


def test_two_runs_of_one_seed_are_refused(tmp_path):
    rl_run(tmp_path / "a")
    rl_run(tmp_path / "b")
    refuses("both are entropy, seed 0; leave one out", main, [str(tmp_path), "--out", str(tmp_path / "report")])
