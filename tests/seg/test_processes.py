"""Two gloo processes with half the batch each against one process, through the command itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FLAGS = [
    "--method", "advent", "--loss", "adadem", "--reduction", "mean", "--batch-size", "2",
    "--discriminator.channels", "4",
    # at a rate at which rounding is not magnified from step to step, as ADVENT's
    "--optimizer.name", "sgd", "--optimizer.lr", "0.00025", "--optimizer.head-factor", "10",
    "--max-steps", "20", "--eval-every", "10", "--log-every", "1", "--maps", "2",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_pair, run_command):
    folder = tmp_path_factory.mktemp("processes")
    flags = [*FLAGS, "--source.root", str(tiny_pair.source_root), "--target.root", str(tiny_pair.target_root)]
    one = run_command("seg.train", *flags, "--run-dir", str(folder / "one"))
    assert one.returncode == 0, one.stderr
    launcher = ("--standalone", "--nproc-per-node", "2", "-m", "seg.train")
    two = run_command("torch.distributed.run", *launcher, *flags, "--run-dir", str(folder / "two"))
    assert two.returncode == 0, two.stderr
    assert "2 processes" in two.stdout
    return folder / "one", folder / "two"


def lines(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_losses_agree_over_twenty_steps(runs):
    one, two = map(lines, runs)
    assert len(one) == len(two) == 22
    for expected, actual in zip(one, two, strict=True):
        assert actual == pytest.approx(expected, abs=1e-4), f"step {expected['step']}"


def test_scores_agree_and_every_image_is_counted_once(runs):
    one, two = (json.loads((run / "eval.json").read_text()) for run in runs)
    assert two["miou"] == pytest.approx(one["miou"], abs=1e-3)
    assert two["mean_entropy"] == pytest.approx(one["mean_entropy"], abs=1e-4)
    assert two["label_free"] == pytest.approx(one["label_free"], abs=1e-3)


def test_the_run_folder_is_written_once(runs):
    one, two = ({str(path.relative_to(run)) for path in run.rglob("*.png")} for run in runs)
    assert one == two
    assert len(list(runs[1].glob("events.out.tfevents*"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_and_their_launcher_saves_once(runs, number, tmp_path, tiny_pair, run_command):
    """As Ctrl-C in a terminal: the processes get it, and once more from torchrun."""
    data = ["--source.root", str(tiny_pair.source_root), "--target.root", str(tiny_pair.target_root)]
    run, launcher = tmp_path / "run", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launcher, "-m", "seg.train", *FLAGS, *data, "--run-dir", str(run)]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log, start_new_session=True
        )
        while not (run / "metrics.jsonl").is_file() or len(lines(run)) < 3:
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, number)
        process.wait(120)
    (said,) = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("interrupted at step")]
    assert said.endswith(f"torchrun --standalone --nproc-per-node 2 -m seg.train --run-dir {run} --resume")
    resumed = run_command("torch.distributed.run", *launcher[2:], "-m", "seg.train", "--run-dir", str(run), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    for name in ("metrics.jsonl", "eval.json"):
        assert (run / name).read_bytes() == (runs[1] / name).read_bytes()
