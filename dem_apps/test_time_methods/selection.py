"""Filters: which elements or images of a batch are learnt from.

The papers filter a classifier's images. With logits (B, C, H, W) a filter judges each pixel (``element``), or each
image by its pixels' means (``image``); with logits (B, C) both are the same.

Shapes: B images, C classes, U the judged units: (B,) or (B, H, W).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dem_apps import entropy
from dem_apps.test_time_methods.network import check_finite

FILTER_BY = ("element", "image")


@dataclass(frozen=True)
class Units:
    """The units that a filter judges; nothing in it carries a gradient."""

    p: Tensor  #: probabilities, U with C as its second dimension
    entropy: Tensor  #: U, in nats; of an image the mean over its elements
    counted: Tensor  #: U, False where the mask leaves all elements out
    elements: Tensor  #: (B,) or (B, H, W), False where the mask leaves the element out

    def of_elements(self, values: Tensor) -> Tensor:
        """U → (B,) or (B, H, W): the value of the unit that each element belongs to."""
        if values.ndim == self.elements.ndim:
            return values
        return values[:, None, None].expand(self.elements.shape)

    def kept_elements(self, kept: Tensor) -> Tensor:
        """The elements that count in the units that are kept."""
        return self.of_elements(kept) & self.elements

    def mean_p(self, kept: Tensor) -> Tensor:
        """(C,) mean probabilities over the units that are kept, at least one."""
        dims = [0, *range(2, self.p.ndim)]
        return (self.p * kept.unsqueeze(1)).sum(dims) / kept.sum()


@torch.no_grad()
def units(logits: Tensor, elements: Tensor, filter_by: str) -> Units:
    """The units of a batch; ``elements`` that count are True, in the logits' shape without C.

    Raises NotFiniteError: an entropy that is NaN, which no threshold can judge.
    """
    if not elements.all():
        logits = logits.masked_fill(~elements.unsqueeze(1), 0.0)
    p, h, counted = entropy.probabilities(logits, 1), entropy.shannon_entropy(logits, 1), elements
    check_finite("the predictions' entropy", h)
    if filter_by == "image" and logits.ndim == 4:
        number = elements.flatten(1).sum(1)
        share = elements / number.clamp_min(1)[:, None, None]
        p, h = (p * share.unsqueeze(1)).sum((2, 3)), (h * share).sum((1, 2))
        counted = number > 0
    return Units(p, h, counted, elements)


def margin(given: float | None, share: float, judged: Units) -> float:
    """A threshold on entropies in nats: the given one, or a share of log C."""
    return share * math.log(judged.p.shape[1]) if given is None else given
