"""The entropy under a robust penalty, which FDA pairs with its Fourier exchange.

Source: Yang, Soatto: FDA: Fourier Domain Adaptation for Semantic Segmentation, CVPR 2020, arXiv 2004.05498, Eq. (5).
"""

from __future__ import annotations

import math

from torch import Tensor

from dem_apps.entropy import Mask, computed_in, shannon_entropy
from dem_apps.errors import number
from dem_apps.objective import EntropyObjective
from dem_apps.reduction import Batch

#: ε² of the penalty in the paper. The authors' code has 1e-8; with η = 2 the two differ by 2e-6 at most.
_EPSILON_SQUARED = 0.001**2


def charbonnier(values: Tensor, eta: float) -> Tensor:
    """ρ(x) = (x² + 0.001²)^η, the generalised Charbonnier penalty.

    >>> import torch
    >>> charbonnier(torch.tensor([0.0, 0.5, 1.0]), eta=2.0)
    tensor([1.0000e-12, 6.2501e-02, 1.0000e+00])
    """
    return (values.square() + _EPSILON_SQUARED).pow(eta)


class RobustEntropy(EntropyObjective):
    """ρ(H / log C), from nearly 0 for a sure prediction to 1 for a uniform one.

    With η above ½ an uncertain element counts more than a certain one. With 2 the gradient grows with the third power
    of the entropy, so certain elements hardly move.

    Args:
        eta: η, from 1e-6 to 1e6; FDA trains with 2.
        num_classes, backend, balance: see :class:`dem_apps.EntropyObjective`.

    >>> import torch
    >>> objective = RobustEntropy(num_classes=2)
    >>> objective(torch.tensor([[0.0, 0.0], [1.0, 3.0]]).log_softmax(1), reduction="none")
    tensor([1.0000, 0.0772])
    """

    def __init__(
        self, num_classes: int, eta: float = 2.0, backend: str = "auto", balance: float = 1.0
    ) -> None:
        super().__init__(num_classes, backend, balance)
        self.eta = number("eta", eta, 1e-6, 1e6)

    def values(self, logits: Tensor, dim: int, class_mask: Mask, batch: Batch) -> Tensor:
        """Return :func:`charbonnier` of the entropy as a share of its maximum.

        The maximum is the log of the number of allowed classes.
        """
        possible: Tensor | float = math.log(self.num_classes)
        if class_mask is not None:
            # the entropy of a single class is 0, whatever it is divided by
            possible = (~class_mask).sum(dim).clamp_min(2).to(computed_in(logits.dtype)).log()
        return charbonnier(shannon_entropy(logits, dim, class_mask) / possible, self.eta)
