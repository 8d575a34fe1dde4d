"""The fast environments give MiniGrid's and VecNormalize's numbers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import DtypeObservation
from minigrid.core.world_object import Key
from minigrid.wrappers import FlatObsWrapper
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from dem_apps.errors import InputError
from rl.envs.make import make_env, make_training_envs
from rl.fast.compact_normalize import CompactNormalize, widened
from rl.fast.grid_view import FlatObservation

DOORKEY = "MiniGrid-DoorKey-5x5-v0"
FLAT = "minigrid.wrappers.FlatObsWrapper"
NINE = [
    "DoorKey-5x5", "Empty-Random-5x5", "Unlock", "KeyCorridorS3R1", "RedBlueDoors-6x6", "Fetch-5x5-N2", "FourRooms",
    "GoToDoor-5x5", "PutNear-6x6-N2",
]  # fmt: skip
#: Often forwards, and using what is there: keys are carried and doors opened.
ACTIONS = [0, 1, 2, 2, 2, 3, 4, 5, 5]


def stock_envs(env_id: str, count: int) -> VecNormalize:
    def make() -> gym.Env:
        return Monitor(DtypeObservation(FlatObsWrapper(gym.make(env_id)), np.float32))

    return VecNormalize(DummyVecEnv([make] * count), gamma=0.99)


@pytest.mark.parametrize("name", [*NINE, "LavaCrossingS9N1", "MultiRoom-N6"])
def test_observations_are_those_of_minigrid(name: str) -> None:
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


def test_what_the_agent_carries_is_shown() -> None:
    views = []
    for env in (gym.make(DOORKEY), FlatObservation(gym.make(DOORKEY))):
        env.reset(seed=0)
        env.unwrapped.carrying = Key("purple")  # type: ignore[attr-defined]
        views.append(env.unwrapped.gen_obs()["image"])  # type: ignore[attr-defined]
    assert np.array_equal(*views)
    assert views[0][3, 6].tolist() == [5, 3, 0]


def test_the_agent_sees_through_walls_where_the_environment_says_so() -> None:
    views = []
    for fast in (False, True):
        env = gym.make(DOORKEY, see_through_walls=True)
        env = FlatObservation(env) if fast else FlatObsWrapper(env)
        views.append(env.reset(seed=1)[0])
    assert np.array_equal(*views)
    assert not np.array_equal(views[0], FlatObsWrapper(gym.make(DOORKEY)).reset(seed=1)[0])


def test_an_environment_with_a_view_of_its_own_keeps_it() -> None:
    class Blind(type(gym.make(DOORKEY).unwrapped)):  # type: ignore[misc]
        def gen_obs(self) -> dict[str, Any]:
            return {**super().gen_obs(), "image": np.zeros((7, 7, 3), np.uint8)}

    env = FlatObservation(Blind(size=5))
    assert not env.reset(seed=0)[0][:147].any()


@pytest.mark.parametrize("env_id", ["MiniGrid-GoToDoor-5x5-v0", "CartPole-v1"])
def test_normalisation_is_that_of_vec_normalize_bit_for_bit(env_id: str) -> None:
    wrapper = FLAT if "MiniGrid" in env_id else None
    ours = make_training_envs(env_id, wrapper, 4, normalise=True, gamma=0.99)
    stock = stock_envs(env_id, 4) if wrapper else VecNormalize(DummyVecEnv([lambda: Monitor(gym.make(env_id))] * 4))
    assert isinstance(ours, CompactNormalize)
    stock.seed(3), ours.seed(3)
    assert np.array_equal(stock.reset(), ours.reset())
    random, ended = np.random.default_rng(0), 0
    for step in range(160):
        actions = random.integers(0, ours.action_space.n, 4)  # type: ignore[attr-defined]
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


def test_statistics_can_be_put_back_and_go_on_the_same() -> None:
    envs = [make_training_envs(DOORKEY, FLAT, 2, normalise=True, gamma=0.99) for _ in range(2)]
    one, two = envs
    for env in envs:
        env.seed(0), env.reset()
    for _ in range(30):
        one.step(np.array([2, 0])), two.venv.step(np.array([2, 0]))
    two.obs_rms, two.ret_rms, two.returns = one.obs_rms, one.ret_rms, one.returns
    assert set(two.columns) <= set(one.columns)
    two.use_columns(one.columns)
    assert np.array_equal(two.columns, one.columns)
    for _ in range(10):
        assert np.array_equal(one.step(np.array([1, 2]))[0], two.step(np.array([1, 2]))[0])


def test_a_column_comes_into_use_with_its_first_value() -> None:
    envs = make_training_envs(DOORKEY, FLAT, 2, normalise=True, gamma=0.99)
    envs.reset()
    unused = np.setdiff1d(np.arange(2835), envs.columns)[[0, -1]]
    inner = envs.venv.step_wait

    def with_new_columns() -> Any:
        observations, *rest = inner()
        observations[1, unused] = 5.0
        return observations, *rest

    envs.venv.step_wait = with_new_columns
    before = envs.columns
    compact = envs.step_compact(np.array([0, 0]))[0]
    assert set(unused) <= set(envs.columns)
    assert compact.shape == (2, len(envs.columns))
    assert (envs.expand(compact)[1, unused] > 1).all()
    rows = np.ones((3, len(before)), np.float32)
    wide = widened(rows, before, envs.columns)
    assert wide.sum() == rows.sum()
    assert not wide[:, np.searchsorted(envs.columns, unused)].any()


def test_wrappers_as_the_zoo_writes_them() -> None:
    for wrapper in (FLAT, [FLAT], [{FLAT: {}}]):
        assert make_env(DOORKEY, wrapper).observation_space.shape == (2835,)
    time_too = [{"sb3_contrib.common.wrappers.TimeFeatureWrapper": {"max_steps": 100}}]
    assert make_env("CartPole-v1", time_too).observation_space.shape == (5,)
    with pytest.raises(InputError, match="cannot wrap CartPole-v1"):
        make_env("CartPole-v1", FLAT)
