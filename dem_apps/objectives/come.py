"""Conservatively minimised entropy, of an opinion that may keep some of its mass for "unknown".

Source: Zhang et al.: COME: Test-time Adaption by Conservatively Minimizing Entropy, ICLR 2025, arXiv 2410.10894.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dem_apps.entropy import Mask, computed_in, shannon_entropy
from dem_apps.objective import EntropyObjective
from dem_apps.reduction import Batch


def opinion_entropy(logits: Tensor, dim: int = -1, class_mask: Mask = None) -> Tensor:
    """Return the entropy of the masses exp zᵢ / S and C / S.

    C is the number of allowed classes; S is defined at :class:`COME`.

    >>> opinion_entropy(torch.zeros(2))  # masses 1/4, 1/4, 1/2: 3/2 log 2
    tensor(1.0397)
    """
    logits = logits.to(computed_in(logits.dtype))
    if class_mask is not None:
        logits = logits.masked_fill(class_mask, 0.0)
    length = torch.linalg.vector_norm(logits, dim=dim, keepdim=True).clamp_min(
        torch.finfo(logits.dtype).tiny
    )
    logits = logits / length * length.detach()
    first = logits.narrow(dim, 0, 1)
    if class_mask is None:
        uncertain, mask = torch.full_like(first, logits.shape[dim]), None
    else:
        uncertain = (~class_mask).sum(dim, keepdim=True).to(logits.dtype)
        mask = torch.cat([class_mask, torch.zeros_like(first, dtype=torch.bool)], dim)
    return shannon_entropy(torch.cat([logits, uncertain.log()], dim), dim, mask)


class COME(EntropyObjective):
    """The entropy of an opinion, bᵢ = exp zᵢ / S and u = C / S with S = Σ exp zⱼ + C.

    bᵢ are the beliefs in C classes, and u is the mass of the uncertainty.

    The gradient leaves the length of the logits as it is, so that an element does not get certain by growing: only
    their direction moves. The length of the logits matters, and a constant added to them does. The authors' code adds
    1e-7 to every mass, which this does not.

    >>> import torch
    >>> COME(num_classes=2)(torch.tensor([[0.0, 0.0]]))  # b = (1/4, 1/4), u = 1/2: 3/2 log 2
    tensor(1.0397)
    >>> logits = torch.tensor([[3.0, 4.0]], requires_grad=True)
    >>> COME(num_classes=2)(logits).backward()
    >>> (logits.grad * logits.detach()).sum().abs() < 1e-6
    tensor(True)
    """

    divided_by_log_c = True

    def values(self, logits: Tensor, dim: int, class_mask: Mask, batch: Batch) -> Tensor:
        """Return :func:`opinion_entropy` of the logits."""
        return opinion_entropy(logits, dim, class_mask)
