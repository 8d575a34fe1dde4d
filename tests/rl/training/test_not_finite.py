"""NaN stops a training before the policy learns from it, names the environment, and leaves the last good checkpoint."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from gymnasium import spaces
from stable_baselines3 import PPO

import rl.train
from dem_apps.errors import NotFiniteError
from dem_apps.runtime.checkpoint import all_finite, load_checkpoint
from dem_apps.runtime.command import run_command
from dem_apps.runtime.run_reader import read_metrics
from rl.fast import ppo as fast_ppo
from rl.fast.ppo import FastPPO

ENV = "StrangeNumbers-v0"
ENTRY = {"n_envs": 2, "n_steps": 32, "policy": "MlpPolicy", "n_timesteps": 320}


class StrangeNumbers(gym.Env):
    """Random observations; the second environment hands out one value that is none after some steps."""

    #: What becomes which value at which step of the environment, over all episodes.
    what, value, at = "reward", 0.0, 10**9
    made: list[StrangeNumbers] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.steps = 0
        self.number = len(self.made)
        self.made.append(self)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        observation, reward = self._observe(), float(self.np_random.normal())
        if self.steps == self.at and self.number == 1:
            if self.what == "reward":
                reward = self.value
            else:
                observation[1] = self.value
        return observation, reward, self.steps % 7 == 0, False, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gym.register(ENV, entry_point=StrangeNumbers)
    monkeypatch.setattr(StrangeNumbers, "made", [])
    yield
    del gym.registry[ENV]


def arguments(tmp_path: Path, *more: str, algo: str = "ppo", normalize: bool = True) -> list[str]:
    entry = {**ENTRY, "normalize": normalize, **({"n_epochs": 2, "batch_size": 32} if algo == "ppo" else {})}
    (tmp_path / "entry.yaml").write_text(yaml.safe_dump({ENV: entry}))
    return [
        "--env", ENV, "--algo", algo, "--hyperparameters-file", str(tmp_path / "entry.yaml"), "--eval-freq", "64",
        "--eval-episodes", "1", "--final-episodes", "1", "--run-dir", str(tmp_path / "run"), *more,
    ]  # fmt: skip


def content(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def strange(monkeypatch: pytest.MonkeyPatch, what: str, value: float, at: int) -> None:
    for name, of in (("what", what), ("value", value), ("at", at)):
        monkeypatch.setattr(StrangeNumbers, name, of)


def test_the_environment_trains_while_its_numbers_are_some(tmp_path: Path) -> None:
    rl.train.main(arguments(tmp_path))
    assert load_checkpoint(tmp_path / "run" / "checkpoints", "last")["step"] == 320


@pytest.mark.parametrize(
    ("algo", "update", "normalize", "what", "value"),
    [
        ("ppo", "auto", True, "reward", math.nan),
        ("ppo", "sb3", True, "reward", math.inf),
        ("ppo", "auto", False, "reward", math.inf),
        ("ppo", "auto", False, "observation", math.nan),
        ("ppo", "sb3", True, "observation", -math.inf),
        ("ppo", "sb3", False, "observation", math.nan),
        ("a2c", "auto", True, "reward", math.nan),
    ],
)
def test_a_number_that_is_none_stops_the_training(
    algo: str, update: str, normalize: bool, what: str, value: float, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: Any,
) -> None:  # fmt: skip
    strange(monkeypatch, what, value, at=100)
    saved: list[tuple[int, dict[str, str]]] = []
    genuine = rl.train.BetweenRollouts._save

    def noted(between: Any) -> None:
        genuine(between)
        saved.append((between.model.num_timesteps, content(tmp_path / "run" / "checkpoints")))

    monkeypatch.setattr(rl.train.BetweenRollouts, "_save", noted)
    monkeypatch.setattr("rl.training.between_rollouts.STEPS_PER_LINE", 64)
    with pytest.raises(SystemExit) as left:
        run_command(lambda: rl.train.main(arguments(tmp_path, "--update", update, algo=algo, normalize=normalize)))
    assert left.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    # the environments count their steps together; with normalisation one NaN is in the statistics of all of them
    assert line.startswith(f"error: {ENV}, step 200: the {what} of environment ")
    assert "1" in line.split("environment ")[1].split(" is ")[0]
    step, files = saved[-1]
    assert f"the checkpoint {tmp_path}/run/checkpoints/last of step {step:,} is from before, and --resume" in line
    assert 100 < step < 200
    assert content(tmp_path / "run" / "checkpoints") == files
    assert all_finite(load_checkpoint(tmp_path / "run" / "checkpoints", "last")["policy"].values())


@pytest.mark.parametrize(("update", "algorithm"), [("auto", FastPPO), ("sb3", PPO)])
def test_an_update_that_ruins_the_policy_is_never_saved(
    update: str, algorithm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = algorithm.train

    def ruining(model: Any) -> None:
        genuine(model)
        if model.num_timesteps == 192:
            with torch.no_grad():
                model.policy.value_net.bias.fill_(math.nan)

    monkeypatch.setattr(algorithm, "train", ruining)
    monkeypatch.setattr("rl.training.between_rollouts.STEPS_PER_LINE", 64)
    message = rf"^{ENV}, step 192: the update has left weights that are NaN.*/last of step 128 is from before"
    with pytest.raises(NotFiniteError, match=message):
        rl.train.main(arguments(tmp_path, "--update", update))
    assert load_checkpoint(tmp_path / "run" / "checkpoints", "last")["step"] == 128


def test_a_loss_that_is_none_is_noticed_though_weights_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = FastPPO._log

    def logged(model: Any, course: Any, settings: Any) -> None:
        course.loss = math.nan if model.num_timesteps == 128 else course.loss
        genuine(model, course, settings)

    monkeypatch.setattr(FastPPO, "_log", logged)
    with pytest.raises(NotFiniteError, match=rf"^{ENV}, step 128: train/loss of the update is nan"):
        rl.train.main(arguments(tmp_path))


def test_a_rollout_whose_values_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = fast_ppo._values
    calls = iter(range(1000))

    def values(network: Any, obs: Any) -> Any:
        computed = genuine(network, obs)
        return computed * math.nan if next(calls) == 2 else computed

    monkeypatch.setattr(fast_ppo, "_values", values)
    with pytest.raises(NotFiniteError, match=r"the advantages of environment 0, 1 are NaN .* before this update"):
        rl.train.main(arguments(tmp_path))


def test_what_explained_variance_may_be_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where returns do not vary SB3 logs NaN for it, and nothing is wrong."""
    monkeypatch.setattr("rl.fast.ppo.explained_variance", lambda _values, _returns: math.nan)
    rl.train.main(arguments(tmp_path))
    lines = read_metrics(tmp_path / "run")
    assert any(line.get("train/explained_variance", 0) is None for line in lines)
