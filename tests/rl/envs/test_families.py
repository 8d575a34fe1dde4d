"""Families of environments: what each brings, and modules that register somebody's own environments."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from stable_baselines3 import PPO

import rl.benchmark
import rl.evaluate
import rl.export
import rl.train
import rl.tune
from dem_apps.errors import InputError
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.settings import parse_config, parse_search
from rl.config import TrainConfig, resolve
from rl.envs import families
from rl.envs.families import FAMILIES, GYMNASIUM, WRAPPERS, family_of
from rl.envs.family import Family
from rl.envs.make import check_env_id, make_env
from rl.envs.minigrid import MINIGRID
from rl.training.entries import find_entry
from rl.training.run import build_envs, build_model

torch.set_num_threads(1)

MODULE = """
import gymnasium as gym
import numpy as np

class Corridor(gym.Env):
    '''Walk right to the end of eight cells.'''

    observation_space, action_space = gym.spaces.Box(0, 8, (1,), np.int64), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(4))
        return np.array([self.place]), {}

    def step(self, action):
        self.place = max(self.place + (1 if action else -1), 0)
        return np.array([self.place]), float(self.place == 8), self.place == 8, False, {}

gym.register("Corridor-v0", Corridor, max_episode_steps=40)
"""
ENTRY = {"policy": "MlpPolicy", "n_timesteps": 64, "n_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 1}


@pytest.mark.parametrize("name", FAMILIES)
def test_an_environment_of_every_family_is_made_and_trained(name: str) -> None:
    """The first one that has hyperparameters; of a family without any, CartPole."""
    family = FAMILIES[name]
    if family.module is not None:
        module, _, register = family.module.partition(":")
        imported = pytest.importorskip(module)
        if register and not any(family_of(known) is family for known in gym.registry):
            getattr(imported, register)()
    env_id, entry = "CartPole-v1", ENTRY
    for known in sorted(gym.registry):
        if family_of(known) is family:
            try:
                entry, env_id = find_entry(known, "ppo", None)[0], known
                break
            except InputError:
                continue
    assert family_of(env_id) is family
    env = make_env(env_id, entry.get("env_wrapper"))
    assert np.issubdtype(env.observation_space.dtype, np.floating)
    envs = build_envs(env_id, {**entry, "n_envs": 2})
    steps = {**entry, "n_steps": 16, "batch_size": 16, "n_epochs": 1}
    model: Any = build_model(PPO, envs, steps, 0.001, 0, "cpu").learn(32)
    assert model.num_timesteps == 32


def test_the_longest_prefix_has_the_id() -> None:
    assert family_of("MiniGrid-DoorKey-5x5-v0") is MINIGRID
    assert family_of("CartPole-v1") is GYMNASIUM
    assert family_of("somewhere.else:MiniGrid-DoorKey-5x5-v0") is MINIGRID
    assert set(MINIGRID.wrappers) | set(GYMNASIUM.wrappers) == set(WRAPPERS)


def test_a_family_may_bring_hyperparameters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(
        families.FAMILIES,
        "poles",
        Family(prefixes=("MountainCar-",), hyperparameters={"ppo": {**ENTRY, "ent_coef": 3}}),
    )
    assert resolve(TrainConfig(env="MountainCar-v0")).hyperparameters == ENTRY
    assert resolve(TrainConfig(env="MountainCar-v0", algo="a2c")).hyperparameters["policy"] == "MlpPolicy"
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"Acrobot-v1": ENTRY}))
    with pytest.raises(InputError, match=r"mine\.yaml: has no entry for 'MountainCar-v0', only for Acrobot-v1"):
        resolve(TrainConfig(env="MountainCar-v0", hyperparameters_file=str(tmp_path / "mine.yaml")))
    monkeypatch.setitem(
        families.FAMILIES, "poles", Family(prefixes=("MountainCar-",), hyperparameters={"ppo": {**ENTRY, "n_stps": 3}})
    )
    with pytest.raises(InputError, match=r"MountainCar-v0's family: unknown key 'n_stps'; did you mean 'n_steps'"):
        resolve(TrainConfig(env="MountainCar-v0"))


def test_a_family_without_its_package_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(families.FAMILIES, "far", Family(prefixes=("Far-",), module="no_such_package"))
    check_env_id("CartPole-v1")
    with pytest.raises(InputError, match="--env Far-v0: no_such_package cannot be imported"):
        check_env_id("Far-v0")


@pytest.fixture
def my_envs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Flags that train on an environment of one's own."""
    (tmp_path / "my_envs.py").write_text(MODULE)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"Corridor-v0": {**ENTRY, "n_timesteps": 64}}))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield [
        "--env", "Corridor-v0", "--hyperparameters-file", str(tmp_path / "mine.yaml"), "--eval-episodes", "2",
        "--run-dir", str(tmp_path / "run"),
    ]  # fmt: skip
    forget()


def forget() -> None:
    """As in a process that has not imported it."""
    sys.modules.pop("my_envs", None)
    gym.registry.pop("Corridor-v0", None)


def test_import_registers_an_environment_for_every_command(my_envs: list[str], tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    with pytest.raises(InputError, match=r"unknown environment 'Corridor-v0'.*--import MODULE registers your own"):
        rl.train.main(my_envs)
    rl.train.main([*my_envs, "--import", "my_envs"])
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["env"] == "Corridor-v0"
    evaluate = ["--run", run, "--episodes", "2", "--out", str(tmp_path / "again.json")]
    export = ["--run", run, "--out", str(tmp_path / "model.zip")]
    for main, flags in ((rl.evaluate.main, evaluate), (rl.export.main, export), (rl.train.main, ["--resume", run])):
        forget()
        with pytest.raises(InputError, match=r"unknown environment 'Corridor-v0'.*--import MODULE registers your own"):
            main(flags)
        assert "my_envs" not in sys.modules, "a run folder may be anybody's: it names no code that is run"
        main([*flags, "--import=my_envs"])


def test_a_module_before_the_id_is_found_again_by_every_command(
    my_envs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    flags = ["--env", "my_envs:Corridor-v0", "--timesteps", "2048", "--eval-episodes", "2", "--run-dir", run]
    rl.train.main(flags)
    assert "recipe  SB3's defaults, since neither ppo.yaml nor a family of environments has Corridor-v0" in (
        capsys.readouterr().out
    )
    config = read_config(tmp_path / "run")
    assert config["env"] == "my_envs:Corridor-v0"
    assert config["hyperparameters"] == {"policy": "MlpPolicy", "n_timesteps": 1e5}
    for main, more in ((rl.evaluate.main, ["--run", run, "--episodes", "2"]), (rl.train.main, ["--resume", run]),
                       (rl.export.main, ["--run", run, "--out", str(tmp_path / "model.zip")])):  # fmt: skip
        forget()
        with pytest.raises(InputError, match=r"stands in a file, which cannot have the code of my_envs run"):
            main(more)
        assert "my_envs" not in sys.modules, "a run folder may be anybody's: it names no code that is run"
        main([*more, "--import=my_envs"])
    forget()
    (tmp_path / "settings.yaml").write_text("env: my_envs:Corridor-v0\n")
    (tmp_path / "grid.yaml").write_text("envs: {mine: {env: my_envs:Corridor-v0}}\narms: {a: {}}\nfolder: grid\n")
    for main, file in ((rl.train.main, "settings.yaml"), (rl.benchmark.main, "grid.yaml")):
        with pytest.raises(InputError, match=r"stands in a file, which cannot have the code of my_envs run"):
            main(["--config", str(tmp_path / file)])
        assert "my_envs" not in sys.modules
    grid = rl.benchmark.BenchmarkConfig(envs={"mine": {"env": "my_envs:Corridor-v0"}}, arms={"a": {}}, folder="grid")
    (jobs,) = rl.benchmark.grid_jobs(grid).values()
    assert jobs[0].run == Path("grid/mine/a/seed0")
    assert "my_envs:Corridor-v0" in jobs[0].flags


def test_import_is_given_on_the_command_line_and_nowhere_else(my_envs: list[str], tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("import_modules: my_envs\n")
    with pytest.raises(InputError, match=r"import_modules: can only be given on the command line, as --import$"):
        rl.train.main([*my_envs, "--config", str(tmp_path / "settings.yaml")])
    for key in ("import", "import_modules", "import-modules"):
        grid = rl.benchmark.BenchmarkConfig(
            envs={"Corridor-v0": {}}, arms={"a": {key: "my_envs"}}, folder=str(tmp_path / "grid")
        )
        with pytest.raises(InputError, match=r"can only be given on the command line of rl\.train"):
            rl.benchmark.grid_jobs(grid)
    assert "my_envs" not in sys.modules


def test_import_reaches_the_trainings_of_a_grid_and_of_a_search(my_envs: list[str], tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    train = {"hyperparameters_file": str(tmp_path / "mine.yaml"), "eval_episodes": 1}
    file.write_text(yaml.safe_dump({"envs": {"Corridor-v0": {}}, "arms": {"a": {}}, "seeds": [0], "train": train}))
    grid = ["--config", str(file), "--folder", str(tmp_path / "grid")]
    config = parse_config(rl.benchmark.BenchmarkConfig, "x", "x", grid)
    with pytest.raises(InputError, match="unknown environment 'Corridor-v0'"):
        rl.benchmark.grid_jobs(config)
    config = parse_config(rl.benchmark.BenchmarkConfig, "x", "x", [*grid, "--import", "my_envs"])
    (jobs,) = rl.benchmark.grid_jobs(config).values()
    assert jobs[0].flags[-2:] == ("--import", "my_envs")
    rl.train.main([*jobs[0].flags, "--run-dir", str(jobs[0].run)])
    assert rl.benchmark.grid_jobs(config), "its own run has the same settings"

    flags = [f"--train.{flag[2:]}" if flag.startswith("--") else flag for flag in my_envs[:-2]]
    search = [*flags, "--train.import", "my_envs"]
    _, trained, passed_on = parse_search(rl.tune.TuneConfig, TrainConfig, "rl.tune", "rl.train", "", search)
    forget()
    assert resolve(trained).env == "Corridor-v0"
    assert passed_on[-2:] == ["--import", "my_envs"]


@pytest.mark.parametrize("name", ["no_such_module", "my_envs,no_such_module", "1/0"])
def test_a_module_that_cannot_be_imported_is_told(name: str, my_envs: list[str]) -> None:
    with pytest.raises(InputError, match=r"^--import: \S+ cannot be imported \(No module named"):
        rl.train.main([*my_envs, "--import", name])
