"""Information maximisation: certain predictions of the elements, and a uniform one over the batch.

The loss is the mean entropy of the predictions minus the entropy of the mean prediction, the mutual information of
input and prediction with the opposite sign. Source: SHOT (Liang, Hu, Feng: Do We Really Need to Access the Source
Data?, ICML 2020, arXiv 2002.08546), whose L_ent + L_div it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dem_apps.entropy import Mask, probabilities, shannon_entropy
from dem_apps.objective import EntropyObjective
from dem_apps.reduction import Batch


def mean_prediction(sums: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
    """Return the mean prediction p̄ (C,), the weighted mean of p.

    An element predicted as k weighs ``weights[k]``. Row k of ``sums`` (C, C) is the sum of p over
    these elements, and ``counts`` (C,) is their number. Without any element p̄ is 0.

    >>> sums = torch.tensor([[1.6, 0.4], [0.3, 0.7]])  # two elements predicted as class 0, one as class 1
    >>> mean_prediction(sums, torch.tensor([2.0, 1.0]), torch.tensor([0.25, 0.5]))  # each class weighs the same
    tensor([0.5500, 0.4500])
    """
    total = (weights * counts).sum()
    return torch.where(total > 0, weights @ sums / total, 0.0)


def information_maximisation(
    logits: Tensor, mean_p: Tensor, dim: int = -1, class_mask: Mask = None
) -> Tensor:
    """H + Σ pᵢ log p̄ᵢ per element, with p̄ held constant.

    The weighted mean over the elements is mean H − H(p̄), and so is its gradient: that of H(p̄) is
    −Σ (log p̄ᵢ + 1) ∂p̄ᵢ, where the ones cancel since p̄ sums to 1. ``mean_p`` is p̄, (C,), and may be 0.
    """
    p = probabilities(logits, dim, class_mask=class_mask)
    # p log p̄ is 0 where p̄ is 0, since p is 0 there
    log_mean = mean_p.clamp_min(torch.finfo(mean_p.dtype).tiny).log().to(p.dtype)
    # the probabilities sum to 1, so a constant can be taken out; less is left to cancel in the gradient
    top = log_mean.max()
    return (
        shannon_entropy(logits, dim, class_mask)
        + (p.movedim(dim, -1) * (log_mean - top)).sum(-1)
        + top
    )


class InfoMax(EntropyObjective):
    """Mean entropy minus the entropy of the mean prediction, from −log C to 0.

    The mean prediction is that of the batch, over all processes, under the weights of the reduction (with ``none``
    those of the mean).

    >>> objective = InfoMax(num_classes=2)
    >>> objective(torch.tensor([[30.0, 0.0], [0.0, 30.0]]))  # sure, and both classes alike: −log 2
    tensor(-0.6931)
    >>> objective(torch.tensor([[0.0, 0.0], [0.0, 0.0]]))  # as undecided about each as about all
    tensor(0.)
    """

    divided_by_log_c = True
    needs_class_sums = True

    def values(self, logits: Tensor, dim: int, class_mask: Mask, batch: Batch) -> Tensor:
        """Return :func:`information_maximisation` with the batch's mean prediction."""
        assert batch.sums is not None  # needs_class_sums
        mean_p = mean_prediction(batch.sums, batch.counts, batch.weights)
        return information_maximisation(logits, mean_p, dim, class_mask)
