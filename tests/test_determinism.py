"""``--deterministic``: the same seed gives the same bytes in two processes, another seed gives others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import rl.train
import seg.train
from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.reproducibility import deterministic_algorithms
from dem_apps.runtime.settings import parse_config
from seg.config import TrainConfig
from seg.data.street.demo_pair import write_demo_pair

ROOT = Path(__file__).resolve().parents[1]
SEG = [
    "--max-steps",
    "2",
    "--eval-every",
    "2",
    "--log-every",
    "1",
    "--maps",
    "0",
    "--model.output-stride",
    "8",
    "--discriminator.channels",
    "4",
]
RL = [
    "--env",
    "MiniGrid-Empty-Random-5x5-v0",
    "--timesteps",
    "192",
    "--eval-freq",
    "96",
    "--eval-episodes",
    "1",
    "--hyperparameters.n_envs",
    "4",
]
RUNS = {
    "advent": ("seg", [*SEG, "--method", "advent", "--loss", "adadem"]),
    "ppo": ("rl", [*RL, "--hyperparameters.n_steps", "16"]),
}


def train_all(pair, folder, seed):
    """Every run of the table in this process."""
    data = [
        "--source.root",
        str(pair / "gta5"),
        "--target.root",
        str(pair / "cityscapes"),
        "--model.encoder=resnet18",
    ]
    for name, (application, flags) in RUNS.items():
        flags = [*flags, "--deterministic", "--seed", str(seed), "--run-dir", str(folder / name)]
        if application == "seg":
            seg.train.train(parse_config(TrainConfig, "seg.train", "", [*flags, *data]))
        else:
            rl.train.main(flags)


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2"])
def test_the_same_seed_in_two_processes_writes_the_same_bytes(threads, tmp_path):
    from support import same  # the processes below do not find it

    write_demo_pair(tmp_path / "pair", size=(96, 48), source_train=6, target_train=5, target_val=2)
    for names in (["one"], ["two", "other"]):
        subprocess.run(
            [
                sys.executable,
                __file__,
                str(tmp_path / "pair"),
                *(str(tmp_path / name) for name in names),
            ],
            env={
                **os.environ,
                "OMP_NUM_THREADS": threads,
                "OMP_WAIT_POLICY": "PASSIVE",
                "PYTHONPATH": str(ROOT),
            },
            check=True,
            capture_output=True,
        )
    for name in RUNS:
        one, two, other = (tmp_path / folder / name for folder in ("one", "two", "other"))
        for file in ("metrics.jsonl", "eval.json"):
            assert (one / file).read_bytes() == (two / file).read_bytes(), (name, file)
        states = [load_checkpoint(run / "checkpoints", "last") for run in (one, two, other)]
        assert same(states[0], states[1])
        assert not same(states[0], states[2])
        assert (one / "metrics.jsonl").read_bytes() != (other / "metrics.jsonl").read_bytes()
        assert yaml.safe_load((one / "config.yaml").read_text())["deterministic"] is True
        result = json.loads((one / "eval.json").read_text())
        assert result.get("protocol", result)["deterministic"] is True


def test_torch_is_deterministic_within_a_training_alone(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with deterministic_algorithms(False):
        assert not torch.are_deterministic_algorithms_enabled()
    with deterministic_algorithms(True):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark
    sentence = "--deterministic: put_ does not have a deterministic implementation"
    with pytest.raises(InputError, match=sentence), deterministic_algorithms(True):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))


if __name__ == "__main__":
    for given, folder in enumerate(sys.argv[2:]):
        train_all(Path(sys.argv[1]), Path(folder), given)
