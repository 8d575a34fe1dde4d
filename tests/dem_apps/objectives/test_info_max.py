"""Information maximisation against its plain definition, mean H − H(mean p), in value and gradient, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dem_apps import InfoMax

C = 5
REDUCTIONS = ("mean", "balanced", "sum")


def logits_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2


def by_definition(logits: Tensor, class_mask: Tensor, kept: Tensor, reduction: str, balance: float) -> Tensor:
    """Of (N, C) logits, with autograd through the mean prediction; an element at a time."""
    predicted = logits.masked_fill(class_mask, -torch.inf).argmax(1)
    number = torch.bincount(predicted[kept], minlength=C)
    entropies, predictions, weights = [], [], []
    for row in kept.nonzero().flatten().tolist():
        p = logits[row][~class_mask[row]].softmax(0)
        entropies.append(-(p * p.log()).sum())
        predictions.append(torch.zeros(C, dtype=torch.float64).masked_scatter(~class_mask[row], p))
        weights.append(float(number[predicted[row]]) ** -balance if reduction == "balanced" else 1.0)
    total = sum(weights)
    mean_p = sum(weight / total * p for weight, p in zip(weights, predictions, strict=True))
    possible = mean_p[mean_p > 0]
    diversity = -(possible * possible.log()).sum()
    loss = sum(weight / total * h for weight, h in zip(weights, entropies, strict=True)) - diversity
    return loss * total if reduction == "sum" else loss


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("forbidding", ["nothing", "here and there", "one class everywhere"])
@pytest.mark.parametrize("balance", [1.0, 0.4])
def test_value_and_gradient_are_those_of_the_definition(
    reduction: str, masked: bool, forbidding: str, balance: float
) -> None:
    logits = logits_of(23, C)
    class_mask = torch.zeros(23, C, dtype=torch.bool)
    if forbidding == "here and there":
        class_mask = logits_of(23, C, seed=1) > 1.5
    elif forbidding == "one class everywhere":
        class_mask[:, 3] = True
    mask = logits_of(23, seed=2) > -1 if masked else None
    ours, plain = (logits.clone().requires_grad_() for _ in range(2))
    loss = InfoMax(C, balance=balance)(
        ours, mask=mask, class_mask=None if forbidding == "nothing" else class_mask, reduction=reduction
    )
    kept = ~class_mask.all(1) if mask is None else mask & ~class_mask.all(1)
    expected = by_definition(plain, class_mask, kept, reduction, balance)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    (gradient,), (expected_gradient,) = torch.autograd.grad(loss, ours), torch.autograd.grad(expected, plain)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-11, atol=1e-13)
