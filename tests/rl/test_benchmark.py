"""The grid: kills, failures and mistakes. A stand-in for rl.train keeps it short; the real one is in the slow test."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import rl.benchmark
from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import parse_config
from rl.benchmark import BenchmarkConfig, benchmark, grid_jobs
from rl.config import TrainConfig, resolve
from rl.results.described_metrics import described_metrics

ROOT = Path(__file__).resolve().parents[2]
ENV = "MiniGrid-Empty-Random-5x5-v0"
Trained = Callable[[BenchmarkConfig], dict[str, str]]
FIGURES = ("mean_return", "std_return", "success_rate", "mean_length")
# Like rl.train it makes its folder, saves where it is, refuses a folder that is in use, and continues with --resume
# to the numbers of an unbroken run; a run of its own number of steps takes a fifth of a second. Seed 13 fails.
TRAINER = """
import json, os, sys, time
arguments = sys.argv[1:]
resume = "--resume" in arguments
value = dict(zip(arguments[::2], arguments[1::2]))
seed, run = int(value["--seed"]), value["--run-dir"]
if seed == 13:
    sys.exit("error: unlucky")
if not resume and os.path.isdir(run) and set(os.listdir(run)) - {"environment.json"}:
    sys.exit("error: holds another run")
os.makedirs(run + "/checkpoints", exist_ok=True)
with open(run + "/starts", "a") as file:
    file.write("x")
if not resume:
    with open(run + "/metrics_info.json", "w") as file:
        file.write(INFO)
    with open(run + "/config.yaml", "w") as file:
        json.dump({"env": value["--env"], "loss": value["--loss"], "seed": seed, "timesteps": 20}, file)
pointer = run + "/checkpoints/last.json"
step = json.load(open(pointer)) if os.path.exists(pointer) else 0
metrics = open(run + "/metrics.jsonl", "r+" if step else "w")
kept = [line for line in metrics if json.loads(line)["step"] <= step] if step else []
metrics.seek(0), metrics.truncate(), metrics.write("".join(kept)), metrics.flush()
while step < 20:
    step += 1
    figure = (step * (seed + 3) * len(value["--loss"])) % 17 / 17
    line = {"step": step, "eval/mean_return_sampled": figure, "eval/mean_return_greedy": figure / 3}
    metrics.write(json.dumps(line) + "\\n")
    metrics.flush()
    with open(pointer + ".tmp", "w") as file:
        json.dump(step, file)
    os.replace(pointer + ".tmp", pointer)
    time.sleep(0.01)
kinds = {kind: {name: figure for name in FIGURES} for kind in ("sampled", "greedy")}
scores = {"step": step, "episodes": 3, "mean_return": figure, **kinds}
with open(run + "/eval.json.tmp", "w") as file:
    json.dump({**scores, "best": scores}, file)
os.replace(run + "/eval.json.tmp", run + "/eval.json")
""".replace("FIGURES", repr(FIGURES)).replace("INFO", repr(json.dumps(described_metrics().document())))


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trained:
    """``benchmark()`` with the stand-in."""
    (tmp_path / "stand_in.py").write_text(TRAINER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("rl.results.comparison._save", lambda _figure, _path: None)  # slow
    return partial(benchmark, module="stand_in")


def config(path: Path, **changes: Any) -> BenchmarkConfig:
    settings: dict[str, Any] = {
        "envs": {ENV: {"timesteps": 20}}, "arms": {"none": {"loss": "none"}, "adadem": {"loss": "adadem"}},
        "seeds": [0, 1, 2], "folder": str(path), "baseline": "none", "workers": 2, **changes,
    }  # fmt: skip
    return BenchmarkConfig(**settings)


def reports(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "report").iterdir()}


def starts(folder: Path) -> int:
    return sum(len(file.read_text()) for file in folder.rglob("starts"))


def start_and_kill(settings: BenchmarkConfig, trained: Trained) -> None:
    """SIGKILL a benchmark and its trainings as soon as it has finished two runs and more are under way."""
    folder = Path(str(settings.folder))

    def work() -> None:
        os.setsid()
        trained(settings)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    deadline = time.monotonic() + 120
    while len(list(folder.rglob("eval.json"))) < 2 or len(list(folder.rglob("last.json"))) < 3:
        assert process.is_alive(), "the grid ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
    process.join()
    assert len(list(folder.rglob("eval.json"))) < 6


def test_a_killed_grid_goes_on_to_the_same_files(tmp_path: Path, trained: Trained) -> None:
    assert trained(config(tmp_path / "whole")) == {}
    assert starts(tmp_path / "whole") == 6
    killed = config(tmp_path / "killed")
    start_and_kill(killed, trained)
    assert trained(killed) == {}
    assert reports(tmp_path / "killed") == reports(tmp_path / "whole")
    csv = (tmp_path / "killed" / "report" / "runs.csv").read_text().splitlines()
    assert len(csv) == 1 + 6
    assert starts(tmp_path / "killed") - 6 in (1, 2), "the killed ones are started once more"
    before = starts(tmp_path / "killed")
    assert trained(killed) == {}
    assert starts(tmp_path / "killed") == before  # nothing finished is repeated


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_grid_ends_its_trainings_and_the_same_command_continues(
    number: int, status: int, tmp_path: Path, trained: Trained, capfd: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(rl.benchmark, "benchmark", trained)
    settings, folder = tmp_path / "my grid.yaml", tmp_path / "grid"
    settings.write_text(yaml.safe_dump({"envs": {ENV: {"timesteps": 20}}, "arms": {"none": {"loss": "none"}}}))
    arguments = ["--config", str(settings), "--folder", str(folder), "--seeds", "[0,1]", "--workers", "2"]
    grid = multiprocessing.get_context("fork").Process(target=run_command, args=(lambda: rl.benchmark.main(arguments),))
    grid.start()
    while len(list(folder.rglob("last.json"))) < 2:
        assert grid.is_alive()
        time.sleep(0.002)
    os.kill(grid.pid, number)  # type: ignore[arg-type]
    grid.join()
    assert grid.exitcode == status
    steps = [file.read_text() for file in folder.rglob("last.json")]
    command = shlex.join(["python", "-m", "rl.benchmark", *arguments])
    assert capfd.readouterr().err == f"interrupted; the same command continues: {command}\n"
    assert not list(folder.rglob("eval.json"))
    time.sleep(0.05)  # five steps of a training that was left running
    assert [file.read_text() for file in folder.rglob("last.json")] == steps
    rl.benchmark.main(shlex.split(command)[3:])
    assert len(list(folder.rglob("eval.json"))) == 2


def test_a_failure_is_listed_and_does_not_stop_the_rest(
    tmp_path: Path, trained: Trained, capsys: pytest.CaptureFixture
) -> None:
    settings = config(tmp_path / "grid", seeds=[13, 1], workers=1)
    assert len(trained(settings)) == 2
    output = capsys.readouterr()
    assert "2 of 4 runs" in output.out
    log = tmp_path / "grid" / ENV / "none" / "seed13.log"
    assert f"failed: {ENV}  none  seed 13: status 1, error: unlucky (all of its output: {log})" in output.err
    assert (tmp_path / "grid" / "report" / "runs.csv").read_text().count("\n") == 3


def test_report_only_trains_nothing(tmp_path: Path, trained: Trained, capsys: pytest.CaptureFixture) -> None:
    trained(config(tmp_path / "grid", seeds=[0]))
    capsys.readouterr()
    benchmark(config(tmp_path / "grid", report_only=True, out=str(tmp_path / "other")))
    assert "2 of 6 runs" in capsys.readouterr().out
    assert starts(tmp_path / "grid") == 2
    assert (tmp_path / "other" / "table.md").is_file()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"envs": {}}, "--config: needs a file that names envs and arms, such as configs/rl/paper.yaml"),
        ({"folder": None}, "--folder: needs the folder"),
        ({"seeds": [1, 1]}, "--seeds: expected different numbers, got [1, 1]"),
        ({"baseline": "nothing"}, "--baseline: 'nothing' is not one of the arms none, adadem"),
        ({"envs": {"MiniGrid-Unlok-v0": {}}}, "unknown environment 'MiniGrid-Unlok-v0'; did you mean"),
        ({"arms": {"none": {"loss": "adaden"}}}, f"{ENV}, none: --loss: 'adaden' is not one of"),
        ({"arms": {"none": {"los": "adadem"}}}, f"{ENV}, none: unknown argument '--los'; did you mean '--loss'?"),
        ({"arms": {"a": "adadem"}}, "arms, a: expected a mapping of settings such as {}, got 'adadem'"),
        ({"arms": {"../a": {}}}, "arms: '../a' cannot be the name of a folder"),
        ({"train": {"seed": 4}}, f"{ENV}, none: leave 'seed' out, the grid sets it"),
        ({"train": {"hyperparameters": {"n_stepps": 4}}}, "unknown key 'n_stepps'; did you mean 'n_steps'?"),
        ({"report_only": True}, "no run of this grid is finished, so there is nothing to report"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_runs(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        benchmark(config(tmp_path / "grid", **changes))
    assert not (tmp_path / "grid").exists()


def test_a_run_of_other_settings_is_refused(tmp_path: Path) -> None:
    run = tmp_path / ENV / "adadem" / "seed1"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump({"env": ENV, "loss": "adadem", "ent_coef": 0.5}))
    with pytest.raises(InputError, match=r"seed1: was trained with ent_coef 0.5, this grid asks for 0.001"):
        grid_jobs(config(tmp_path))


@pytest.mark.parametrize(("file", "runs", "steps"), [("paper", 162, 59_400_000), ("coefficients", 72, 21_600_000)])
def test_the_grids_in_configs(file: str, runs: int, steps: int) -> None:
    settings = BenchmarkConfig(**yaml.safe_load((ROOT / "configs" / "rl" / f"{file}.yaml").read_text()))
    jobs = [job for jobs in grid_jobs(settings).values() for job in jobs]
    assert (len(jobs), len({job.run for job in jobs})) == (runs, runs)
    settings_of = [resolve(parse_config(TrainConfig, "x", "x", job.flags)) for job in jobs]
    assert sum(one.timesteps for one in settings_of if one.timesteps) == steps


@pytest.mark.slow
def test_a_killed_grid_of_real_trainings_goes_on_to_the_same_csv(tmp_path: Path) -> None:
    small = {"n_envs": 4, "n_steps": 64, "n_epochs": 2}
    settings = {
        "envs": {ENV: {"timesteps": 8192}}, "arms": {"none": {"loss": "none"}, "adadem": {"loss": "adadem"}},
        "seeds": [0, 1, 2], "train": {"hyperparameters": small, "eval_freq": 2000, "eval_episodes": 3},
    }  # fmt: skip
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(settings))

    def command(name: str) -> list[str]:
        arguments = ["--config", str(tmp_path / "grid.yaml"), "--folder", str(tmp_path / name), "--workers", "2"]
        return [sys.executable, "-m", "rl.benchmark", *arguments]

    killed = subprocess.Popen(command("killed"), cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    while len(list((tmp_path / "killed").rglob("eval.json"))) < 2 or not _under_way(tmp_path / "killed"):
        assert killed.poll() is None, "the grid ended before it could be killed"
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert len(list((tmp_path / "killed").rglob("eval.json"))) < 6
    for name in ("killed", "whole"):
        subprocess.run(command(name), cwd=ROOT, check=True)
    resumed = [log for log in (tmp_path / "killed").rglob("*.log") if "resumed at step" in log.read_text()]
    assert resumed
    for file in ("runs.csv", "table.md"):
        assert (tmp_path / "killed/report" / file).read_bytes() == (tmp_path / "whole/report" / file).read_bytes()


def _under_way(folder: Path) -> bool:
    started = [run for run in (p.parents[1] for p in folder.rglob("last.pt")) if not (run / "eval.json").exists()]
    return any(load_checkpoint(run / "checkpoints", "last")["step"] > 2000 for run in started)
