"""Copies of a network, and of its values."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import chain
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from dem_apps.errors import InputError

#: Values that the next step depends on, by name, for ``torch.load(weights_only=True)``.
State = dict[str, Any]
#: Tensors by the name of their parameter or buffer.
Values = dict[str, Tensor]


@torch.no_grad()
def put_values(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Write parameters and buffers by name; a buffer whose size a forward has changed since is a cache, and stays."""
    for name, current in chain(model.named_parameters(), model.named_buffers()):
        value = values.get(name)
        if value is not None and value.shape == current.shape:
            current.copy_(value)


def in_float32(values: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Float32 copies of parameters in half precision, where small steps add up to nothing; all others as they are."""
    return {
        name: nn.Parameter(value.detach().float(), value.requires_grad)
        if value.itemsize < 4
        else value
        for name, value in values.items()
    }


def deep_copy(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """``copy.deepcopy`` of a network that :func:`check_copies` lets pass; ``memo`` is what the copy shares, by id."""
    check_copies(model)
    return copy.deepcopy(model, memo)


def check_copies(model: nn.Module) -> None:
    """Check that a copy of a network, or the network it was copied from, runs by itself.

    Raises:
        ValueError: the network has a layer whose ``forward`` was replaced by a function, which would run the first
            network in a copy.
    """
    if any(
        isinstance(vars(each).get("forward"), FunctionType) for each in nn.Module.modules(model)
    ):
        raise InputError(
            "model: the forward of a layer was replaced on the object by a function, and a copy of the network would "
            "run the first one; put it into a subclass or a hook"
        )
