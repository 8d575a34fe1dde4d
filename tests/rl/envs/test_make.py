"""Environments: integer observations become float32, and episodes can be replayed."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from minigrid.wrappers import FlatObsWrapper
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support.refusals import refuses

from dem_apps.runtime.checkpoint import load_checkpoint, save_checkpoint
from rl import with_entropy_objective
from rl.config import TrainConfig, resolve
from rl.envs.make import make_env, make_training_envs, normalised

DOORKEY = "MiniGrid-DoorKey-5x5-v0"
FLAT = "minigrid.wrappers.FlatObsWrapper"


class Dictionary(gym.ObservationWrapper):
    """DoorKey as floats, and as the whole numbers that it has."""

    def __init__(self, env):
        super().__init__(env)
        (size,) = env.observation_space.shape
        self.observation_space = spaces.Dict(v=spaces.Box(0, 255, (size,)), w=spaces.Box(0, 255, (size,), np.int64))

    def observation(self, observation):
        return {"v": observation.astype(np.float32), "w": observation.astype(np.int64)}


def test_the_hook_warns_where_observations_would_be_cut():
    PPOAda = with_entropy_objective(PPO, "adadem")
    with pytest.warns(UserWarning, match="cut to whole numbers"):
        PPOAda("MlpPolicy", VecNormalize(DummyVecEnv([lambda: FlatObsWrapper(gym.make(DOORKEY))])))
    envs = DummyVecEnv([lambda: Dictionary(FlatObsWrapper(gym.make(DOORKEY)))])
    with pytest.warns(UserWarning, match="observation space w is declared int64"):
        PPOAda("MultiInputPolicy", VecNormalize(envs))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        PPOAda("MlpPolicy", normalised(make_training_envs(DOORKEY, FLAT, 1), 0.99))
        PPOAda("MultiInputPolicy", VecNormalize(envs, norm_obs_keys=["v"]))


@pytest.mark.parametrize(("env_id", "wrapper"), [(DOORKEY, FLAT), ("CartPole-v1", None), ("Pendulum-v1", None)])
@pytest.mark.parametrize("steps", [0, 37, 300])
def test_a_replayed_environment_goes_on_as_the_original(env_id, wrapper, steps, tmp_path):
    original, copy = make_env(env_id, wrapper), make_env(env_id, wrapper)
    original.action_space.seed(0)
    observation = original.reset(seed=7)[0]
    for _ in range(steps):
        observation = play(original, original.action_space.sample())[0]
    save_checkpoint(tmp_path, "last", {"step": 0, "record": original.episode_record()})
    repeated, known = copy.restore(load_checkpoint(tmp_path, "last")["record"])
    assert np.array_equal(repeated, observation)
    assert known
    for _ in range(400):  # over the end of the episode, into the next ones
        action = original.action_space.sample()
        one, two = play(original, action), play(copy, action)
        assert np.array_equal(one[0], two[0])
        assert one[1:] == two[1:]


def play(env, action):
    """One step as DummyVecEnv makes it, with Monitor's return and length of an episode that ended."""
    observation, reward, terminated, truncated, info = env.step(action)
    episode = (info["episode"]["r"], info["episode"]["l"]) if "episode" in info else None
    if terminated or truncated:
        observation = env.reset()[0]
    return observation, float(reward), terminated, episode


@pytest.mark.parametrize("algo", ["a2c", "ppo"])
@pytest.mark.parametrize(
    ("name", "steps", "n_steps"),
    [
        ("DoorKey-5x5", 2e5, 128), ("Empty-Random-5x5", 1e5, 128), ("Unlock", 1e5, 128),
        ("KeyCorridorS3R1", 5e5, 128),
        ("RedBlueDoors-6x6", 1e6, 512), ("Fetch-5x5-N2", 5e6, 128), ("FourRooms", 5e6, 512),
        ("GoToDoor-5x5", 5e6, 128), ("PutNear-6x6-N2", 1e7, 128),
    ],
)  # fmt: skip
def test_the_nine_environments_have_an_entry_and_can_be_made(algo, name, steps, n_steps):
    config = resolve(TrainConfig(env=f"MiniGrid-{name}-v0", algo=algo))
    assert config.timesteps == (1e5 if (algo, name) == ("a2c", "DoorKey-5x5") else steps)
    assert config.hyperparameters["n_steps"] == (n_steps if algo == "ppo" else 5)
    env = make_env(config.env, config.hyperparameters["env_wrapper"])
    observation = env.reset(seed=0)[0]
    assert observation.shape == (2835,)
    assert observation.dtype == np.float32


def test_observations_without_a_network_are_told():
    refuses("are a Dict that SB3 has no network for; .* minigrid.wrappers.FlatObsWrapper$", make_env, DOORKEY, None)
