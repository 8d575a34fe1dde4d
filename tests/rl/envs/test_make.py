"""Environments as they are made: types, replays, and the fast ones beside MiniGrid and VecNormalize."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import DtypeObservation
from minigrid.wrappers import FlatObsWrapper
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support import refuses

from dem_apps.runtime.checkpoint import load_checkpoint, save_checkpoint
from rl import with_entropy_objective
from rl.config import TrainConfig, resolve
from rl.envs.make import make_env, make_training_envs, normalised
from rl.fast.compact_normalize import CompactNormalize
from rl.fast.grid_view import FlatObservation

DOORKEY = "MiniGrid-DoorKey-5x5-v0"
FLAT = "minigrid.wrappers.FlatObsWrapper"


def test_the_hook_warns_where_observations_would_be_cut():
    PPOAda = with_entropy_objective(PPO, "adadem")
    with pytest.warns(UserWarning, match="cut to whole numbers"):
        PPOAda("MlpPolicy", VecNormalize(DummyVecEnv([lambda: FlatObsWrapper(gym.make(DOORKEY))])))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        PPOAda("MlpPolicy", normalised(make_training_envs(DOORKEY, FLAT, 1), 0.99))


@pytest.mark.parametrize(
    ("env_id", "wrapper"), [(DOORKEY, FLAT), ("CartPole-v1", None), ("Pendulum-v1", None)]
)
@pytest.mark.parametrize("steps", [0, 37, 300])
def test_a_replayed_environment_goes_on_as_the_original(env_id, wrapper, steps, tmp_path):
    original, copy = make_env(env_id, wrapper), make_env(env_id, wrapper)
    original.action_space.seed(0)
    original.reset(seed=7)
    for _ in range(steps):
        play(original, original.action_space.sample())
    save_checkpoint(tmp_path, "last", {"step": 0, "record": original.episode_records()})
    assert copy.restore(load_checkpoint(tmp_path, "last")["record"])
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


#: Steps of the training and of a rollout of PPO.
NINE = {
    "DoorKey-5x5": (2e5, 128),
    "Empty-Random-5x5": (1e5, 128),
    "Unlock": (1e5, 128),
    "KeyCorridorS3R1": (5e5, 128),
    "RedBlueDoors-6x6": (1e6, 512),
    "Fetch-5x5-N2": (5e6, 128),
    "FourRooms": (5e6, 512),
    "GoToDoor-5x5": (5e6, 128),
    "PutNear-6x6-N2": (1e7, 128),
}


@pytest.mark.parametrize("algo", ["a2c", "ppo"])
@pytest.mark.parametrize("name", NINE)
def test_the_nine_environments_have_an_entry_and_can_be_made(name, algo):
    steps, n_steps = NINE[name]
    config = resolve(TrainConfig(env=f"MiniGrid-{name}-v0", algo=algo))
    assert config.timesteps == (1e5 if (algo, name) == ("a2c", "DoorKey-5x5") else steps)
    assert config.hyperparameters["n_steps"] == (n_steps if algo == "ppo" else 5)
    env = make_env(config.env, config.hyperparameters["env_wrapper"])
    observation = env.reset(seed=0)[0]
    assert observation.shape == (2835,)
    assert observation.dtype == np.float32


def test_observations_without_a_network_are_told():
    refuses(f"--env {DOORKEY}: .* minigrid.wrappers.FlatObsWrapper", make_env, DOORKEY, None)


#: Often forwards, and using what is there: keys are carried and doors opened.
ACTIONS = [0, 1, 2, 2, 2, 3, 4, 5, 5]


def stock_envs(env_id, count):
    def make():
        return Monitor(DtypeObservation(FlatObsWrapper(gym.make(env_id)), np.float32))

    return VecNormalize(DummyVecEnv([make] * count), gamma=0.99)


@pytest.mark.parametrize("name", [*NINE, "LavaCrossingS9N1", "MultiRoom-N6"])
def test_observations_are_those_of_minigrid(name):
    stock = DtypeObservation(FlatObsWrapper(gym.make(f"MiniGrid-{name}-v0")), np.float32)
    ours = FlatObservation(gym.make(f"MiniGrid-{name}-v0"))
    assert ours.observation_space == stock.observation_space
    random = np.random.default_rng(0)
    for seed in range(3):
        one, two = stock.reset(seed=seed)[0], ours.reset(seed=seed)[0]
        for _ in range(60):
            assert two.dtype == np.float32
            assert np.array_equal(one, two)
            action = random.choice(ACTIONS)
            (one, *outcome), (two, *same) = stock.step(action), ours.step(action)
            assert outcome == same
            if outcome[1] or outcome[2]:
                break


def test_the_agent_sees_through_walls_where_the_environment_says_so():
    views = []
    for fast in (False, True):
        env = gym.make(DOORKEY, see_through_walls=True)
        env = FlatObservation(env) if fast else FlatObsWrapper(env)
        views.append(env.reset(seed=1)[0])
    assert np.array_equal(*views)
    assert not np.array_equal(views[0], FlatObsWrapper(gym.make(DOORKEY)).reset(seed=1)[0])


def test_an_environment_with_a_view_of_its_own_keeps_it():
    class Blind(type(gym.make(DOORKEY).unwrapped)):
        def gen_obs(self):
            return {**super().gen_obs(), "image": np.zeros((7, 7, 3), np.uint8)}

    env = FlatObservation(Blind(size=5))
    assert not env.reset(seed=0)[0][:147].any()


@pytest.mark.parametrize("env_id", ["MiniGrid-GoToDoor-5x5-v0", "CartPole-v1"])
def test_normalisation_is_that_of_vec_normalize_bit_for_bit(env_id):
    wrapper = FLAT if "MiniGrid" in env_id else None
    ours = normalised(make_training_envs(env_id, wrapper, 4), 0.99)
    stock = (
        stock_envs(env_id, 4)
        if wrapper
        else VecNormalize(DummyVecEnv([lambda: Monitor(gym.make(env_id))] * 4))
    )
    assert isinstance(ours, CompactNormalize)
    stock.seed(3), ours.seed(3)
    assert np.array_equal(stock.reset(), ours.reset())
    random, ended = np.random.default_rng(0), 0
    for step in range(160):
        actions = random.integers(0, ours.action_space.n, 4)
        expected, got = stock.step(actions), ours.step(actions)
        for one, two in zip(expected[:3], got[:3], strict=True):
            assert one.dtype == two.dtype
            assert np.array_equal(one, two), step
        for one, two in zip(expected[3], got[3], strict=True):
            assert one.keys() == two.keys()
            if "terminal_observation" in one:
                ended += 1
                assert np.array_equal(one["terminal_observation"], two["terminal_observation"])
                assert one["TimeLimit.truncated"] == two["TimeLimit.truncated"]
                assert (one["episode"]["r"], one["episode"]["l"]) == (
                    two["episode"]["r"],
                    two["episode"]["l"],
                )
    assert ended > 3
    for name in ("mean", "var", "count"):
        assert np.array_equal(getattr(stock.obs_rms, name), getattr(ours.obs_rms, name))
        assert np.array_equal(getattr(stock.ret_rms, name), getattr(ours.ret_rms, name))
    assert len(ours.columns) < 300
