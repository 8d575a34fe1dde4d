"""Environments with wrong spaces, observations or rewards."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO
from support.cases import cases
from support.refusals import refuses

from rl.envs.make import make_training_envs

ID = "Faulty-v0"


class Faulty(gym.Env):
    """Four numbers and two actions; ``fault`` says what is wrong."""

    def __init__(self, fault):
        self.fault = fault
        self.observation_space = spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        if fault == "constructor":
            raise TypeError("its own")
        if fault == "sequence":
            self.observation_space = spaces.Sequence(self.observation_space)
        if fault == "choice":
            self.observation_space = spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observation("reset shape"), {}

    def step(self, action):
        if self.fault == "own":
            raise ValueError("not enough values to unpack")
        reward = {"None": None, "list": [1.0, 2.0]}.get(self.fault, 1.0)
        return self._observation("step shape"), reward, False, False, {}

    def _observation(self, fault):
        if self.fault == "None observation":
            return None
        if self.fault == "choice":
            return 7
        return np.zeros((1,) if self.fault == fault else self.observation_space.shape, np.float32)


@pytest.fixture
def register():
    options = {"max_episode_steps": 99, "disable_env_checker": True}
    yield lambda fault: gym.register(ID, Faulty, **options, kwargs={"fault": fault})
    gym.registry.pop(ID, None)


def train():
    envs = make_training_envs(ID, None, 2)
    PPO("MlpPolicy", envs, n_steps=8, batch_size=8, n_epochs=1, device="cpu").learn(16)


@cases(
    ("sequence", r"are a Sequence that SB3 has no network for; wrap it in a module of your own"),
    ("reset shape", r"reset\(\) gave an observation of shape \(1,\), .* says \(4,\)$"),
    ("None observation", r"reset\(\) gave an observation of shape \(\), "),
    ("choice", r"reset\(\) gave the observation 7 outside of its space Discrete\(5\)$"),
    ("step shape", r"step\(\) gave an observation of shape \(1,\)"),
    ("None", r"step\(\) gave the reward None, which is no number$"),
    ("list", r"step\(\) gave the reward \[1\.0, 2\.0\], which is no number$"),
)
def test_a_fault_is_one_sentence_about_the_environment(fault, said, register):
    register(fault)
    refuses(f"^--env {ID}: .*{said}", train)


@cases(("own", ValueError("not enough values to unpack")), ("constructor", TypeError("its own")))
def test_an_error_of_its_own_is_left_alone(fault, error, register):
    register(fault)
    with pytest.raises(type(error), match=f"^{error}"):
        train()
