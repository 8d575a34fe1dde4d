"""Reductions from one value per element to one loss: the weight of each element, over all processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import get_total_norm

REDUCTIONS = ("mean", "balanced", "sum", "none")
#: Types of devices whose numbers have at most 32 bits: Apple's GPUs.
WITHOUT_FLOAT64 = {"mps"}
_alone = ContextVar("alone", default=False)


@dataclass(frozen=True)
class Batch:
    """Statistics of the whole batch, of all processes, without gradients.

    With ``needs_class_sums`` every part is per predicted class. Without it ``sums`` is None, and unless the reduction
    is ``balanced`` all elements are one group: ``predicted`` is 0 and the others have one entry.
    """

    #: k, the most probable allowed class of each element; the logits' shape without the classes
    predicted: Tensor
    #: (C, C) float64 (``sums_in``), row k the sum of p over counted elements predicted as k
    sums: Tensor | None
    counts: Tensor  #: (C,) float64, the number of these elements
    weights: Tensor  #: (C,) the weight of each of them in the loss; under ``none`` as in the mean


def sums_in(tensor: Tensor) -> torch.dtype:
    """The dtype of sums over many of its elements: float64, or float32 on a device that has nothing wider."""
    return torch.float32 if tensor.device.type in WITHOUT_FLOAT64 else torch.float64


def all_finite(values: Iterable[Tensor]) -> bool:
    """Check that no value is NaN or infinite.

    A GPU reads them in a few launches, and is waited for once.
    """
    numbers = [value.detach() for value in values if value.is_floating_point() and value.numel()]
    return bool(get_total_norm(numbers, torch.inf).isfinite())


def class_weights(counts: Tensor, reduction: str, balance: float = 1.0) -> Tensor:
    """The weight of an element by the group it was predicted into.

    ``mean`` weighs all elements equally, ``sum`` with 1. ``balanced`` averages within each predicted class and then
    over the classes present. With an exponent ``balance`` γ below 1 an element of a class with n elements weighs n^-γ,
    divided by the sum of all weights; γ = 0 is the mean. The nearest published relative is the image-wise class
    weighting of Chen et al. (Maximum Squares Loss, ICCV 2019), with γ = 0.2.

    ``counts`` (G,) are the elements per predicted class, or (1,) all together, of every process. The weights are (G,).
    With several processes ``mean`` and ``balanced`` are multiplied by their number, since gradients (and reported
    losses) are averaged over processes afterwards.

    >>> counts = torch.tensor([3.0, 1.0])  # three elements predicted as class 0, one as class 1
    >>> class_weights(counts, "mean")
    tensor([0.2500, 0.2500])
    >>> class_weights(counts, "balanced")  # each class weighs 1/2, and each of its elements an equal share of that
    tensor([0.1667, 0.5000])
    """
    if reduction == "sum":
        return torch.ones_like(counts)
    if reduction == "mean":
        weights = (1.0 / counts.sum().clamp_min(1)).expand_as(counts)
    else:
        unscaled = counts.clamp_min(1) ** -balance
        total = (counts * unscaled).sum()
        weights = unscaled / torch.where(total > 0, total, 1.0)
    return weights * world_size()


@contextmanager
def alone() -> Iterator[None]:
    """Let this process count for itself inside.

    This is for gradients that nothing averages over processes.
    """
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def world_size() -> int:
    """Return the number of processes that train together, or 1 within :func:`alone`."""
    together = dist.is_available() and dist.is_initialized() and not _alone.get()
    return dist.get_world_size() if together else 1


def rank() -> int:
    """Return this process's number among :func:`world_size`."""
    return dist.get_rank() if world_size() > 1 else 0


def summed_over_processes(*parts: Tensor) -> list[Tensor]:
    """Each tensor added over all processes, in one message; unchanged in a single process."""
    if world_size() == 1:
        return list(parts)
    message = torch.cat([part.flatten() for part in parts])
    dist.all_reduce(message)
    pieces = message.split([part.numel() for part in parts])
    return [piece.view_as(part) for piece, part in zip(pieces, parts, strict=True)]
