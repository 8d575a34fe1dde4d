"""The control: target images pass through the network and may move batch norm statistics, without an objective."""

from __future__ import annotations

import torch

from seg.methods.method import Method
from seg.methods.optimization import Loss, MicroBatch

#: Batch norm policies under which target images move no statistics.
_STATISTICS_OF_SOURCE = ("source", "frozen")


class Control(Method):
    """Baseline of the methods, with the same target images and statistics but no target loss."""

    @torch.no_grad()
    def target_loss(self, batch: MicroBatch) -> Loss:
        """Pass the target images, if they move statistics, and return their entropy to log."""
        if self.network.batch_norm in _STATISTICS_OF_SOURCE:
            return None, {}
        logits = self.network(batch.target["image"], "target")
        entropy: Loss = self.objectives(logits, batch.target.get("valid"))
        return entropy
