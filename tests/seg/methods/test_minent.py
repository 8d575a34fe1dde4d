"""MinEnt: an objective per head, and the supervised loss; its step is compared in tests/seg/test_step.py."""

from __future__ import annotations

import math

import pytest
import torch

from dem_apps import OBJECTIVE_NAMES, build_objective
from seg.methods.head_objectives import HeadObjectives
from seg.models.predictor import upsampled
from seg.step import supervised_loss

WEIGHTS = {"main": 0.5, "aux": 0.1}
SIZE = (12, 16)


@pytest.fixture
def logits():
    torch.manual_seed(0)
    return {head: torch.randn(2, 5, *SIZE, requires_grad=True) for head in WEIGHTS}


@pytest.mark.parametrize("loss", OBJECTIVE_NAMES)
@pytest.mark.parametrize("reduction", ["mean", "balanced"])
def test_the_loss_is_the_weighted_sum_over_heads(logits, loss, reduction):
    adaptation = HeadObjectives(loss, 5, WEIGHTS, reduction, {})
    total, values = adaptation(logits)
    scale = 1 / math.log(5) if loss in ("entropy", "cadf", "dem", "info-max") else 1.0
    expected = sum(
        WEIGHTS[head] * scale * build_objective(loss, 5)(logits[head], dim=1, reduction=reduction) for head in WEIGHTS
    )
    torch.testing.assert_close(total, expected)
    assert set(values) == {"target/entropy", "target/objective_main", "target/objective_aux"}
    total.backward()
    assert all(value.grad.abs().sum() > 0 for value in logits.values())


def test_supervised_loss_without_any_label_is_zero(logits):
    label = torch.full((2, *SIZE), 255)
    loss, _ = supervised_loss(logits, label, WEIGHTS, 255)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all(float(value.grad.abs().sum()) == 0.0 for value in logits.values())


@pytest.mark.parametrize("align_corners", [True, False])
def test_upsampled_is_bilinear_with_or_without_aligned_corners(align_corners):
    ramp = torch.arange(3.0).expand(1, 1, 2, 3)
    wide = upsampled(ramp, (2, 5), align_corners)[0, 0, 0]
    aligned = [0.0, 0.5, 1.0, 1.5, 2.0]
    assert wide.tolist() == pytest.approx(aligned if align_corners else [0.0, 0.4, 1.0, 1.6, 2.0])
