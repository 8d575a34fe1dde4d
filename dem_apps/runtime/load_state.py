"""Putting back what a checkpoint holds, whoever wrote it: either everything fits, or one sentence says what does not.

PyTorch takes much without a word and fails at the first step of training, or never: moments of another shape, weights
of another type, NaN. So shapes, types and values are compared with what they go into before anything is put back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dem_apps.errors import InputError
from dem_apps.runtime.safe_io import first_words

_SHOWN = 3
#: What optimisers keep per parameter at least, once they have made a step; the last is Stable-Baselines3's for A2C.
_MOMENTS = {
    "SGD": {"momentum_buffer"},
    "RepeatedSGD": {"momentum_buffer"},
    "Adam": {"step", "exp_avg", "exp_avg_sq"},
    "AdamW": {"step", "exp_avg", "exp_avg_sq"},
    "RMSprop": {"step", "square_avg"},
    "RMSpropTFLike": {"step", "square_avg"},
}


@contextmanager
def fitting(where: str) -> Iterator[None]:
    """Around code that puts back parts of a checkpoint: whatever their content makes it raise is one sentence."""
    try:
        yield
    except (InputError, torch.OutOfMemoryError):
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {first_words(error, 200)}"
        raise InputError(f"{where}: what it holds does not fit this run ({reason})") from error


def required(document: Any, where: str, /, **kinds: type | tuple[type, ...]) -> None:
    """Check that a mapping has these keys with values of these types; a bool is no int.

    Raises:
        InputError: naming the first key that is missing or of another type.
    """
    if not isinstance(document, dict):
        raise InputError(f"{where}: expected a mapping, found {type(document).__name__}")
    for key, kind in kinds.items():
        if key not in document:
            raise InputError(f"{where}: holds no '{key}'")
        value = document[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"{where}: '{key}' is of the wrong type ({type(value).__name__})")


def checked_step(state: dict[str, Any], where: str) -> int:
    """The training step of a checkpoint.

    Raises:
        InputError: it is missing, or no whole number from 0 on.
    """
    required(state, where, step=int)
    step: int = state["step"]
    if not 0 <= step < 1 << 53:
        raise InputError(f"{where}: 'step' is {step}, which no training has reached")
    return step


def load_weights(module: nn.Module, weights: Any, where: str) -> None:
    """``module.load_state_dict(weights)`` for weights that may be anything.

    Args:
        module: what they are for.
        weights: tensors by name, as of ``state_dict()``.
        where: what to call the weights in errors.

    Raises:
        InputError: other names, shapes or types than the module's, or values that are not finite.
    """
    own = module.state_dict()
    if not isinstance(weights, Mapping):
        raise InputError(f"{where}: expected tensors by name, found {type(weights).__name__}")
    complaints = [
        f"{len(names)} of its names are {what} ({_some(names)})"
        for names, what in (
            ([name for name in own if name not in weights], "missing"),
            ([str(name) for name in weights if name not in own], "unknown"),
        )
        if names
    ]
    if complaints:
        raise InputError(f"{where}: {' and '.join(complaints)}")
    for name, expected in own.items():
        problem = _problem(weights[name], expected.shape, expected.dtype)
        if problem is not None:
            raise InputError(f"{where}: {name} {problem}")
    with fitting(where):
        module.load_state_dict(weights)


def load_optimizer(optimizer: Any, state: Any, where: str) -> None:
    """Put back an optimiser's moments and learning rates; everything else of its groups is as the settings made it.

    Args:
        optimizer: of torch, or wrapped by accelerate.
        state: as of its ``state_dict()``.
        where: what to call the state in errors.

    Raises:
        InputError: moments of other parameters, shapes or types, or values that are not finite.
    """
    plain = getattr(optimizer, "optimizer", optimizer)
    required(state, where, state=dict, param_groups=list)
    own = optimizer.state_dict()["param_groups"]
    saved = state["param_groups"]
    if [_parameters(group) for group in saved] != [group["params"] for group in own]:
        raise InputError(f"{where}: its parameter groups are not those of this run's network")
    parameters = [parameter for group in plain.param_groups for parameter in group["params"]]
    groups = []
    for ours, theirs in zip(own, saved, strict=True):
        rate = theirs.get("lr")
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not math.isfinite(rate):
            raise InputError(f"{where}: 'lr' is {rate!r:.50}, not a finite number")
        groups.append({**ours, "lr": rate})
    kept = _MOMENTS.get(type(plain).__name__, set())
    for index, moments in state["state"].items():
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(parameters):
            raise InputError(f"{where}: has moments of a parameter {index!r:.50}, which this run's network lacks")
        _check_moments(moments, parameters[index], kept, f"{where}, parameter {index}")
    with fitting(where):
        optimizer.load_state_dict({"state": state["state"], "param_groups": groups})


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no floating-point tensor has a NaN or an infinite value; waits for the device once."""
    verdicts = [tensor.isfinite().all() for tensor in tensors if tensor.is_floating_point()]
    return bool(torch.stack(verdicts).all()) if verdicts else True


def _check_moments(moments: Any, parameter: Tensor, kept: set[str], where: str) -> None:
    if not isinstance(moments, dict) or not kept <= set(moments):
        raise InputError(f"{where}: its moments are not those of this run's optimiser")
    for name, value in moments.items():
        if value is None and name == "momentum_buffer":
            continue
        if name == "step" and isinstance(value, int):
            problem = None if value >= 0 else f"is {value}"
        elif name == "step":
            problem = _problem(value, torch.Size(), torch.float32)
        else:
            problem = _problem(value, parameter.shape, parameter.dtype)
        if problem is not None:
            raise InputError(f"{where}: {name} {problem}")


def _problem(value: Any, shape: torch.Size, dtype: torch.dtype) -> str | None:
    """What is wrong with a tensor that should have this shape and type, as the rest of a sentence; or None."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return f"is a {type(value).__name__}, no plain tensor"
    if value.shape != shape:
        return f"has shape {list(value.shape)} instead of {list(shape)}"
    if value.dtype != dtype:
        return f"is {value.dtype} instead of {dtype}"
    return None if all_finite([value]) else "holds NaN or infinite values"


def _parameters(group: Any) -> list[int] | None:
    """The numbers of a group's parameters; None where these are not whole numbers."""
    numbers = group.get("params") if isinstance(group, dict) else None
    return numbers if isinstance(numbers, list) and all(isinstance(number, int) for number in numbers) else None


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
