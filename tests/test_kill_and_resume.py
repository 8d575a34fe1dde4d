"""A training that is killed and resumed ends with the numbers of an unbroken one."""

import multiprocessing
import random
import time

import pytest
from support.kills import command
from support.same_state import same

from dem_apps.runtime.checkpoint import load_checkpoint
from seg.data.street.demo_pair import write_demo_pair

#: A teacher, all that is drawn per sample, and statistics that are re-estimated for each checkpoint.
SEG = [
    "seg.train", "--loss", "adadem", "--max-steps", "12", "--eval-every", "3", "--log-every", "1", "--maps", "0",
    "--batch-size", "1", "--source.size", "32,16", "--target.size", "32,16", "--model.output-stride", "16",
    "--model.encoder=resnet18",
    "--method", "self-training", "--self-training.mask-ratio", "0.5", "--self-training.weighting", "pixel",
    "--source.style", "fourier", "--source.rare-class-temperature", "0.01", "--target.labelled-part", "0.4",
    "--batch-norm-after", "target",
]  # fmt: skip
RL = [
    "rl.train", "--loss", "adadem", "--env", "MiniGrid-Empty-Random-5x5-v0", "--timesteps", "4096", "--eval-freq",
    "1000", "--eval-episodes", "1", "--hyperparameters.n_steps", "64", "--hyperparameters.n_envs", "2",
    "--hyperparameters.learning_rate", "lin_1.0e-3",
]  # fmt: skip


def start(flags, run, *more):
    """The command in a process that is forked, so that it need not import torch again."""
    process = multiprocessing.get_context("fork").Process(target=command(*flags, "--run-dir", str(run), *more))
    process.start()
    return process


@pytest.mark.parametrize("flags", [SEG, RL], ids=["seg", "rl"])
def test_a_killed_training_goes_on_to_the_same_numbers(flags, tmp_path, capfd):
    if flags is SEG:
        pair = write_demo_pair(tmp_path / "pair", size=(96, 48), source_train=4, target_train=3, target_val=2)
        flags = [*flags, "--source.root", str(pair / "gta5"), "--target.root", str(pair / "cityscapes")]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    first, alone = start(flags, killed), start(flags, whole)
    deadline = time.monotonic() + 120
    while not (killed / "checkpoints" / "last.pt").exists():
        assert first.is_alive(), capfd.readouterr().err
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(random.random() * 0.5)
    first.kill()
    first.join()
    resumed = start(flags, killed, "--resume")
    for process in (alone, resumed):
        process.join()
        assert process.exitcode == 0, capfd.readouterr().err
    for file in ("metrics.jsonl", "eval.json"):
        assert (killed / file).read_bytes() == (whole / file).read_bytes()
    for name in ("last", "best"):
        assert same(*(load_checkpoint(run / "checkpoints", name) for run in (killed, whole)))
