"""The pure equations: gradients checked numerically, and the facts that the paper states or implies."""

import math

import pytest
import torch

from dem_apps import entropy

C = 5
CLASS_MASK = torch.tensor([[False, True, False, False, True]])


def logits_of(*shape, seed=0, spread=2.0):
    return (
        torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        * spread
    )


def gradient_of(function, logits, **arguments):
    leaf = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(leaf, **arguments).sum(), leaf)
    return gradient


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("class_mask", [None, CLASS_MASK])
def test_gradcheck(dim, class_mask):
    logits = logits_of(4, C).movedim(-1, dim).contiguous().requires_grad_()
    class_mask = None if class_mask is None else class_mask.movedim(-1, dim)
    calibration = logits_of(4, C, seed=1).softmax(-1).movedim(-1, dim)
    delta = logits_of(4, seed=2).abs() + 1
    for function in (
        lambda z: entropy.cadf(z, dim, class_mask=class_mask),
        lambda z: entropy.cadf(z, dim, tau=0.6, class_mask=class_mask),
        lambda z: entropy.gmc(z, dim, alpha=1.3, class_mask=class_mask),
        lambda z: entropy.dem(z, dim, tau=0.7, alpha=1.4, class_mask=class_mask),
        lambda z: entropy.dem(z, dim, tau=1.5, alpha=0.0, class_mask=class_mask),
        lambda z: entropy.shannon_entropy(z, dim, class_mask=class_mask),
    ):
        assert torch.autograd.gradcheck(function, logits)
    if class_mask is not None:
        calibration = calibration.masked_fill(class_mask, 0.0)
    for scaled in (calibration, 0.4 * calibration):
        calibrated = lambda z, c=scaled: entropy.calibrated_cadf(z, c, delta, dim, class_mask)  # noqa: E731
        assert torch.autograd.gradcheck(calibrated, logits)


@pytest.mark.parametrize("class_mask", [None, CLASS_MASK])
def test_rewards_are_negative_gradients(class_mask):
    logits = logits_of(8, C)
    for reward, of in (
        (entropy.cadf_reward, entropy.cadf),
        (entropy.entropy_reward, entropy.shannon_entropy),
    ):
        expected = -gradient_of(of, logits, class_mask=class_mask)
        torch.testing.assert_close(
            reward(logits, class_mask=class_mask), expected, rtol=1e-12, atol=1e-13
        )


@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0, 40.0])
def test_rewards_sum_to_one_and_delta_is_at_least_one(spread):
    logits = logits_of(500, C, spread=spread)
    torch.testing.assert_close(
        entropy.cadf_reward(logits).sum(-1), torch.ones(500, dtype=torch.float64)
    )
    assert entropy.entropy_reward(logits).sum(-1).abs().max() <= 1e-12
    assert (entropy.reward_norm(logits) >= 1 - 1e-12).all()
    assert (entropy.reward_norm(logits, norm="l2") >= C**-0.5 - 1e-12).all()
    assert (entropy.reward_norm(logits, norm="linf") >= 1 / C - 1e-12).all()


def test_entropy_stays_between_zero_and_log_c():
    one_hot, uniform = torch.eye(C) * 1e4, torch.zeros(3, C)
    assert torch.equal(entropy.shannon_entropy(one_hot), torch.zeros(C))
    torch.testing.assert_close(entropy.shannon_entropy(uniform), torch.full((3,), math.log(C)))


@pytest.mark.parametrize(
    ("tau", "alpha"), [(1.0, 1.0), (0.5, 1.0), (1.0, 2.0), (1.25, 1.6), (1.5, 1.6)]
)
@pytest.mark.parametrize("level", [0.0, 3.0])
def test_second_derivative_at_uniform_logits(tau, alpha, level):
    """Proposition A.1."""
    uniform = torch.full((C,), level, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(
        lambda z: entropy.dem(z, tau=tau, alpha=alpha), uniform
    )
    expected = (1 - 1 / C) * (alpha / C - 2 / (tau * C))
    torch.testing.assert_close(
        hessian.diagonal(), torch.full((C,), expected, dtype=torch.float64), rtol=0, atol=1e-12
    )
    assert (expected <= 1e-12) == (tau <= 2 / alpha + 1e-12)
