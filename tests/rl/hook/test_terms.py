"""The two rivals: their equations against definitions, and their numpy forms against autograd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO

from dem_apps.errors import InputError
from dem_apps.fused.numpy_objective import by_equations
from rl import with_entropy_objective
from rl.hook import adaptive_entropy
from rl.hook.algorithm import POLICY_TERMS, build_term
from rl.hook.complexity import complexity

C = 5


def logits_of(rows: int = 64, scale: float = 2.0) -> torch.Tensor:
    return scale * torch.randn(rows, C, generator=torch.Generator().manual_seed(3))


def test_complexity_is_entropy_times_the_distance_from_uniform() -> None:
    logits = logits_of().double().requires_grad_()
    p = logits.softmax(1)
    expected = torch.distributions.Categorical(logits=logits).entropy() * ((p - 1 / C) ** 2).sum(1)
    assert torch.allclose(complexity(logits, 1), expected, atol=1e-12)
    assert torch.autograd.gradcheck(lambda z: complexity(z, 1), (logits[:4].detach().requires_grad_(),))
    assert complexity(torch.zeros(3, C)).tolist() == pytest.approx([0.0] * 3, abs=1e-6)
    assert complexity(torch.tensor([[200.0, 0, 0, 0, 0]])).item() == 0.0


@pytest.mark.parametrize("name", POLICY_TERMS)
@pytest.mark.parametrize("scale", [0.1, 2.0, 30.0])
def test_the_numpy_form_is_the_equation(name: str, scale: float) -> None:
    one, two = build_term(name, C), build_term(name, C)
    form = one.numpy_form()
    assert form is not None
    for seed in range(3):
        logits = (scale * np.random.default_rng(seed).normal(size=(64, C))).astype(np.float32)
        p = torch.from_numpy(logits).softmax(1).numpy()
        value, gradient = form(logits, p)
        expected, by_autograd = by_equations(two)(logits, p)
        assert value == pytest.approx(expected, abs=2e-6)
        np.testing.assert_allclose(gradient, by_autograd, atol=3e-7)
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), two.buffers(), strict=True))


def test_the_coefficient_rises_below_the_target_and_rests_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive_entropy, "STEP", 0.25)
    monkeypatch.setattr(adaptive_entropy, "MOST", 1.5)
    term = adaptive_entropy.AdaptiveEntropy(C, target=0.5)
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


def test_options_are_the_hooks() -> None:
    model = with_entropy_objective(PPO, "adaptive-entropy", target=0.9)("MlpPolicy", "CartPole-v1", ent_coef=0.1)
    assert model.policy.entropy_objective[0].target == pytest.approx(0.9 * math.log(2))
    assert "entropy_objective.0.multiplier" in model.policy.state_dict()
    with pytest.raises(InputError, match="target: expected a share"):
        with_entropy_objective(PPO, "adaptive-entropy", target=3.0)
    with pytest.raises(InputError, match="'complexty'; did you mean 'complexity'"):
        with_entropy_objective(PPO, "complexty")
