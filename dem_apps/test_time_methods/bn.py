"""Batch norm by a share of the batch's statistics; no weight changes.

The share α, ``bn_alpha`` of :class:`dem_apps.TestTimeAdapter`, weighs the stored statistics as a prior of N images
beside n of the batch, α = n / (N + n) (Schneider et al., NeurIPS 2020, arXiv:2006.16971, Eq. 2; You et al., 2021,
arXiv:2110.04065); α = 1 is prediction-time batch norm (Nado et al., 2020, arXiv:2006.10963).
"""

from __future__ import annotations

from dem_apps.errors import InputError
from dem_apps.test_time_methods.learner import Learner
from dem_apps.test_time_methods.method import Method
from dem_apps.test_time_methods.normalisation import batch_norms


class BatchStatistics(Method):
    """Predict by a share of the batch's statistics."""

    parameters = None

    def begin(self, learner: Learner) -> None:
        """Refuses a network without batch norm."""
        if not batch_norms(learner.network.model):
            raise InputError(
                "method 'bn': the network has no batch norm, so there are no statistics to replace"
            )


class Unadapted(Method):
    """Predict with stored statistics and the first weights, the control of every other method."""

    parameters = None
    batch_norm = "stored"
