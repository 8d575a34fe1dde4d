"""The fast environments give MiniGrid's and VecNormalize's numbers."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import DtypeObservation
from minigrid.wrappers import FlatObsWrapper
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rl.envs.make import make_training_envs, normalised
from rl.fast.compact_normalize import CompactNormalize
from rl.fast.grid_view import FlatObservation

DOORKEY = "MiniGrid-DoorKey-5x5-v0"
FLAT = "minigrid.wrappers.FlatObsWrapper"
NINE = [
    "DoorKey-5x5", "Empty-Random-5x5", "Unlock", "KeyCorridorS3R1", "RedBlueDoors-6x6", "Fetch-5x5-N2", "FourRooms",
    "GoToDoor-5x5", "PutNear-6x6-N2",
]  # fmt: skip
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
    stock = stock_envs(env_id, 4) if wrapper else VecNormalize(DummyVecEnv([lambda: Monitor(gym.make(env_id))] * 4))
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
                assert (one["episode"]["r"], one["episode"]["l"]) == (two["episode"]["r"], two["episode"]["l"])
    assert ended > 3
    for name in ("mean", "var", "count"):
        assert np.array_equal(getattr(stock.obs_rms, name), getattr(ours.obs_rms, name))
        assert np.array_equal(getattr(stock.ret_rms, name), getattr(ours.ret_rms, name))
    assert len(ours.columns) < 300
