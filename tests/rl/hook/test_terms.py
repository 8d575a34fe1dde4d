"""An entropy term whose coefficient follows a target."""

import math

import pytest
import torch
from stable_baselines3 import PPO
from support import refuses

from rl import with_entropy_objective
from rl.hook import terms
from rl.hook.terms import STEP, AdaptiveEntropy

C = 5


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
