"""Batch norm by the statistics of the images at hand (Nado et al., 2020; Schneider et al., NeurIPS 2020)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from dem_apps.errors import InputError, number
from dem_apps.test_time_methods.learner import Learner
from dem_apps.test_time_methods.method import Method
from dem_apps.test_time_methods.normalisation import batch_norms, mix_statistics


class BatchStatistics(Method):
    """Normalise by (1 − α) stored + α batch's mean and variance; no weight changes, and each batch is for itself.

    α = 1 is prediction-time batch norm (Nado et al., arXiv:2006.10963); below 1 the stored statistics are a prior that
    weighs as N images beside n of the batch for α = n / (N + n) (Schneider et al., arXiv:2006.16971, Eq. 2).

    Args:
        bn_alpha: α, the share of the batch, from 0 to 1.
    """

    parameters = None

    def __init__(self, bn_alpha: float = 1.0) -> None:
        self.bn_alpha = number("bn_alpha", bn_alpha, 0.0, 1.0)
        self.batch_norm = "batch" if bn_alpha == 1.0 else "stored"
        self._hooks: list[RemovableHandle] = []

    def begin(self, learner: Learner) -> None:
        """Attach the mixture of statistics; a network without batch norm is refused."""
        if not batch_norms(learner.network.model):
            raise InputError("method 'bn': the network has no batch norm, so there are no statistics to replace")
        if learner.network.batch_norm != self.batch_norm:
            raise InputError("batch_norm: method 'bn' has bn_alpha= for it; leave it out")
        if self.bn_alpha != 1.0:
            self._hooks = mix_statistics(learner.network.model, self.bn_alpha)

    @torch.no_grad()
    def step(self, learner: Learner, images: Tensor, mask: Tensor | None) -> Tensor:
        """The network's logits."""
        return learner.logits(images)

    def close(self) -> None:
        """Remove the mixture."""
        for hook in self._hooks:
            hook.remove()
