"""The arguments of an objective's call: checked, each mistake one sentence, and with the masks applied."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dem_apps import entropy
from dem_apps.entropy import Mask
from dem_apps.errors import InputError, one_of, passed_on
from dem_apps.reduction import REDUCTIONS


def check_call(
    logits: Any, dim: int, mask: Any, class_mask: Any, reduction: Any, objective: Any
) -> int:
    """The class dimension, not negative, of checked arguments of :meth:`dem_apps.EntropyObjective.forward`."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise InputError(
            f"logits: expected a floating tensor of scores before softmax, got {_shown(logits)}"
        )
    if not isinstance(dim, int):
        raise InputError(
            f"dim: expected the number of the class dimension, got {_shown(dim)}; an objective takes no labels, "
            "only logits, such as objective(logits, dim=1) for (B, C, …)"
        )
    shape, wanted = tuple(logits.shape), objective.num_classes
    if not -len(shape) <= dim < len(shape) or shape[dim] != wanted:
        raise InputError(
            f"logits: expected {wanted} classes on dimension {dim}, as the objective was built for, got shape {shape}"
        )
    dim %= len(shape)
    elements = shape[:dim] + shape[dim + 1 :]
    _check_mask("mask", mask, logits)
    if mask is not None and tuple(mask.shape) != elements:
        raise InputError(
            f"mask: expected shape {elements} (the logits without the classes), got {tuple(mask.shape)}"
        )
    _check_mask("class_mask", class_mask, logits)
    if class_mask is not None:
        with passed_on("class_mask: does not broadcast to the logits", RuntimeError):
            class_mask.expand_as(logits)
    _check_device(logits, objective)
    one_of("reduction", reduction, REDUCTIONS)
    return dim


def allowed(logits: Tensor, dim: int, mask: Mask, class_mask: Mask) -> tuple[Tensor, Tensor, Mask]:
    """Logits with a finite number wherever nothing counts, the elements that count, and their forbidden classes.

    The class mask has the logits' shape, or is None where nothing is forbidden and no logit is NaN or infinite.
    """
    if mask is None:
        counted = logits.new_ones(logits.shape[:dim] + logits.shape[dim + 1 :], dtype=torch.bool)
    else:
        counted = mask
        # NaN in an element that does not count must not reach value or gradient
        logits = logits.masked_fill(~mask.unsqueeze(dim), 0.0)
    if class_mask is not None:
        logits = logits.masked_fill(class_mask, -torch.inf)
    elif entropy.are_ordinary(logits):
        return logits, counted, None
    class_mask = entropy.forbidden_classes(logits, dim)
    counted = counted & ~class_mask.all(dim)
    class_mask = class_mask & counted.unsqueeze(dim)
    return logits.masked_fill(class_mask | ~counted.unsqueeze(dim), 0.0), counted, class_mask


def predicted_class(logits: Tensor, dim: int, class_mask: Mask) -> Tensor:
    """k, by the logits: different ones may have the same float32 probability."""
    if class_mask is not None:
        logits = logits.masked_fill(class_mask, -torch.inf)
    return logits.argmax(dim)


def _check_device(logits: Tensor, objective: Any) -> None:
    for name, buffer in objective.named_buffers(recurse=False):
        if buffer.device != logits.device:
            raise InputError(
                f"logits: are on {logits.device} and the objective's {name} on {buffer.device}; move the objective, "
                f"with objective.to('{logits.device}')"
            )


def _check_mask(name: str, value: Any, logits: Tensor) -> None:
    if value is None:
        return
    if not isinstance(value, Tensor) or value.dtype != torch.bool:
        raise InputError(f"{name}: expected a boolean tensor, got {_shown(value)}")
    if value.device != logits.device:  # the kernels read both by address
        raise InputError(f"{name}: is on {value.device} and the logits on {logits.device}")


def _shown(value: Any) -> str:
    """``a torch.int64 tensor``, or the type of anything else."""
    return f"a {value.dtype} tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"
