"""The weight of each element."""

from __future__ import annotations

import torch

from dem_apps.reduction import class_weights


def test_a_class_below_the_least_share_weighs_in_proportion() -> None:
    counts = torch.tensor([900.0, 95.0, 5.0, 0.0], dtype=torch.float64)
    plain, floored = class_weights(counts, "balanced"), class_weights(counts, "balanced", 1.0, 0.05)
    torch.testing.assert_close(counts * plain, torch.tensor([1, 1, 1, 0], dtype=torch.float64) / 3)
    # 5 of 50 elements are a tenth of a class
    torch.testing.assert_close(counts * floored, torch.tensor([1, 1, 0.1, 0], dtype=torch.float64) / 2.1)
    half = class_weights(counts, "balanced", 0.5, 0.05)
    unscaled = torch.tensor([900.0, 95.0, 50.0, 50.0], dtype=torch.float64) ** -0.5
    torch.testing.assert_close(half, unscaled / (counts * unscaled).sum())
    assert torch.equal(class_weights(counts, "mean", 1.0, 0.05), class_weights(counts, "mean"))
    assert class_weights(torch.zeros(3), "balanced", 1.0, 0.05).isfinite().all()
