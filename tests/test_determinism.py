"""``--deterministic``: two processes with the same seed write the same bytes, another seed writes others."""

from __future__ import annotations

import hashlib
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
from seg.demo.demo_pair import write_demo_pair

ROOT = Path(__file__).resolve().parents[1]
SEG = [
    "--max-steps", "2", "--eval-every", "2", "--log-every", "1", "--maps", "0", "--model.output-stride", "8",
    "--discriminator.channels", "4",
]  # fmt: skip
RL = ["--env", "MiniGrid-Empty-Random-5x5-v0", "--timesteps", "192", "--eval-freq", "96", "--eval-episodes", "1"]
RUNS = {
    "minent": ("seg", [*SEG, "--loss", "adadem"]),
    "advent": ("seg", [*SEG, "--method", "advent", "--loss", "entropy"]),
    "ppo": ("rl", [*RL, "--hyperparameters.n_envs", "4", "--hyperparameters.n_steps", "16"]),
    "a2c": ("rl", [*RL, "--hyperparameters.n_envs", "4", "--algo", "a2c"]),
}


def train_all(folder: Path, pair: Path, seed: int) -> None:
    """Every run of the table in this process."""
    data = ["--source.root", str(pair / "gta5"), "--target.root", str(pair / "cityscapes")]
    for name, (application, flags) in RUNS.items():
        flags = [*flags, "--deterministic", "--seed", str(seed), "--run-dir", str(folder / name)]
        if application == "seg":
            seg.train.train(parse_config(TrainConfig, "seg.train", "", [*flags, *data]))
        else:
            rl.train.main(flags)


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Two fresh processes with seed 0, on two threads, and one training each with seed 1."""
    folder = tmp_path_factory.mktemp("runs")
    write_demo_pair(folder / "pair", size=(96, 48), source_train=6, target_train=5, target_val=2)
    for name in ("one", "two"):
        subprocess.run(
            [sys.executable, __file__, str(folder / name), str(folder / "pair"), "0"],
            env={**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(ROOT)},
            check=True, capture_output=True,
        )  # fmt: skip
    threads = torch.get_num_threads()
    train_all(folder / "other", folder / "pair", seed=1)
    torch.set_num_threads(threads)
    return folder / "one", folder / "two", folder / "other"


def fingerprint(run: Path) -> str:
    """SHA-256 over names, types, shapes and bytes of every tensor of the last checkpoint."""
    digest = hashlib.sha256()

    def add(path: str, value: object) -> None:
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                add(f"{path}/{key}", value[key])
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                add(f"{path}/{index}", item)
        elif isinstance(value, torch.Tensor):
            digest.update(f"{path} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())

    add("", load_checkpoint(run / "checkpoints", "last"))
    return digest.hexdigest()


@pytest.mark.parametrize("name", RUNS)
def test_the_same_seed_in_two_processes_writes_the_same_bytes(twice: tuple[Path, Path, Path], name: str) -> None:
    one, two, _ = (folder / name for folder in twice)
    for file in ("metrics.jsonl", "eval.json"):
        assert (one / file).read_bytes() == (two / file).read_bytes(), file
    assert fingerprint(one) == fingerprint(two)


@pytest.mark.parametrize("name", RUNS)
def test_another_seed_writes_others(twice: tuple[Path, Path, Path], name: str) -> None:
    one, _, other = (folder / name for folder in twice)
    first, second = ((run / "metrics.jsonl").read_text().splitlines()[0] for run in (one, other))
    assert json.loads(first)["step"] == json.loads(second)["step"]
    assert first != second
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize("name", RUNS)
def test_the_run_says_that_it_was_deterministic(twice: tuple[Path, Path, Path], name: str) -> None:
    run = twice[0] / name
    assert yaml.safe_load((run / "config.yaml").read_text())["deterministic"] is True
    result = json.loads((run / "eval.json").read_text())
    assert result.get("protocol", result)["deterministic"] is True


@pytest.mark.usefixtures("twice")
def test_a_training_leaves_torch_as_it_was() -> None:
    assert not torch.are_deterministic_algorithms_enabled()


def test_within_it_torch_is_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with deterministic_algorithms(False):
        assert not torch.are_deterministic_algorithms_enabled()
    with deterministic_algorithms(True):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark


def test_an_operation_without_a_deterministic_form_is_named() -> None:
    sentence = "--deterministic: torch has no deterministic form of put_ on this device"
    with pytest.raises(InputError, match=sentence), deterministic_algorithms(True):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    with pytest.raises(RuntimeError, match="something else"), deterministic_algorithms(True):
        raise RuntimeError("something else")


def test_cuda_that_has_started_cannot_be_made_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    sentence = "set CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment before"
    with pytest.raises(InputError, match=sentence), deterministic_algorithms(True):
        pass
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with deterministic_algorithms(True):
        assert torch.are_deterministic_algorithms_enabled()


if __name__ == "__main__":
    train_all(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
