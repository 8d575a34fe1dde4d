"""Several gloo processes that share the batch against one process, through the command itself; and how they end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from dem_apps.runtime.checkpoint import load_checkpoint
from seg.data.datasets import SegmentationDataset
from seg.data.loader import batches

FLAGS = [
    "--method", "advent", "--loss", "adadem", "--reduction", "mean", "--batch-size", "2",
    "--discriminator.channels", "4", "--model.batch-norm", "frozen",
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


def torchrun(processes: int) -> list[str]:
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m", "seg.train"]


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *arguments], env=environment, stdout=pipe, stderr=pipe, text=True)


def test_a_mistake_that_one_process_meets_ends_both_with_one_sentence(tmp_path, tiny_pair):
    """The second image of the first batch is damaged: it is in the share of process 1, and process 0 waits for it."""
    root = shutil.copytree(tiny_pair.source_root, tmp_path / "source")
    for image in sorted((root / "images").glob("*.png")):
        image.write_bytes(b"damaged")
    good = first_image(tiny_pair)
    shutil.copy(tiny_pair.source_root / "images" / good, root / "images" / good)
    data = ["--source.root", str(root), "--target.root", str(tiny_pair.target_root)]
    process = start(
        *torchrun(2), *data, *FLAGS, "--max-steps", "2", "--eval-every", "2", "--run-dir", str(tmp_path / "run")
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert errors.count("the image cannot be read, it is damaged or cut short") == 1
    assert "[rank" not in errors  # how torch begins the lines of a process's stack trace
    assert "exitcode  : 2" in errors
    assert "lost its connection" not in errors


def first_image(pair) -> str:
    """The image that process 0 reads first."""
    dataset = SegmentationDataset(pair.source_root, "gta5", "train", labelled=True)
    (batch,) = batches(dataset, 2, range(1), (0, 0), [], process=(0, 2))
    return Path(batch["name"][0]).name


SHARED = [
    "--loss", "adadem", "--reduction", "balanced", "--batch-size", "6", "--model.output-stride", "8",
    "--model.batch-norm", "frozen",
    "--optimizer.name", "sgd", "--optimizer.lr", "0.00025", "--optimizer.head-factor", "10",
    # few steps: sooner or later a pixel between two classes goes to the other one, and a table moves by 1e-5
    "--max-steps", "6", "--eval-every", "2", "--log-every", "1", "--maps", "0",
]  # fmt: skip


def command(processes: int) -> list[str]:
    return torchrun(processes) if processes > 1 else ["-m", "seg.train"]


@pytest.fixture(scope="module")
def shared_flags(tiny_pair):
    return [*SHARED, "--source.root", str(tiny_pair.source_root), "--target.root", str(tiny_pair.target_root)]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, shared_flags):
    """The same training in one process."""
    run = tmp_path_factory.mktemp("unbroken") / "run"
    finish(start(*command(1), *shared_flags, "--run-dir", str(run)))
    return run


@pytest.fixture(scope="module")
def killed(tmp_path_factory, shared_flags):
    """By the number of processes a run whose last process was killed after its first checkpoint, and what it said."""
    runs = {}
    for processes in (1, 2):
        run = tmp_path_factory.mktemp("killed") / "run"
        launcher = start(*command(processes), *shared_flags, "--run-dir", str(run))
        wait_for_a_checkpoint(run, launcher)
        rank_of = {process: process.environ().get("RANK", "0") for process in family(launcher)}
        (victim,) = [process for process, rank in rank_of.items() if rank == str(processes - 1) and trains(process)]
        victim.kill()
        _, errors = launcher.communicate(timeout=60)
        assert launcher.returncode != 0
        runs[processes] = run, errors
    return runs


def family(launcher: subprocess.Popen[str]) -> list[psutil.Process]:
    parent = psutil.Process(launcher.pid)
    return [parent, *parent.children(recursive=True)]


def trains(process: psutil.Process) -> bool:
    return "torch.distributed.run" not in process.cmdline()


def wait_for_a_checkpoint(run: Path, launcher: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while not (run / "checkpoints" / "last.pt").exists():
        assert launcher.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors


def assert_agree(expected: Path, actual: Path) -> None:
    """Losses and scores of every step, and the class tables at the end."""
    one, other = lines(expected), lines(actual)
    assert len(one) == len(other)
    assert one[-1]["step"] == 6
    for first, second in zip(one, other, strict=True):
        assert second == pytest.approx(first, abs=1e-4), f"step {first['step']}"
    one, other = (load_checkpoint(run / "checkpoints", "last")["minent"] for run in (expected, actual))
    assert one.keys() == other.keys() == {f"objectives.{head}.class_marginals" for head in ("main", "aux")}
    for name, table in one.items():
        torch.testing.assert_close(other[name], table, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_minent_in_several_processes_is_minent_in_one(processes, tmp_path, shared_flags, unbroken):
    run = tmp_path / "run"
    finish(start(*command(processes), *shared_flags, "--run-dir", str(run)))
    assert_agree(unbroken, run)


@pytest.mark.slow
def test_self_training_in_two_processes_is_self_training_in_one(tmp_path, shared_flags):
    # every confident pixel counts alike: a share above a threshold would move with a pixel that rounding takes over it
    flags = ["--method", "self-training", "--self-training.threshold", "0", "--self-training.mask-ratio", "0.5"]
    runs = [tmp_path / str(processes) for processes in (1, 2)]
    for processes, run in enumerate(runs, 1):
        finish(start(*command(processes), *shared_flags, *flags, "--run-dir", str(run)))
    one, two = map(lines, runs)
    assert len(one) == len(two) > 6
    for first, second in zip(one, two, strict=True):
        assert second == pytest.approx(first, abs=2e-4), f"step {first['step']}"


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_is_named(killed):
    _, errors = killed[2]
    cause = errors.partition("Root Cause")[2]
    assert "rank      : 1" in cause
    assert "SIGKILL" in cause
    assert "[rank0]" not in errors
    assert errors.count("lost its connection") <= 1  # none if the launcher was faster


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 3)])
def test_a_run_continues_with_another_number_of_processes(before, after, tmp_path, killed, unbroken):
    run = shutil.copytree(killed[before][0], tmp_path / "run")
    assert lines(run)[-1]["step"] < 6
    finish(start(*command(after), "--run-dir", str(run), "--resume"))
    assert_agree(unbroken, run)
