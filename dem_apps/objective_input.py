"""The arguments of an objective's call: checked, each mistake one sentence, and with the masks applied."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dem_apps import entropy
from dem_apps.errors import InputError, one_of
from dem_apps.reduction import REDUCTIONS

#: Of logits.
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def check_call(
    logits: Any, dim: Any, mask: Any, class_mask: Any, reduction: Any, num_classes: int
) -> int:
    """The class dimension, not negative, of checked arguments of :meth:`dem_apps.EntropyObjective.forward`."""
    if not isinstance(logits, Tensor):
        raise InputError(
            f"logits: expected a tensor of scores before softmax, got {_shown(logits)}; pass its .logits"
        )
    _check_dense("logits", logits)
    if logits.dtype not in _DTYPES:
        labels = "" if logits.is_floating_point() else " (scores before softmax, not labels)"
        raise InputError(
            f"logits: expected float32, float64, bfloat16 or float16, got {logits.dtype}{labels}"
        )
    of_classes = _class_dimension(logits, dim, num_classes)
    elements = logits.shape[:of_classes] + logits.shape[of_classes + 1 :]
    without = f"of shape {tuple(elements)} (the logits without dimension {of_classes})"
    _check_mask("mask", mask, logits, without, lambda shape: shape == elements)
    _check_mask(
        "class_mask",
        class_mask,
        logits,
        f"that broadcasts to {tuple(logits.shape)}",
        partial(_fits, logits),
    )
    if logits.is_meta:
        raise InputError("logits: they are on the device meta, which keeps no numbers")
    one_of("reduction", reduction, REDUCTIONS)
    return of_classes


def check_state(logits: Tensor, objective: nn.Module) -> None:
    """Refuse buffers on another device."""
    for name, buffer in objective.named_buffers(recurse=False):
        if buffer.device != logits.device:
            raise InputError(
                f"logits: are on {logits.device} and the objective's {name} on {buffer.device}; move the objective to "
                f"the logits, with objective.to({str(logits.device)!r})"
            )


def inside_backward() -> bool:
    """Whether a backward makes this call, as gradient checkpointing does to recompute activations."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def allowed(
    logits: Tensor, dim: int, mask: Tensor | None, class_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Logits with a finite number wherever nothing counts, the elements that count, and their forbidden classes.

    The class mask has the logits' shape, or is None where nothing is forbidden and no logit is NaN or infinite.
    """
    elements = logits.shape[:dim] + logits.shape[dim + 1 :]
    counted = logits.new_ones(elements, dtype=torch.bool) if mask is None else mask
    if mask is not None:
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


def predicted_class(logits: Tensor, dim: int, class_mask: Tensor | None) -> Tensor:
    """k, by the logits: different ones may have the same float32 probability."""
    return (logits if class_mask is None else logits.masked_fill(class_mask, -torch.inf)).argmax(
        dim
    )


def _check_dense(name: str, tensor: Any) -> None:
    if isinstance(tensor, Tensor) and (tensor.is_nested or tensor.layout != torch.strided):
        kind = "nested" if tensor.is_nested else "sparse"
        raise InputError(f"{name}: expected an ordinary dense tensor, got a {kind} one")


def _class_dimension(logits: Tensor, dim: Any, num_classes: int) -> int:
    # a Tensor of one element has __index__ too, and is probably a label
    if isinstance(dim, (Tensor, bool)) or not hasattr(dim, "__index__"):
        labels = (
            " (an objective takes no labels or target, only logits)"
            if isinstance(dim, Tensor)
            else ""
        )
        raise InputError(
            f"dim: expected the number of the class dimension, got {_shown(dim)}{labels}; for logits (B, C, …) call "
            "objective(logits, dim=1)"
        )
    number: int = int(dim)
    if not -logits.dim() <= number < logits.dim():
        raise InputError(f"dim: {number} is no dimension of logits of shape {tuple(logits.shape)}")
    number %= logits.dim()
    if logits.shape[number] != num_classes:
        raise InputError(
            f"logits: dimension {number} of shape {tuple(logits.shape)} has {logits.shape[number]} classes, "
            f"but the objective was built for {num_classes}"
        )
    return number


def _check_mask(
    name: str, given: Any, logits: Tensor, wanted: str, fits: Callable[[torch.Size], bool]
) -> None:
    if given is None:
        return
    _check_dense(name, given)
    if not (isinstance(given, Tensor) and given.dtype == torch.bool and fits(given.shape)):
        raise InputError(f"{name}: expected bool {wanted}, got {_shown(given)}")
    if given.device != logits.device:
        raise InputError(
            f"{name}: is on {given.device} and the logits on {logits.device}; both have to be on one"
        )


def _fits(logits: Tensor, shape: torch.Size) -> bool:
    with suppress(RuntimeError):  # which do not broadcast
        return bool(torch.broadcast_shapes(shape, logits.shape) == logits.shape)
    return False


def _shown(value: Any) -> str:
    """``torch.int64 of shape (2, 3)`` for a tensor, a value that is short, and the type of everything else."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    if isinstance(value, (str, int, float, bool, type(None))):
        return f"{type(value).__name__} {value!r}"
    return f"a {type(value).__name__}"
