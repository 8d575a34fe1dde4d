"""The control: target images pass through the network and may move batch norm statistics, without an objective."""

from __future__ import annotations

import torch

from dem_apps import build_objective
from seg.methods.method import Method
from seg.methods.optimization import Loss, MicroBatch

#: Batch norm policies under which target images move no statistics.
_STATISTICS_OF_SOURCE = ("source", "frozen")


class Control(Method):
    """Baseline of the methods, with the same target images and statistics but no target loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.entropy = build_objective("entropy", self.num_classes).to(self.device)

    @torch.no_grad()
    def target_loss(self, batch: MicroBatch) -> Loss:
        """Pass the target images, if they move statistics, and return their entropy to log."""
        if self.network.batch_norm in _STATISTICS_OF_SOURCE:
            return None, {}
        logits = self.network(batch.target["image"], "target")["main"]
        entropy = self.entropy(logits, dim=1, mask=batch.target.get("valid"))
        return None, {"target/entropy": entropy}
