"""FastPPO trains to SB3's weights under every objective and setting, and leaves the rest to SB3."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from support import cases, refuses
from support.collision import Collision, CollisionBelowAdaDEM
from torch import nn

from dem_apps.fused.numpy_objective import has_kernel_for
from rl import with_entropy_objective
from rl.envs.entries import hyperparameter, normalisation
from rl.envs.make import make_training_envs, normalised
from rl.fast import network
from rl.fast.ppo import FastPPO
from rl.hook import algorithm as hook

FLAT = "minigrid.wrappers.FlatObsWrapper"
SMALL = {
    "n_steps": 64,
    "batch_size": 32,
    "n_epochs": 2,
    "seed": 0,
    "device": "cpu",
    "ent_coef": 0.01,
}


def trained(algorithm, env_id, steps, **arguments):
    wrapper = FLAT if "MiniGrid" in env_id else None
    count = arguments.pop("count", 4)
    envs = normalised(make_training_envs(env_id, wrapper, count), 0.99)
    return algorithm("MlpPolicy", envs, **{**SMALL, **arguments}).learn(steps)


def difference(one, two):
    first, second = one.policy.state_dict(), two.policy.state_dict()
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


@pytest.mark.parametrize("loss", [None, "adadem"])
def test_weights_are_sb3s_after_160_updates(loss):
    """DoorKey with the Zoo's hyperparameters; with a loss, against the hook on SB3's own code."""
    arguments = {
        "n_steps": 128,
        "batch_size": 64,
        "n_epochs": 10,
        "learning_rate": 2.5e-4,
        "count": 8,
    }
    models = []
    for algorithm in (PPO, FastPPO):
        hooked = algorithm if loss is None else with_entropy_objective(algorithm, loss)
        models.append(trained(hooked, "MiniGrid-DoorKey-5x5-v0", 1024, **arguments))
    stock, fast = models
    assert fast.not_fast is None
    assert stock._n_updates == fast._n_updates == 10
    assert 0 < difference(stock, fast) <= 1e-6
    assert np.array_equal(stock._last_obs, fast._last_obs)
    for (name, one), (same, two) in zip(moments(stock).items(), moments(fast).items(), strict=True):
        assert name == same
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-6)


def moments(model):
    state = model.policy.optimizer.state_dict()["state"]
    return {f"{i} {name}": state[i][name] for i in sorted(state) for name in sorted(state[i])}


@cases(
    {"clip_range_vf": 0.05, "vf_coef": 0.3, "gae_lambda": 0.9, "gamma": 0.9},
    {"target_kl": 1e-4, "learning_rate": 3e-3, "clip_range": 0.02},
    {"batch_size": 48, "normalize_advantage": False, "max_grad_norm": 0.05},
    {"policy_kwargs": {"net_arch": {"pi": [8], "vf": [16, 8]}, "activation_fn": nn.ReLU}},
    {"policy_kwargs": {"net_arch": []}},
    {"policy_kwargs": {"net_arch": {"pi": [8], "vf": [16, 8]}}},
)
def test_every_setting_means_what_it_means_in_sb3(arguments):
    stock, fast = (
        trained(algorithm, "CartPole-v1", 768, **arguments) for algorithm in (PPO, FastPPO)
    )
    assert fast.not_fast is None
    assert stock._n_updates == fast._n_updates
    assert difference(stock, fast) <= 1e-5
    one, two = stock.logger.name_to_value, fast.logger.name_to_value
    names = [name for name in one if name.startswith("train/")]
    assert len(names) >= 9
    for name in names:
        assert one[name] == pytest.approx(two[name], rel=2e-3, abs=2e-5), name


# all: the numpy forms
@pytest.mark.parametrize("loss", ["cadf", "adadem-mec", "come", *hook.POLICY_TERMS, "none"])
def test_every_term_is_trained_as_through_the_hook(loss):
    stock, fast = (
        trained(with_entropy_objective(algorithm, loss), "CartPole-v1", 256, ent_coef=0.1, count=2)
        for algorithm in (PPO, FastPPO)
    )
    assert difference(stock, fast) <= 1e-5
    for name in ("train/entropy_objective", "train/policy_entropy", "train/entropy_loss"):
        assert fast.logger.name_to_value[name] == pytest.approx(
            stock.logger.name_to_value[name], abs=1e-5
        )


@pytest.mark.parametrize("made_of", [Collision, CollisionBelowAdaDEM])
def test_an_objective_without_a_numpy_form_goes_by_its_equations(made_of, monkeypatch):
    monkeypatch.setattr(hook, "build_objective", lambda _name, num_classes: made_of(num_classes))
    stock, fast = (
        trained(with_entropy_objective(algorithm, "adadem"), "CartPole-v1", 512, ent_coef=0.5)
        for algorithm in (PPO, FastPPO)
    )
    assert fast.not_fast is None
    assert difference(stock, fast) <= 1e-5
    assert made_of(2).numpy_form() is None


def test_a_callback_ends_the_training():
    for algorithm in (PPO, FastPPO):
        model = algorithm("MlpPolicy", "CartPole-v1", **SMALL)
        model.learn(256, lambda found, _: found["self"].num_timesteps < 20)
        assert model.num_timesteps == 20


def test_without_a_compiler_sb3_trains(monkeypatch):
    monkeypatch.setattr(network, "load_mlp_kernel", lambda: None)
    fast = trained(FastPPO, "CartPole-v1", 256)
    assert fast.not_fast == "there is no C++ compiler to build it with"
    assert difference(trained(PPO, "CartPole-v1", 256), fast) == 0


@cases(
    ("dem", {"tau": 0.7, "alpha": 1.3}),
    ("adadem", {"norm": "l2", "alpha": 0.8}),
    ("adadem", {"norm": "linf"}),
    ("adadem", {"delta": "entropy", "momentum": 0.5}),
    *((name, {}) for name in ("entropy", "cadf", "dem", "adadem", "adadem-norm", "adadem-mec")),
)
@pytest.mark.skipif(not has_kernel_for(7), reason="there is no C++ compiler")
def test_the_numpy_forms_are_the_objective(name, options):
    one, two = (hook.build_term(name, 7, **options).train() for _ in range(2))
    form = two.numpy_form()
    assert form is not None
    for seed, scale in enumerate((0.01, 3.0, 100.0)):
        logits = (
            torch.randn(64, 7, generator=torch.Generator().manual_seed(seed)) * scale
        ).requires_grad_()
        expected = one(logits, dim=1)
        value, gradient = form(logits.detach().numpy())
        assert value == pytest.approx(expected.item(), rel=1e-5, abs=2e-6 * scale)
        by_autograd = torch.autograd.grad(expected, logits)[0].numpy()
        np.testing.assert_allclose(gradient, by_autograd, rtol=1e-4, atol=1e-7 * max(scale, 1))
    for marginals, others in zip(one.buffers(), two.buffers(), strict=True):
        torch.testing.assert_close(marginals, others, rtol=0, atol=1e-6)


def test_what_cannot_be_trained_fast_is_trained_by_sb3():
    for arguments, reason in (
        ({"policy_kwargs": {"activation_fn": nn.ELU}}, "the activation is not Tanh"),
        ({"policy_kwargs": {"optimizer_class": torch.optim.SGD}}, "the optimiser is not Adam"),
        (
            {"policy_kwargs": {"optimizer_kwargs": {"weight_decay": 0.1}}},
            "not Adam without options",
        ),
    ):
        fast = trained(FastPPO, "CartPole-v1", 256, **arguments)
        assert reason in fast.not_fast
        assert difference(trained(PPO, "CartPole-v1", 256, **arguments), fast) == 0
    assert "actions are not Discrete" in FastPPO("MlpPolicy", "Pendulum-v1", **SMALL).not_fast
    assert (
        "not one axis of float32"
        in FastPPO("MlpPolicy", gym.make("FrozenLake-v1"), **SMALL).not_fast
    )


def test_expressions_of_the_zoo_are_read_and_never_run():
    text = "dict(net_arch=dict(pi=[64, 64], vf=[32]), activation_fn=nn.ReLU, ortho_init=False, log_std_init=-2)"
    assert hyperparameter("policy_kwargs", text) == {
        "net_arch": {"pi": [64, 64], "vf": [32]},
        "activation_fn": nn.ReLU,
        "ortho_init": False,
        "log_std_init": -2,
    }
    assert hyperparameter("policy_kwargs", "{'net_arch': [8]}") == {"net_arch": [8]}
    assert hyperparameter("ent_coef", "lin_0.001")(0.5) == pytest.approx(0.0005)
    assert hyperparameter("n_steps", 128.0) == 128
    for text in (
        "dict(a=open('x'))",
        "__import__('os')",
        "dict(a=nn.Linear)",
        "dict(**{})",
        "[i for i in (1,)]",
        "(",
    ):
        refuses(
            r"is not an expression of numbers",
            hyperparameter,
            "policy_kwargs",
            text,
        )
    refuses("expected a mapping", hyperparameter, "policy_kwargs", "[1]")


def test_normalize_as_the_zoo_writes_it():
    assert normalisation(True) == normalisation("{}") == (True, True)
    assert normalisation(False) is None
    assert normalisation("{'norm_obs': True, 'norm_reward': False}") == (True, False)
    assert normalisation({"norm_obs": False}) == (False, True)
    refuses(r"expected true, false or dict\(norm_obs", normalisation, "dict(clip=3)")
