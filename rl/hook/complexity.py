"""Entropy × disequilibrium, the term of CR-PPO: a rival that also claims to need no tuning of its weight.

Source: Serfilippi, Franceschelli, Corradi, Musolesi: Complexity-Regularized Proximal Policy Optimization (arXiv
2509.20509), after López-Ruiz, Mancini and Calbet's statistical complexity (1995). Here in nats, not divided by log C.
"""

from __future__ import annotations

from torch import Tensor

from dem_apps.entropy import probabilities, shannon_entropy
from dem_apps.objective import EntropyObjective
from dem_apps.reduction import Batch


def complexity(logits: Tensor, dim: int = -1, class_mask: Tensor | None = None) -> Tensor:
    """H · Σ (pᵢ − 1/C)², 0 for a sure and for a uniform prediction and more between them; C counts the allowed classes.

    >>> import torch
    >>> complexity(torch.tensor([1.0, 3.0]).log())  # p = (1/4, 3/4): H = 0.5623, Σ = 2/16
    tensor(0.0703)
    """
    p = probabilities(logits, dim, class_mask=class_mask)
    allowed = logits.shape[dim] if class_mask is None else (~class_mask).sum(dim).clamp_min(1).to(p.dtype)
    # Σ (p − 1/C)² = Σ p² − 1/C, and not below 0 by rounding
    return shannon_entropy(logits, dim, class_mask) * (p.square().sum(dim) - 1 / allowed).clamp_min(0.0)


class Complexity(EntropyObjective):
    """CR-PPO's term; maximised, it leaves the uniform policy alone and pulls a sure one back."""

    def values(self, logits: Tensor, dim: int, class_mask: Tensor | None, batch: Batch) -> Tensor:
        """:func:`complexity`."""
        return complexity(logits, dim, class_mask)
