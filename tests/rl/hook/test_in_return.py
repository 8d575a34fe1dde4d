"""The objective in the return: advantages, both paths, masks, time limits, zips; the two rivals against definitions."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.logger import Logger
from support import cases, refuses
from support.toy_env import make

from rl import save_plain, with_entropy_objective
from rl.fast.ppo import FastPPO
from rl.hook import terms
from rl.hook.in_return import ReturnValue, add_advantages
from rl.hook.terms import STEP, AdaptiveEntropy, complexity

SMALL = {"n_steps": 32, "seed": 0, "device": "cpu", "ent_coef": 0.05}


class Chain(gym.Env):
    """Three states in a row, one-hot; then the end, or a time limit before it."""

    observation_space = spaces.Box(0, 1, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, limit=3):
        self.limit = limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.eye(3, dtype=np.float32)[0], {}

    def step(self, action):
        self.t += 1
        seen = np.eye(3, dtype=np.float32)[min(self.t, 2)]
        return seen, float(action == 1), self.t >= 3, self.limit <= self.t < 3, {}

    def action_masks(self):
        return np.array([True, True, self.t == 0])


def made(algorithm, objective="adadem", limit=3, **options):
    more = {} if algorithm is A2C else {"batch_size": 16, "n_epochs": 2}
    model = with_entropy_objective(algorithm, objective, **options)(
        "MlpPolicy", Chain(limit), **SMALL, **more
    )
    model.set_logger(Logger(None, []))
    return model


def same(one, two, tolerance=0.0):
    pairs = zip(one.policy.state_dict().values(), two.policy.state_dict().values(), strict=False)
    return all(torch.allclose(a, b, rtol=0, atol=tolerance) for a, b in pairs)


@pytest.mark.parametrize("limit", [2, 3])
@pytest.mark.parametrize("objective", ["adadem", "entropy"])
def test_the_buffer_gets_what_a_plain_loop_gives(objective, limit):
    model = made(PPO, objective, limit, where="return", return_gamma=0.8, return_lambda=0.7)
    head, policy = model.policy.entropy_value, model.policy
    torch.nn.init.normal_(policy.action_net.weight)
    head.fit(np.random.default_rng(0).normal(size=(64, 128)), np.arange(64.0) / 20)
    _, callback = model._setup_learn(64)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, 32)
    states = torch.eye(3)
    with torch.no_grad():
        policy.set_training_mode(False)
        logits = policy.get_distribution(states).distribution.logits
        raw = policy.action_net(policy.mlp_extractor(states)[0])
        rewards = torch.distributions.Categorical(logits=logits).entropy()
        rewards = (
            policy.entropy_objective[0](raw, reduction="none") if objective == "adadem" else rewards
        )
        worth = head(torch.cat(policy.mlp_extractor(states), 1).numpy())
    at = model.rollout_buffer.observations[:, 0].argmax(1)
    expected, after = np.zeros(32), 0.0
    for t in reversed(range(32)):
        # the chain ends behind it; at a limit the next state still counts
        last = limit == 3 and at[t] == 2
        over = at[t] == limit - 1
        then = 0.0 if last else worth[min(at[t] + 1, 2)]
        after = (
            rewards[at[t]].item() + 0.8 * then - worth[at[t]] + 0.8 * 0.7 * (0.0 if over else after)
        )
        expected[t] = after
    before, returns = model.rollout_buffer.advantages.copy(), model.rollout_buffer.returns.copy()
    add_advantages(model, model.in_return, 0.05)
    assert np.allclose(
        model.rollout_buffer.advantages - before, 0.05 * expected[:, None], atol=1e-5
    )
    assert np.array_equal(model.rollout_buffer.returns, returns)


def test_the_value_head_learns_the_returns():
    head, draws = ReturnValue(4), np.random.default_rng(0)
    assert head(np.ones((2, 4))).tolist() == [0.0, 0.0]
    for _ in range(20):
        hidden = np.tanh(draws.normal(size=(512, 4)))
        head.fit(hidden, hidden @ [1, -2, 0, 3] + 5)
    assert head(np.eye(4)) == pytest.approx([6, 3, 5, 8], abs=0.1)


@pytest.mark.parametrize("objective", ["adadem", "entropy", "complexity"])
@pytest.mark.parametrize("where", ["return", "both"])
def test_the_fast_path_has_sb3s_numbers(objective, where):
    slow, fast = (
        made(PPO, objective, 2, where=where).learn(160),
        made(FastPPO, objective, 2, where=where).learn(160),
    )
    assert fast.not_fast is None
    assert same(slow, fast, 2e-5)
    assert not same(slow, made(PPO, objective, 2).learn(160))


def test_without_weight_it_is_no_term_and_in_the_loss_it_is_as_before():
    assert same(
        made(PPO, "entropy", where="return", return_weight=0.0).learn(96),
        made(PPO, "none").learn(96),
    )
    assert with_entropy_objective(PPO, "adadem", where="loss") is with_entropy_objective(
        PPO, "adadem"
    )


@pytest.mark.parametrize("algorithm", [PPO, A2C, MaskablePPO])
def test_saved_resumed_and_exported(algorithm, tmp_path):
    model = made(algorithm, where="both").learn(64)
    assert model.policy.entropy_value.moments.any()
    model.save(tmp_path / "own.zip")
    again = type(model).load(tmp_path / "own.zip", device="cpu")
    assert same(model, again)
    made_plain = algorithm("MlpPolicy", Chain(), device="cpu", n_steps=32)
    made_plain.set_parameters(model.get_parameters())  # also a plain model's
    save_plain(model, tmp_path / "plain.zip")
    plain = algorithm.load(tmp_path / "plain.zip", device="cpu")
    assert not any("entropy" in name for name in plain.policy.state_dict())
    states = np.eye(3, dtype=np.float32)
    assert np.array_equal(*(each.predict(states, deterministic=True)[0] for each in (model, plain)))


def test_masked_actions_have_no_part_in_the_reward():
    model = made(MaskablePPO, "entropy", where="return").learn(32)
    most = (np.log(3) + 2 * np.log(2)) / 3
    assert model.logger.name_to_value["train/entropy_reward"] == pytest.approx(most, abs=0.05)


def test_switches_are_rewarded_too():
    model = make(
        with_entropy_objective(PPO, "entropy", where="return"), spaces.MultiBinary(3)
    ).learn(32)
    assert model.logger.name_to_value["train/entropy_reward"] == pytest.approx(
        3 * np.log(2), abs=0.05
    )


@cases(
    (PPO, "adadem", {"where": "retrun"}, "where: 'retrun' is not one of loss, return, both"),
    (PPO, "none", {"where": "return"}, "where: 'return' .* cannot serve the objective 'none'"),
    (
        RecurrentPPO,
        "adadem",
        {"where": "both"},
        "cannot serve RecurrentPPO, whose states have a memory",
    ),
    (
        PPO,
        "adadem",
        {"where": "return", "return_gamma": 1.5},
        "return_gamma: expected a number from 0 to 1",
    ),
    (PPO, "adadem", {"return_weight": 1.0}, "return_weight: has no effect"),
)
def test_refused(algorithm, objective, options, said):
    refuses(said, with_entropy_objective, algorithm, objective, **options)


C = 5


def test_complexity_is_entropy_times_the_distance_from_uniform():
    logits = (
        (2 * torch.randn(64, C, generator=torch.Generator().manual_seed(3)))
        .double()
        .requires_grad_()
    )
    p = logits.softmax(1)
    expected = torch.distributions.Categorical(logits=logits).entropy() * ((p - 1 / C) ** 2).sum(1)
    assert torch.allclose(complexity(logits, 1), expected, atol=1e-12)
    assert torch.autograd.gradcheck(
        lambda z: complexity(z, 1), (logits[:4].detach().requires_grad_(),)
    )
    assert complexity(torch.zeros(3, C)).tolist() == pytest.approx([0.0] * 3, abs=1e-6)
    assert complexity(torch.tensor([[200.0, 0, 0, 0, 0]])).item() == 0.0


def test_the_coefficient_rises_below_the_target_and_rests_above(monkeypatch):
    monkeypatch.setattr(terms, "STEP", 0.25)
    monkeypatch.setattr(terms, "MOST", 1.5)
    term = AdaptiveEntropy(C, target=0.5)
    uniform, sure = torch.zeros(4, C), torch.tensor([[30.0, 0, 0, 0, 0]] * 4)
    almost = torch.tensor([[3.0, 0, 0, 0, 0]] * 4)
    entropy = torch.distributions.Categorical(logits=almost).entropy().mean()
    assert entropy < 0.5 * math.log(C)
    assert term(almost).item() == pytest.approx(entropy.item(), rel=1e-6)  # at first 1
    assert term.multiplier.item() == 1.25
    for _ in range(3):
        term(sure)
    assert term.multiplier.item() == 1.5
    assert term(uniform).item() == 0.0
    assert term.multiplier.item() == 1.25
    for _ in range(9):
        term(uniform)
    assert term.multiplier.item() == 0.0
    term(torch.zeros(0, C))
    term(sure, mask=torch.zeros(4, dtype=torch.bool))
    assert term.multiplier.item() == 0.0
    term.eval()
    term(sure)
    assert term.multiplier.item() == 0.0
    term.reset()
    assert term.multiplier.item() == 1.0


@pytest.mark.parametrize("fill", [None, -torch.inf, -1e8])
def test_the_target_is_a_share_of_the_allowed_actions(fill):
    term, forbidden = AdaptiveEntropy(20, target=0.5), torch.arange(20) >= 2
    # H = 0.582 of the two that are allowed
    logits = torch.tensor([0.0, 1.0]).repeat(10).expand(4, 20)
    logits = logits if fill is None else logits.masked_fill(forbidden, fill)
    term(logits, class_mask=forbidden if fill is None or fill == -1e8 else None)
    # above 0.5 log 2, and below 0.5 log 20
    assert term.multiplier.item() == pytest.approx(1 - STEP)


def test_options_are_the_hooks():
    model = with_entropy_objective(PPO, "adaptive-entropy", target=0.9)(
        "MlpPolicy", "CartPole-v1", ent_coef=0.1
    )
    assert model.policy.entropy_objective[0].share == 0.9
    assert "entropy_objective.0.multiplier" in model.policy.state_dict()
    refuses("target: expected a share", with_entropy_objective, PPO, "adaptive-entropy", target=3.0)
