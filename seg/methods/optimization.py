"""An optimiser's step in one or several processes, for the network and for what a method trains beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dem_apps.errors import NotFiniteError
from dem_apps.reduction import all_finite, summed_over_processes, world_size
from seg.methods.settings import Weights

#: Seconds after which gloo's threads have let go of their last tensors.
_GLOO_LETS_GO = 0.5
#: The parts of a batch whose pixels the network reads.
_PIXELS = ("image", "label", "valid")
Batch = dict[str, Any]
Values = dict[str, Tensor]
"""Scalars to log by name. Those that begin with ``source/`` or ``target/`` come from images of that domain alone."""
#: Their means over micro-batches and processes.
Means = dict[str, float]
#: A loss with its graph, or None for none, and values to log.
Loss = tuple[Tensor | None, Values]
#: The sum of the heads' losses, and the losses to log.
Summed = tuple[Tensor, Values]


class MicroBatch(NamedTuple):
    """The images of one forward and backward.

    A batch holds ``image`` (B, 3, H, W), ``name`` (B) and, on source, ``label`` (B, H, W).
    ``draw`` (B,) seeds a method's draws per sample, see :func:`seg.data.loader.batches`.
    ``valid`` (B, H, W) bool says which pixels hold data, where some do not.
    """

    source: Batch
    #: Empty for methods that look at no target image.
    target: Batch


MicroBatches = Sequence[MicroBatch]


def on_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its pixels on the device."""
    pixels = {name: batch[name].to(device, non_blocking=True) for name in _PIXELS if name in batch}
    return batch | pixels


def weighted_sum(losses: Values, weights: Weights, name: str) -> Summed:
    """Return the weighted sum of the heads' losses, and each loss to log as ``name_head``."""
    total = torch.stack([weights[head] * loss for head, loss in losses.items()]).sum()
    return total, {f"{name}_{head}": loss.detach() for head, loss in losses.items()}


@dataclass(frozen=True)
class PolySchedule:
    """Learning rates fall as (1 − step / horizon) ** power."""

    #: the step at which they are 0; may be beyond the last one, as in ADVENT (250k and 120k)
    horizon: int
    power: float  #: 0.9 in the literature

    def set_rates(self, optimizers: Iterable[Any], step: int) -> None:
        """Set every group's ``lr`` to its ``base_lr`` at this step."""
        factor = max(0.0, 1.0 - step / self.horizon) ** self.power
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor


def update(
    module: nn.Module,
    optimizer: Any,
    logged: Sequence[Values],
    batches: MicroBatches,
    step: int,
) -> Means:
    """Make the optimiser's step after the backward of every micro-batch.

    Args:
        module: the network, with its gradients.
        optimizer: prepared by accelerate, which undoes the loss scale of fp16.
        logged: each micro-batch's losses.
        batches: the micro-batches, for the error.
        step: counts from 1.

    Returns:
        The losses, means over batches and processes.

    Raises:
        NotFiniteError: a loss or gradient before the step is not finite; in every process.
    """
    gradients = [each.grad for each in module.parameters() if each.grad is not None]
    _average(gradients)
    means = _means(logged)
    wrong = [name for name, value in means.items() if not math.isfinite(value)]
    # the loss scale of fp16 leaves out such a step by itself
    scaled = getattr(optimizer, "scaler", None) is not None
    if not wrong and not scaled and not all_finite(gradients):
        wrong = ["the gradient"]
    if wrong:
        images = [name for batch in batches for part in batch for name in part.get("name", ())]
        raise NotFiniteError(
            f"step {step}: no finite number for {' and '.join(wrong)}; training has stopped before this step; "
            f"the images of this process: {', '.join(images)}"
        )
    optimizer.step()
    return means


def _average(gradients: Sequence[Tensor]) -> None:
    """Average gradients over processes in one message; each backward has only added to the local ones."""
    if world_size() > 1:
        for gradient, total in zip(gradients, summed_over_processes(*gradients), strict=True):
            torch.div(total, world_size(), out=gradient)


def _means(logged: Sequence[Values]) -> Means:
    """Return the means of the values over micro-batches and processes, with one wait for the device."""
    names = [*logged[0]]
    stacked = [torch.stack([values[name].float() for name in names]) for values in logged]
    (total,) = summed_over_processes(torch.stack(stacked).mean(0))
    return dict(zip(names, (total / world_size()).tolist(), strict=True))


def leave_group() -> None:
    """Leave the process group, if there is one, when every process has come this far.

    One that exits within the group may be aborted, or hang another that still sends; so may gloo's threads (torch 2.6).
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    dist.barrier()
    if dist.get_backend() == "gloo":
        time.sleep(_GLOO_LETS_GO)
    dist.destroy_process_group()
