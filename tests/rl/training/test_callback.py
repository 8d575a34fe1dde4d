"""NaN stops a training before the policy learns from it; its end: the time to the goal."""

import math

import gymnasium as gym
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from support import cases, refuses
from support.short_training import entry_flags
from support.toy_env import ToyEnv

import rl.train
from dem_apps.errors import NotFiniteError
from dem_apps.runtime.checkpoint import load_checkpoint
from rl.config import TrainConfig, resolve
from rl.fast.ppo import FastPPO
from rl.training.run import goal_figures, untrained_model, verdict
from rl.training.state import restore_train_state, train_state

ENV = "NaN-v0"


class NotFinite(ToyEnv):
    """The second environment returns one value that is not finite after some steps."""

    what, value, at = "reward", 0.0, 10**9
    made = 0

    def __init__(self):
        super().__init__(spaces.Discrete(3))
        self.steps, self.number = 0, NotFinite.made
        NotFinite.made += 1

    def step(self, action):
        self.steps += 1
        observation, reward, *ends = super().step(action)
        if self.steps == self.at and self.number == 2:  # after the one that is tried out
            if self.what == "reward":
                reward = self.value
            else:
                observation[1] = self.value
        return observation, reward, *ends


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    gym.register(ENV, entry_point=NotFinite)
    monkeypatch.setattr(NotFinite, "made", 0)
    monkeypatch.setattr("rl.training.callback.STEPS_PER_LINE", 64)
    yield
    del gym.registry[ENV]


@cases(
    ("ppo", "auto", True, "reward", math.nan),
    ("ppo", "sb3", True, "reward", math.inf),
    ("ppo", "auto", False, "observation", math.nan),
    ("a2c", "auto", True, "reward", math.nan),
)
def test_a_value_that_is_not_finite_ends_it(
    algo, update, normalize, what, value, tmp_path, monkeypatch, run_here
):
    for name, of in (("what", what), ("value", value), ("at", 100)):
        monkeypatch.setattr(NotFinite, name, of)
    done = run_here(
        rl.train.main, *entry_flags(ENV, tmp_path, algo, normalize), "--update", update, status=1
    )
    (line,) = done.err.splitlines()
    # the environments count their steps together
    assert line.startswith(f"error: {ENV}, step 200: the {what} of an environment is NaN")
    state = load_checkpoint(tmp_path / "run" / "checkpoints", "last")
    assert 100 < state["step"] < 200
    assert (
        f"checkpoints/last of step {state['step']:,} is from before, and --resume continues from it"
        in line
    )
    assert all(tensor.isfinite().all() for tensor in state["policy"].values())


@pytest.mark.parametrize(("update", "algorithm"), [("auto", FastPPO), ("sb3", PPO)])
def test_an_update_that_ruins_the_policy_is_never_saved(update, algorithm, tmp_path, monkeypatch):
    genuine = algorithm.train

    def ruining(model):
        genuine(model)
        if model.num_timesteps == 192:
            with torch.no_grad():
                model.policy.value_net.bias.fill_(math.nan)

    monkeypatch.setattr(algorithm, "train", ruining)
    message = rf"^{ENV}, step 192: the update has left weights that are NaN.*/last of step 128 is from before"
    with pytest.raises(NotFiniteError, match=message):
        rl.train.main([*entry_flags(ENV, tmp_path), "--update", update])
    assert load_checkpoint(tmp_path / "run" / "checkpoints", "last")["step"] == 128


CONFIG = TrainConfig(timesteps=300, eval_freq=100)


@cases(
    ({100: 0.1, 200: 0.9, 300: 0.95}, 0.86, 200, 200),
    ({100: 0.0, 200: 0.1, 300: 0.0}, 0.86, None, 300),  # censored
    ({100: 0.0}, None, None, None),
)
def test_the_time_to_the_goal(returns, goal, first, without):
    figures = goal_figures(returns, goal)
    assert figures == {"goal_return": goal, "steps_to_goal": first, "steps_without_goal": without}
    line = verdict(CONFIG, figures)
    if goal is None:
        assert "--goal-return" in line
    else:
        said = "first reached at step 200" if first else "not reached in 300 steps"
        assert line == f"goal: return 0.86, {said} (evaluated every 100 steps)"


def test_a_checkpoint_of_other_values_is_one_sentence():
    small = {"n_steps": 32, "n_envs": 1}
    model = untrained_model(
        resolve(TrainConfig(env="CartPole-v1", timesteps=64, hyperparameters=small))
    )
    state = {"step": 32, **train_state(model.learn(32))}
    record = state["envs"][0][-1]
    for part, value in (
        ("random", {}),
        ("envs", [[{**record, "seed": -1}]]),
        ("envs", [[{**record, "seed": 0.5}]]),
    ):
        refuses("a value does not fit this run", restore_train_state, model, {**state, part: value})
    del state["random"]
    refuses(r"a value does not fit this run .*random", restore_train_state, model, state)
