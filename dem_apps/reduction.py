"""From one value per element to one loss: how much each element weighs, over all processes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

REDUCTIONS = ("mean", "balanced", "sum", "none")


def class_weights(counts: Tensor, reduction: str) -> Tensor:
    """The weight of an element by the group it was predicted into.

    ``mean`` weighs every element alike. ``balanced`` averages within each predicted class and then over the
    classes present, so that road does not outvote bicycle; the nearest published relative is the image-wise class
    weighting of Chen et al. (Maximum Squares Loss, ICCV 2019). ``sum`` weighs every element with 1.

    Args:
        counts: (G,) elements per predicted class, or (1,) for all together; of every process.
        reduction: ``mean``, ``balanced`` or ``sum``.

    Returns:
        (G,) weights. With several processes ``mean`` and ``balanced`` are multiplied by their number, since
        gradients (and reported losses) are averaged over processes afterwards.
    """
    if reduction == "sum":
        return torch.ones_like(counts)
    if reduction == "mean":
        weights = (1.0 / counts.sum().clamp_min(1)).expand_as(counts)
    else:
        weights = 1.0 / (counts.clamp_min(1) * (counts > 0).sum().clamp_min(1))
    return weights * world_size()


def world_size() -> int:
    """The number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def summed_over_processes(*parts: Tensor) -> list[Tensor]:
    """Each tensor added over all processes, in one message; unchanged in a single process."""
    if world_size() == 1:
        return list(parts)
    message = torch.cat([part.flatten() for part in parts])
    dist.all_reduce(message)
    pieces = message.split([part.numel() for part in parts])
    return [piece.view_as(part) for piece, part in zip(pieces, parts, strict=True)]
