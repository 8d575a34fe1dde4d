"""The hook with stable-baselines3 and its requirements alone."""

import pytest
from support.run_alone import run_alone


def test_every_objective_trains_ppo_and_a2c():
    program = """
import warnings
warnings.simplefilter("error", UserWarning)
import torch
from stable_baselines3 import A2C, PPO
import rl
from dem_apps import OBJECTIVE_NAMES
from rl.hook import with_entropy_objective

assert rl.with_entropy_objective is with_entropy_objective
for name in (*OBJECTIVE_NAMES, "none"):
    for algorithm, arguments in ((PPO, {"n_steps": 32, "batch_size": 16, "n_epochs": 2}), (A2C, {"n_steps": 8})):
        model = with_entropy_objective(algorithm, name)(
            "MlpPolicy", "CartPole-v1", ent_coef=0.01, seed=0, device="cpu", **arguments
        )
        before = [weight.detach().clone() for weight in model.policy.parameters()]
        model.learn(64)
        assert any(not torch.equal(one, two) for one, two in zip(before, model.policy.parameters(), strict=True))
    print(name)
"""
    done = run_alone(program, "stable-baselines3")
    assert done.returncode == 0, done.stderr
    assert {"adadem", "entropy", "none"} <= set(done.stdout.split())


def test_sb3_contribs_algorithms_need_sb3_contrib_only():
    pytest.importorskip("sb3_contrib")
    program = """
from sb3_contrib import RecurrentPPO
from rl.hook import with_entropy_objective

model = with_entropy_objective(RecurrentPPO)(
    "MlpLstmPolicy", "CartPole-v1", ent_coef=0.01, n_steps=16, batch_size=8, n_epochs=1, device="cpu",
    policy_kwargs={"lstm_hidden_size": 8},
)
model.learn(16)
"""
    done = run_alone(program, "stable-baselines3", "sb3-contrib")
    assert done.returncode == 0, done.stderr
