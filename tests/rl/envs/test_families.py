"""Families of environments, modules that register a user's own, and defaults that depend on the environment."""

import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from support import cases, refuses

import rl.benchmark
import rl.evaluate
import rl.export
import rl.train
import rl.tune
from dem_apps.errors import InputError
from dem_apps.jobs.executor import parse_search
from dem_apps.runtime.settings import parse_config
from rl.config import TrainConfig, evaluation_length, resolve
from rl.envs import families
from rl.envs.entries import find_entry
from rl.envs.families import FAMILIES, family_of
from rl.envs.family import Family
from rl.envs.make import check_env_id, make_env
from rl.training.run import untrained_model

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
FLAT = "minigrid.wrappers.FlatObsWrapper"
ENTRY = {
    "policy": "MlpPolicy",
    "n_timesteps": 64,
    "n_envs": 2,
    "n_steps": 16,
    "batch_size": 16,
    "n_epochs": 1,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_an_environment_of_every_family_is_made_and_trained(name):
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
                entry, env_id = find_entry(known, "ppo", None, {})[0], known
                break
            except InputError:
                continue
    assert family_of(env_id) is family
    env = make_env(env_id, entry.get("env_wrapper"))
    assert np.issubdtype(env.observation_space.dtype, np.floating)
    steps = {**entry, "n_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 1}
    config = TrainConfig(env=env_id, hyperparameters=steps, ent_coef=0.001, update="sb3")
    assert untrained_model(config).learn(32).num_timesteps == 32


def test_a_family_may_bring_hyperparameters(monkeypatch, tmp_path):
    poles = Family(prefixes=("MountainCar-",), hyperparameters={"ppo": {**ENTRY, "ent_coef": 3}})
    monkeypatch.setitem(families.FAMILIES, "poles", poles)
    assert resolve(TrainConfig(env="MountainCar-v0")).hyperparameters == ENTRY
    assert (
        resolve(TrainConfig(env="MountainCar-v0", algo="a2c")).hyperparameters["policy"]
        == "MlpPolicy"
    )
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"Acrobot-v1": ENTRY}))
    config = TrainConfig(env="MountainCar-v0", hyperparameters_file=str(tmp_path / "mine.yaml"))
    refuses(r"mine\.yaml: has no entry for 'MountainCar-v0', only for Acrobot-v1", resolve, config)


@cases(
    ("MiniGrid-LavaCrossingS9N1-v0", "ppo", None, FLAT),
    ("BabyAI-BossLevel-v0", "ppo", None, FLAT),
    ("BabyAI-GoToObj-v0", "a2c", FLAT, FLAT),
    (
        "MiniGrid-LavaCrossingS9N1-v0",
        "ppo",
        "minigrid.wrappers.ImgObsWrapper",
        "minigrid.wrappers.ImgObsWrapper",
    ),
    (
        "Blackjack-v1",
        "ppo",
        "gymnasium.wrappers.FlattenObservation",
        "gymnasium.wrappers.FlattenObservation",
    ),
)
def test_flags_are_known_before_defaults_and_minigrid_brings_its_wrapper(env, algo, given, wrapper):
    flags = [
        "--env",
        env,
        "--algo",
        algo,
        *(["--hyperparameters.env_wrapper", given] if given else []),
    ]
    config = resolve(parse_config(TrainConfig, "x", "x", flags))
    assert config.hyperparameters["env_wrapper"] == wrapper
    assert config.hyperparameters["policy"] == "MlpPolicy"
    made = make_env(env, wrapper)
    for seed in range(8):  # BossLevel's missions are longer than FlatObsWrapper takes
        assert made.observation_space.contains(made.reset(seed=seed)[0])


def test_a_time_limit_among_the_wrappers_plans_the_evaluations():
    limit = "[{gymnasium.wrappers.TimeLimit: {max_episode_steps: 50}}]"
    flags = ["--env", "CartPole-v1", "--timesteps", "10000", "--hyperparameters.env_wrapper", limit]
    config = resolve(parse_config(TrainConfig, "x", "x", flags))
    assert (evaluation_length(config), config.eval_freq) == (50, 10_000 // 7)
    assert evaluation_length(resolve(TrainConfig(env="CartPole-v1"))) == 500


def test_observations_without_a_network_are_told_where_to_look():
    flag = "--hyperparameters.env_wrapper gymnasium.wrappers.FlattenObservation"
    refuses(f"--env Blackjack-v1: .*{flag}", resolve, TrainConfig(env="Blackjack-v1"))
    flags = ["--env", "Blackjack-v1", *flag.split()]
    config = resolve(parse_config(TrainConfig, "x", "x", flags))
    assert untrained_model(config).observation_space.shape == (45,)


def test_a_missing_package_matters_to_its_own_family_only(monkeypatch):
    monkeypatch.setitem(
        families.FAMILIES, "far", Family(prefixes=("Far-",), module="no_such_package")
    )
    check_env_id("CartPole-v1")
    refuses("--env Far-v0: no_such_package cannot be imported", check_env_id, "Far-v0")


@pytest.fixture
def my_envs(tmp_path, monkeypatch):
    """Flags that train on an environment of one's own."""
    (tmp_path / "my_envs.py").write_text(MODULE)
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump({"Corridor-v0": {**ENTRY, "n_timesteps": 64}})
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield [
        "--env",
        "Corridor-v0",
        "--hyperparameters-file",
        str(tmp_path / "mine.yaml"),
        "--eval-episodes",
        "2",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    forget()


def forget():
    """As in a process that has not imported it."""
    sys.modules.pop("my_envs", None)
    gym.registry.pop("Corridor-v0", None)


def test_an_unknown_environment_of_a_module_is_named(my_envs):
    refuses(
        r"unknown environment 'my_envs:Coridor-v0'; did you mean 'Corridor-v0'\?; my_envs registers no such id",
        check_env_id,
        "my_envs:Coridor-v0",
    )


def test_a_run_folder_imports_no_code_without_the_flag(my_envs, tmp_path):
    """What each command refuses is in tests/test_code_from_files.py."""
    rl.train.main([*my_envs, "--import", "my_envs"])
    run = str(tmp_path / "run")
    for main, more in (
        (rl.evaluate.main, ["--run", run, "--episodes", "2"]),
        (rl.train.main, ["--resume", run]),
        (rl.export.main, ["--run", run, "--out", str(tmp_path / "model.zip")]),
    ):
        forget()
        refuses(
            "--import my_envs" if main is rl.train.main else "unknown environment 'Corridor-v0'",
            main,
            more,
        )
        assert "my_envs" not in sys.modules
        main([*more, "--import=my_envs"])


def test_import_reaches_the_trainings_of_a_grid_and_of_a_search(my_envs, tmp_path):
    file = tmp_path / "grid.yaml"
    train = {"hyperparameters_file": str(tmp_path / "mine.yaml"), "eval_episodes": 1}
    file.write_text(
        yaml.safe_dump(
            {"envs": {"Corridor-v0": {}}, "arms": {"a": {}}, "seeds": [0], "train": train}
        )
    )
    grid = ["--config", str(file), "--folder", str(tmp_path / "grid"), "--import", "my_envs"]
    config = parse_config(rl.benchmark.BenchmarkConfig, "x", "x", grid)
    (jobs,) = rl.benchmark.grid_jobs(config).values()
    assert jobs[0].flags[-2:] == ("--import", "my_envs")
    flags = [f"--train.{flag[2:]}" if flag.startswith("--") else flag for flag in my_envs[:-2]]
    search = [*flags, "--train.import", "my_envs"]
    _, trained, passed_on = parse_search(
        rl.tune.TuneConfig, TrainConfig, "rl.tune", "rl.train", "", search
    )
    forget()
    assert resolve(trained).env == "Corridor-v0"
    assert passed_on[-2:] == ["--import", "my_envs"]


def test_a_module_that_cannot_be_imported_is_told(my_envs, tmp_path):
    (tmp_path / "leaving.py").write_text("raise SystemExit('no licence')\n")
    for name, reason in (
        ("my_envs,no_such_module", "No module named 'no_such_module'"),
        ("leaving", "no licence"),
    ):
        refuses(
            rf"^--import: \S+ cannot be imported: {reason}$",
            rl.train.main,
            [*my_envs, "--import", name],
        )


DOORKEY, EMPTY = "MiniGrid-DoorKey-5x5-v0", "MiniGrid-Empty-Random-5x5-v0"


@cases(
    (DOORKEY, "ppo", 0.03),
    (EMPTY, "ppo", 0.001),
    (DOORKEY, "a2c", 0.001),
    ("MountainCar-v0", "ppo", 0.001),
    ("MiniGrid-DoorKey-6x6-v0", "ppo", 0.1),
    ("MiniGrid-KeyCorridorS3R1-v0", "ppo", 0.1),
)
def test_it_is_the_environments_or_the_papers(env, algo, weight):
    assert resolve(TrainConfig(env=env, algo=algo)).ent_coef == weight


def test_that_of_a_file_of_the_zoos_is_not_used(tmp_path):
    file = tmp_path / "zoo.yaml"
    file.write_text(
        f"{EMPTY}: {{policy: MlpPolicy, n_timesteps: 1.0e+5, env_wrapper: {FLAT}, ent_coef: 0.0}}\n"
    )
    config = resolve(TrainConfig(env=EMPTY, hyperparameters_file=str(file)))
    assert config.ent_coef == 0.001
    assert "ent_coef" not in config.hyperparameters


@cases(
    ("MiniGrid-FourRooms-v0", 5_000_000, {}, 100),
    # 50 of at most 250 steps, of two policies under two kinds of actions: a quarter
    (DOORKEY, 200_000, {}, 50),
    (DOORKEY, 200_000, {"eval_episodes": 70}, 70),
    (DOORKEY, 2048, {}, 10),
    (DOORKEY, 2048, {"final_episodes": 33}, 33),
)
def test_the_scores_at_the_end_have_a_hundred_episodes_or_take_a_quarter_of_the_steps(
    env, timesteps, given, episodes
):
    assert resolve(TrainConfig(env=env, timesteps=timesteps, **given)).final_episodes == episodes


@pytest.mark.parametrize(
    "spelled", ["--learning-rate", "--learning_rate", "--hyperparameter.learning_rate"]
)
def test_a_hyperparameter_is_suggested_where_a_flag_was_meant_as_one(spelled):
    refuses(
        r"mean '--hyperparameters\.learning_rate'\?$",
        parse_config,
        TrainConfig,
        "rl.train",
        "",
        [spelled, "1"],
    )
