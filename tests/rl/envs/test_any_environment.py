"""Environments without an entry: pictures, dictionaries, numbers; games of MinAtar; presets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import rl.evaluate
import rl.train
from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.run_folder import RunFolder
from rl.config import TrainConfig, resolve
from rl.envs.make import make_env
from rl.training.run import untrained_model


class Drawn(gym.Env):  # type: ignore[type-arg]
    """Say which half is brighter; ``kind`` is how it is shown."""

    action_space = spaces.Discrete(2)

    def __init__(self, kind: str) -> None:
        self.kind = kind
        picture = spaces.Box(0, 255, (36, 40, 1), np.uint8)
        self.observation_space: spaces.Space[Any] = {
            "picture": picture, "dict": spaces.Dict({"picture": picture, "step": spaces.Box(0, 9, (1,), np.float32)}),
            "number": spaces.Discrete(3),
        }[kind]  # fmt: skip

    def _show(self) -> Any:
        self.side = int(self.np_random.integers(2))
        picture = self.np_random.integers(0, 60, (36, 40, 1)).astype(np.uint8)
        picture[:, 20 * self.side : 20 * self.side + 20] += 190
        shown = {"picture": picture, "dict": {"picture": picture, "step": np.array([self.steps], np.float32)}}
        return shown.get(self.kind, self.side)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._show(), {}

    def step(self, action: Any) -> Any:
        reward = float(action == self.side)
        self.steps += 1
        return self._show(), reward, self.steps == 9, False, {}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("picture", "dict", "number"):
        gym.registry.pop(f"Drawn-{kind}-v0", None)
        gym.register(f"Drawn-{kind}-v0", Drawn, kwargs={"kind": kind})


FLAGS = ["--timesteps", "2048", "--hyperparameters", "{n_steps: 512, batch_size: 256, n_epochs: 1}",
         "--eval-episodes", "2", "--eval-freq", "1024"]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "policy"), [("picture", "CnnPolicy"), ("dict", "MultiInputPolicy"), ("number", "MlpPolicy")]
)
def test_it_takes_sb3s_own_path_and_resumes(
    kind: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--env", f"Drawn-{kind}-v0", *FLAGS]
    rl.train.main([*flags, "--run-dir", "whole"])
    assert json.loads(Path("whole/eval.json").read_text())["episodes"] == 2
    config = resolve(TrainConfig(env=f"Drawn-{kind}-v0"))
    assert config.hyperparameters["policy"] == policy
    assert untrained_model(config).not_fast is not None
    rl.evaluate.main(["--run", "whole", "--episodes", "2"])

    save = RunFolder.save_checkpoint

    def interrupted(run: RunFolder, name: str, state: dict[str, Any]) -> Path:
        path = save(run, name, state)
        if name == "last" and state["step"] == 1024:
            raise KeyboardInterrupt
        return path

    monkeypatch.setattr(RunFolder, "save_checkpoint", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rl.train.main([*flags, "--run-dir", "broken"])
    monkeypatch.setattr(RunFolder, "save_checkpoint", save)
    rl.train.main(["--resume", "broken"])
    assert Path("broken/metrics.jsonl").read_text() == Path("whole/metrics.jsonl").read_text()
    one, two = (load_checkpoint(Path(run) / "checkpoints", "last")["policy"] for run in ("whole", "broken"))
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_minatar_trains_resumes_and_takes_the_fast_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minatar")
    config = resolve(TrainConfig(env="MinAtar/Breakout-v1", timesteps=2048))
    assert config.goal_return == 4.0
    model = untrained_model(config)
    assert model.not_fast is None
    assert model.observation_space.shape == (400,)
    monkeypatch.chdir(tmp_path)
    rl.train.main(["--env", "MinAtar/Breakout-v1", "--timesteps", "2048", "--eval-episodes", "2"])
    (run,) = Path("runs").iterdir()
    assert run.name.startswith("rl-MinAtar-Breakout-v1-adadem-0")


def test_a_game_of_minatar_comes_back_to_where_it_was() -> None:
    pytest.importorskip("minatar")
    one, two = (make_env("MinAtar/SpaceInvaders-v1", "gymnasium.wrappers.FlattenObservation") for _ in range(2))
    first = one.reset(seed=3)[0]
    assert np.array_equal(first, two.reset(seed=3)[0])
    for action in [0, 1, 2, 3, 0, 1, 2, 3]:
        observation = one.step(action)[0]
    assert np.array_equal(two.restore(json.loads(json.dumps(one.episode_record()))), observation)
    one.reset()
    two.restore(json.loads(json.dumps(one.episode_record())))
    assert all(np.array_equal(one.step(3)[0], two.step(3)[0]) for _ in range(8))


@pytest.mark.parametrize(
    ("env", "algo", "steps"), [("CartPole-v1", "ppo", 1e5), ("Acrobot-v1", "ppo", 1e6), ("CartPole-v1", "a2c", 5e5)]
)
def test_presets(env: str, algo: str, steps: float) -> None:
    config = resolve(TrainConfig(env=env, algo=algo))
    assert config.timesteps == steps
    assert config.goal_return is not None
    assert untrained_model(config).n_envs == config.hyperparameters["n_envs"]


def test_the_preset_of_lunar_lander() -> None:
    pytest.importorskip("Box2D")
    assert untrained_model(resolve(TrainConfig(env="LunarLander-v3"))).n_envs == 16
