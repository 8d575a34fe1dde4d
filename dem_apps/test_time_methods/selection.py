"""Filters: which elements of a batch are learnt from.

The papers filter a classifier's images. With logits (B, C, H, W) a filter judges each pixel.

Shapes: B images, C classes, U the judged units: (B,) or (B, H, W).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dem_apps import entropy
from dem_apps.test_time_methods.network import check_finite


@dataclass(frozen=True)
class Units:
    """The units that a filter judges; nothing in it carries a gradient."""

    p: Tensor  #: probabilities, U with C as its second dimension
    entropy: Tensor  #: U, in nats
    counted: Tensor  #: U, False where the mask leaves the unit out

    def below(self, entropy_margin: float) -> Tensor:
        """Return which counted units have an entropy below a margin in nats."""
        return self.counted & (self.entropy < entropy_margin)

    def mean_p(self, selected: Tensor) -> Tensor:
        """Return the mean probabilities (C,) over the units that are kept, at least one."""
        dims = [0, *range(2, self.p.ndim)]
        return (self.p * selected.unsqueeze(1)).sum(dims) / selected.sum()


@torch.no_grad()
def units(logits: Tensor, counted: Tensor) -> Units:
    """The units of a batch, of which those count where ``counted`` is True, in the logits' shape without C.

    Raises NotFiniteError: an entropy that is NaN, which no threshold can judge.
    """
    if not counted.all():
        logits = logits.masked_fill(~counted.unsqueeze(1), 0.0)
    p, h = entropy.probabilities(logits, 1), entropy.shannon_entropy(logits, 1)
    check_finite("the predictions' entropy", h)
    return Units(p, h, counted)


def margin(threshold: float | None, share: float, judged: Units) -> float:
    """A threshold on entropies in nats: the given one, or a share of log C."""
    return share * math.log(judged.p.shape[1]) if threshold is None else threshold
