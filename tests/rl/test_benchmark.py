"""The grid's report, its mistakes, and a kill; a stand-in for rl.train keeps all but the slow test short."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import yaml
from support.refusals import refuses
from support.report_runs import STAND_IN, rl_run

from dem_apps.runtime.settings import parse_config
from rl.benchmark import BenchmarkConfig, benchmark, grid_jobs
from rl.config import TrainConfig, resolve

ROOT = Path(__file__).resolve().parents[2]
ENV = "MiniGrid-Empty-Random-5x5-v0"


def config(path, **changes):
    settings = {
        "envs": {ENV: {"timesteps": 20}}, "arms": {"none": {"loss": "none"}, "adadem": {"loss": "adadem"}},
        "seeds": [0, 1, 2], "folder": str(path), "baseline": "none", "workers": 2, **changes,
    }  # fmt: skip
    return BenchmarkConfig(**settings)


def test_what_fails_is_listed_and_the_rest_is_reported_and_not_repeated(tmp_path, monkeypatch, capsys):
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    for loss, seed in product(("none", "adadem"), (1, 2)):
        rl_run(tmp_path / loss / str(seed), (seed + len(loss)) / 20, loss, seed, ENV)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = config(
        tmp_path / "grid", seeds=[13, 1, 2], envs={"short": {"env": ENV, "timesteps": 20}}, train={"ent_coef": 0.1}
    )
    assert len(benchmark(settings, "stand_in")) == 2
    output = capsys.readouterr()
    log = tmp_path / "grid" / "short" / "none" / "seed13.log"
    assert f"failed: short  none  seed 13: status 1, error: unlucky (all of its output: {log})" in output.err
    assert "4 of 6 runs" in output.out
    assert "| adadem | 2 | 0.375 ± 0.035 (**+0.100 [+0.100, +0.100], better**) |" in re.sub(" +", " ", output.out)
    report = {path.name: path.read_bytes() for path in (tmp_path / "grid" / "report").iterdir()}
    assert {"runs.csv", "table.md", "returns_sampled.png", "returns_greedy.svg"} <= set(report)
    benchmark(replace(settings, report_only=True))
    assert {path.name: path.read_bytes() for path in (tmp_path / "grid" / "report").iterdir()} == report


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"envs": {}}, "--config: needs a file that names envs and arms, such as configs/rl/paper.yaml"),
        ({"envs": {"MiniGrid-Unlok-v0": {}}}, "unknown environment 'MiniGrid-Unlok-v0'; did you mean"),
        ({"arms": {"none": {"los": "adadem"}}}, f"{ENV}, none: unknown key 'los'; did you mean 'loss'?"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_runs(changes, message, tmp_path):
    refuses(re.escape(message), benchmark, config(tmp_path / "grid", **changes))
    assert not (tmp_path / "grid").exists()


@pytest.mark.parametrize(("file", "runs", "steps"), [("paper", 162, 59_400_000), ("coefficients", 72, 21_600_000)])
def test_the_grids_in_configs(file, runs, steps):
    settings = BenchmarkConfig(**yaml.safe_load((ROOT / "configs" / "rl" / f"{file}.yaml").read_text()))
    seeds = len(settings.seeds)
    jobs = [job for jobs in grid_jobs(replace(settings, seeds=settings.seeds[:1])).values() for job in jobs]
    assert len({job.run for job in jobs}) * seeds == len(jobs) * seeds == runs
    assert seeds * sum(resolve(parse_config(TrainConfig, "x", "x", job.flags)).timesteps for job in jobs) == steps
