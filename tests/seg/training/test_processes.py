"""Several gloo processes that share the batch against one process, through the command itself; and how they end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import psutil
import pytest
import torch

import seg.train
from dem_apps.runtime.checkpoint import load_checkpoint
from seg.data.datasets import SegmentationDataset
from seg.data.loader import batches

COMMON = [
    "--loss",
    "adadem",
    "--log-every",
    "1",
    "--model.batch-norm",
    "frozen",
    "--model.encoder",
    "resnet18",
    # at a rate at which rounding is not magnified from step to step, as ADVENT's
    "--optimizer.name",
    "sgd",
    "--optimizer.lr",
    "0.00025",
    "--optimizer.head-factor",
    "10",
]
ADVENT = [
    *COMMON,
    "--method",
    "advent",
    "--reduction",
    "mean",
    "--batch-size",
    "2",
    "--discriminator.channels",
    "4",
    "--max-steps",
    "4",
    "--eval-every",
    "2",
    "--maps",
    "1",
]
MINENT = [
    *COMMON,
    "--reduction",
    "balanced",
    "--batch-size",
    "6",
    "--model.output-stride",
    "8",
    # few steps: sooner or later a pixel between two classes goes to the other one, and a table moves by 1e-5
    "--max-steps",
    "6",
    "--eval-every",
    "2",
    "--maps",
    "0",
]
# every confident pixel counts alike: a share above a threshold would move with a pixel that rounding takes over it
TEACHER = [
    *MINENT,
    "--method",
    "self-training",
    "--self-training.threshold",
    "0",
    "--self-training.mask-ratio",
    "0.5",
]


def command(processes):
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    return ["-m", *(launcher if processes > 1 else []), "seg.train"]


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process):
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors


@pytest.fixture(scope="module")
def data(tiny_pair):
    return [
        "--source.root",
        str(tiny_pair / "gta5"),
        "--target.root",
        str(tiny_pair / "cityscapes"),
    ]


@pytest.fixture(scope="module")
def minent(tmp_path_factory, data):
    """A training in one process."""
    run = tmp_path_factory.mktemp("minent") / "run"
    finish(start(*command(1), *MINENT, *data, "--run-dir", str(run)))
    return run


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_agree(expected, actual, steps):
    """Losses and scores of every step, the files, and the class marginals at the end."""
    one, other = lines(expected), lines(actual)
    assert len(one) == len(other) >= steps
    for first, second in zip(one, other, strict=True):
        assert second == pytest.approx(first, abs=2e-4), f"step {first['step']}"
    one, other = (json.loads((run / "eval.json").read_text()) for run in (expected, actual))
    for score in ("miou", "mean_entropy", "label_free"):
        assert other[score] == pytest.approx(one[score], abs=1e-3)
    one, other = (
        {path.relative_to(run) for path in run.rglob("*.png")} for run in (expected, actual)
    )
    assert one == other
    one, other = (
        load_checkpoint(run / "checkpoints", "last").get("minent", {}) for run in (expected, actual)
    )
    for name, table in one.items():
        torch.testing.assert_close(other[name], table, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        (ADVENT, 4),
        pytest.param(TEACHER, 6, marks=pytest.mark.slow),
        pytest.param(MINENT, 6, marks=pytest.mark.slow),
    ],
    ids=["advent", "self-training", "minent"],
)
def test_two_processes_train_as_one(flags, steps, tmp_path, data):
    seg.train.main([*flags, *data, "--run-dir", str(tmp_path / "1")])
    finish(start(*command(2), *flags, *data, "--run-dir", str(tmp_path / "2")))
    assert_agree(tmp_path / "1", tmp_path / "2", steps)
    assert len(list((tmp_path / "2").glob("events.out.tfevents*"))) == 1


def spoiled(png):
    """Pixels that cannot be decoded, under a right checksum, so that the image is not left out."""
    start = png.index(b"IDAT")
    end = start + 4 + int.from_bytes(png[start - 4 : start], "big")
    chunk = png[start : (start + end) // 2] + bytes(end - (start + end) // 2)
    return png[:start] + chunk + zlib.crc32(chunk).to_bytes(4, "big") + png[end + 4 :]


@pytest.mark.slow
def test_a_mistake_that_one_process_meets_ends_both_with_one_sentence(tmp_path, tiny_pair):
    """The second image of the first batch is damaged: it is in the share of process 1, and process 0 waits for it."""
    root = shutil.copytree(tiny_pair / "gta5", tmp_path / "source")
    for image in sorted((root / "images").glob("*.png")):
        image.write_bytes(spoiled(image.read_bytes()))
    (batch,) = batches(
        SegmentationDataset(tiny_pair / "gta5", "gta5", "train", labelled=True),
        2,
        range(1),
        (0, 0),
        [],
        process=(0, 2),
    )
    good = Path(batch["name"][0]).name
    shutil.copy(tiny_pair / "gta5" / "images" / good, root / "images" / good)
    data = [*COMMON, "--source.root", str(root), "--target.root", str(tiny_pair / "cityscapes")]
    data += ["--source.rare-class-temperature", "null"]
    process = start(
        *command(2),
        *data,
        "--batch-size",
        "2",
        "--max-steps",
        "2",
        "--run-dir",
        str(tmp_path / "run"),
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert errors.count("the image cannot be read, it is damaged or cut short") == 1
    assert "[rank" not in errors  # how torch begins the lines of a process's stack trace


def first_checkpoint_of(run, process):
    deadline = time.monotonic() + 240
    while not (run / "checkpoints" / "last.pt").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 3)])
def test_a_killed_run_continues_with_another_number_of_processes(
    before, after, tmp_path, data, minent
):
    run = tmp_path / "run"
    launcher = start(*command(before), *MINENT, *data, "--run-dir", str(run))
    first_checkpoint_of(run, launcher)
    family = [psutil.Process(launcher.pid), *psutil.Process(launcher.pid).children(recursive=True)]
    trains = [process for process in family if "torch.distributed.run" not in process.cmdline()]
    next(
        process for process in trains if process.environ().get("RANK", "0") == str(before - 1)
    ).kill()
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode != 0
    assert "[rank0]" not in errors
    assert errors.count("lost its connection") <= 1  # none if the launcher was faster
    finish(start(*command(after), "--run-dir", str(run), "--resume"))
    assert_agree(minent, run, 6)


@pytest.mark.slow
def test_a_signal_to_all_processes_and_their_launcher_saves_once(tmp_path, data, minent):
    """As Ctrl-C in a terminal: the processes get it, and once more from torchrun."""
    run = tmp_path / "run"
    launcher = start(*command(2), *MINENT, *data, "--run-dir", str(run))
    first_checkpoint_of(run, launcher)
    os.killpg(launcher.pid, signal.SIGINT)
    _, errors = launcher.communicate(timeout=120)
    (said,) = [line for line in errors.splitlines() if line.startswith("interrupted at step")]
    assert said.endswith(f"-m seg.train --run-dir {run} --resume")
    finish(start(*command(2), "--run-dir", str(run), "--resume"))
    assert_agree(minent, run, 6)
