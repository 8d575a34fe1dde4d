"""Defaults that depend on the environment: the weight of the entropy term, the final episodes."""

import pytest

from dem_apps.errors import InputError
from dem_apps.runtime.settings import parse_config
from rl.config import TrainConfig, resolve

DOORKEY, EMPTY = "MiniGrid-DoorKey-5x5-v0", "MiniGrid-Empty-Random-5x5-v0"


@pytest.mark.parametrize(
    ("env", "algo", "weight"),
    [
        (DOORKEY, "ppo", 0.03), (EMPTY, "ppo", 0.001), (DOORKEY, "a2c", 0.001), ("MountainCar-v0", "ppo", 0.001),
        ("MiniGrid-DoorKey-6x6-v0", "ppo", 0.1), ("MiniGrid-KeyCorridorS3R1-v0", "ppo", 0.1),
    ],
)  # fmt: skip
def test_it_is_the_environments_or_the_papers(env, algo, weight):
    assert resolve(TrainConfig(env=env, algo=algo)).ent_coef == weight


def test_that_of_a_file_of_the_zoos_is_not_used(tmp_path):
    file = tmp_path / "zoo.yaml"
    file.write_text(f"{EMPTY}: {{policy: MlpPolicy, n_timesteps: 1.0e+5, n_envs: 1, ent_coef: 0.0}}\n")
    config = resolve(TrainConfig(env=EMPTY, hyperparameters_file=str(file)))
    assert config.ent_coef == 0.001
    assert "ent_coef" not in config.hyperparameters


@pytest.mark.parametrize(
    ("env", "timesteps", "given", "episodes"),
    [
        ("MiniGrid-FourRooms-v0", 5_000_000, {}, 100),
        (DOORKEY, 200_000, {}, 50),  # 50 of at most 250 steps, of two policies under two kinds of actions: a quarter
        (DOORKEY, 200_000, {"eval_episodes": 70}, 70),
        (DOORKEY, 2048, {}, 10),
        (DOORKEY, 2048, {"final_episodes": 33}, 33),
    ],
)
def test_the_scores_at_the_end_have_a_hundred_episodes_or_take_a_quarter_of_the_steps(env, timesteps, given, episodes):
    assert resolve(TrainConfig(env=env, timesteps=timesteps, **given)).final_episodes == episodes


@pytest.mark.parametrize("spelled", ["--learning-rate", "--learning_rate", "--hyperparameter.learning_rate"])
def test_a_hyperparameter_is_suggested_where_a_flag_was_meant_as_one(spelled):
    with pytest.raises(InputError, match=r"did you mean '--hyperparameters\.learning_rate'\?$"):
        parse_config(TrainConfig, "rl.train", "", [spelled, "1"])
