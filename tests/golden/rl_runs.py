"""Short trainings of ``rl.train`` in an environment without random numbers, with actions that no policy decides."""

import contextlib
import io
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

import rl.fast.ppo
from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.run_reader import read_metrics
from rl.config import TrainConfig, resolve
from rl.training import callback
from rl.training.run import train as train_policy


class Ring(gym.Env):
    """Places in a ring, on which an action is a number of steps; the last place ends an episode with a reward."""

    observation_space = spaces.Box(0.0, 1.0, (6,), np.float32)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place = self.length = 0
        return self.observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.place = (self.place + int(action)) % 6
        self.length += 1
        arrived = self.place == 5
        return self.observation(), float(arrived), arrived, self.length == 10, {}

    def observation(self) -> np.ndarray:
        return np.eye(6, dtype=np.float32)[self.place]


gym.register("Ring-v0", entry_point=Ring)
CONFIG = TrainConfig(
    env="Ring-v0",
    timesteps=192,
    eval_freq=192,
    eval_episodes=1,
    final_episodes=1,
    ent_coef=0.3,
    seed=6,
    hyperparameters={
        "n_envs": 4,
        "n_steps": 16,
        "batch_size": 32,
        "n_epochs": 4,
        "learning_rate": 0.003,
        # never reached: whether a sample is clipped changes its gradient by a jump
        "clip_range": 2.0,
        "normalize": True,
    },
)
A2C = {
    "algo": "a2c",
    "timesteps": 96,
    "eval_freq": 96,
    "ent_coef": 1.0,
    "hyperparameters": {"n_envs": 4, "n_steps": 8, "learning_rate": 0.003, "normalize": True},
}
ALGORITHMS: dict[str, dict[str, Any]] = {"ppo fast": {}, "ppo sb3": {"update": "sb3"}, "a2c": A2C}
RUNS = {
    f"{algorithm} {loss}": {**changes, "loss": loss}
    for algorithm, changes in ALGORITHMS.items()
    for loss in ("entropy", "adadem")
}


def train(**changes: Any) -> dict[str, list[float]]:
    """What SB3 logs of every update, and at the end the action head and the diagonal of the class table."""
    one_line_an_update = patch.object(callback, "STEPS_PER_LINE", 1)
    quiet = contextlib.redirect_stdout(io.StringIO())
    with tempfile.TemporaryDirectory() as folder, one_line_an_update, quiet, actions_from_numpy():
        run = Path(folder) / "run"
        train_policy(resolve(replace(CONFIG, run_dir=str(run), **changes)))
        lines = [line for line in read_metrics(run) if "train/value_loss" in line]
        state = load_checkpoint(run / "checkpoints", "last")
    names = [name for name in lines[0] if name.startswith("train/") and name != "train/ent_coef"]
    values = {name: [line[name] for line in lines] for name in names}
    values["action head"] = state["policy"]["action_net.weight"].norm(dim=1).tolist()
    for name, table in state["policy"].items():
        if name.endswith("class_marginals"):
            values["class table"] = table.diagonal().tolist()
    return values


@contextlib.contextmanager
def actions_from_numpy() -> Iterator[None]:
    """Actions are integers of numpy's generator: those that torch draws differ between its versions."""

    def draw(p: np.ndarray) -> np.ndarray:
        return np.random.randint(p.shape[1], size=len(p))

    def sample(distribution: torch.distributions.Categorical, shape: Any = ()) -> torch.Tensor:
        return torch.from_numpy(draw(distribution.probs.numpy()))

    with (
        patch.object(rl.fast.ppo, "drawn", draw),
        patch.object(torch.distributions.Categorical, "sample", sample),
    ):
        yield
