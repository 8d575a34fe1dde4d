"""The weight of the entropy term where no flag gives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.config import TrainConfig, resolve

DOORKEY, EMPTY = "MiniGrid-DoorKey-5x5-v0", "MiniGrid-Empty-Random-5x5-v0"


@pytest.mark.parametrize(
    ("env", "algo", "weight"),
    [(DOORKEY, "ppo", 0.03), (EMPTY, "ppo", 0.001), (DOORKEY, "a2c", 0.001), ("MountainCar-v0", "ppo", 0.001)],
)
def test_it_is_the_environments_or_the_papers(env: str, algo: str, weight: float) -> None:
    assert resolve(TrainConfig(env=env, algo=algo)).weight == weight


def test_the_flag_wins() -> None:
    assert resolve(TrainConfig(env=DOORKEY, ent_coef=0.5)).weight == 0.5


def test_that_of_a_file_of_the_zoos_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "zoo.yaml"
    file.write_text(f"{EMPTY}: {{policy: MlpPolicy, n_timesteps: 1.0e+5, n_envs: 1, ent_coef: 0.0}}\n")
    config = resolve(TrainConfig(env=EMPTY, hyperparameters_file=str(file)))
    assert config.weight == 0.001
    assert "ent_coef" not in config.hyperparameters
