"""A training that is killed and resumed ends with the numbers of an unbroken one."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from support.same_state import same

from dem_apps.runtime.checkpoint import load_checkpoint
from seg.data.street.demo_pair import write_demo_pair

SEG = [
    "seg.train", "--loss", "adadem", "--max-steps", "12", "--eval-every", "3", "--log-every", "1", "--maps", "0",
    "--batch-size", "1", "--source.size", "32,16", "--target.size", "32,16", "--model.output-stride", "16",
]  # fmt: skip
#: A teacher, all that is drawn per sample, and statistics that are re-estimated for each checkpoint.
SELF_TRAINING = [
    "--method", "self-training", "--self-training.mask-ratio", "0.5", "--self-training.weighting", "pixel",
    "--source.style", "fourier", "--source.rare-class-temperature", "0.01", "--target.labelled-part", "0.4",
    "--batch-norm-after", "target",
]  # fmt: skip
RL = [
    "rl.train", "--loss", "adadem", "--env", "MiniGrid-Empty-Random-5x5-v0", "--timesteps", "4096", "--eval-freq",
    "1000", "--eval-episodes", "1", "--hyperparameters.n_steps", "64", "--hyperparameters.n_envs", "2",
]  # fmt: skip


def start(flags, run, *more):
    return subprocess.Popen(
        [sys.executable, "-m", *flags, "--run-dir", str(run), *more],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize("flags", [SEG, [*SEG, *SELF_TRAINING], RL], ids=["seg", "self-training", "rl"])
def test_a_killed_training_goes_on_to_the_same_numbers(flags, tmp_path):
    if flags[0] == "seg.train":
        pair = write_demo_pair(tmp_path / "pair", size=(96, 48), source_train=4, target_train=3, target_val=2)
        flags = [*flags, "--source.root", str(pair / "gta5"), "--target.root", str(pair / "cityscapes")]
        flags.append("--model.encoder=resnet18")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    first, alone = start(flags, killed), start(flags, whole)
    deadline = time.monotonic() + 120
    while not (killed / "checkpoints" / "last.pt").exists():
        assert first.poll() is None, first.stderr and first.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(random.random() * 0.5)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert alone.wait() == 0
    resumed = start(flags, killed, "--resume")
    assert resumed.wait() == 0, resumed.stderr and resumed.stderr.read()
    for file in ("metrics.jsonl", "eval.json"):
        assert (killed / file).read_bytes() == (whole / file).read_bytes()
    for name in ("last", "best"):
        assert same(*(load_checkpoint(run / "checkpoints", name) for run in (killed, whole)))
