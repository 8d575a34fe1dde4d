"""Copies of a network, of its values, and what makes it a network that can be copied and adapted."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from dem_apps.errors import InputError
from dem_apps.test_time_methods.normalisation import flags_of


@torch.no_grad()
def put_values(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Parameters and buffers by name; a buffer that a forward has made since stays, or gets back the size it had."""
    for name, current in [*model.named_parameters(), *model.named_buffers()]:
        value, (owner, _, last) = values.get(name), name.rpartition(".")
        if value is not None and value.shape == current.shape and 0 not in current.stride():
            current.copy_(value)
        elif value is not None:
            setattr(model.get_submodule(owner), last, value.clone())


def in_float32(values: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Float32 copies of parameters in half precision, where small steps add up to nothing; all others as they are."""
    return {
        name: nn.Parameter(value.detach().float(), value.requires_grad)
        if value.itemsize < 4
        else value
        for name, value in values.items()
    }


def deep_copy(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A copy that shares nothing with the network but what ``memo`` maps by id; the copies are added to it.

    ``copy.deepcopy`` fails on features that a network keeps with their gradient, and shares functions, so that a
    ``forward`` replaced on the object (autocast, ``functools.wraps``) would run the first network.
    """
    memo = {} if memo is None else memo
    kept = [each for module in nn.Module.modules(model) for each in tree_leaves(vars(module))]
    memo.update(
        {
            id(each): each.detach().clone()
            for each in kept
            if isinstance(each, Tensor) and each.grad_fn
        }
    )
    copied = copy.deepcopy(model, memo)
    for module in nn.Module.modules(copied):
        for name, value in vars(module).items():
            vars(module)[name] = _rebound(value, memo)
    return copied


def _rebound(value: Any, memo: dict[int, Any]) -> Any:
    """A function whose variables hold parts of a network, with their copies in ``memo``; all else as it is."""
    if isinstance(value, MethodType):
        owner, function = (
            memo.get(id(value.__self__), value.__self__),
            _rebound(value.__func__, memo),
        )
        return (
            value
            if owner is value.__self__ and function is value.__func__
            else MethodType(function, owner)
        )
    if isinstance(value, partial):
        given = [_rebound(each, memo) for each in value.args]
        return partial(_rebound(value.func, memo), *given, **value.keywords)
    if isinstance(value, weakref.ref):
        copied = memo.get(id(value()))
        return value if copied is None else weakref.ref(copied)
    if not isinstance(value, FunctionType):
        return memo.get(id(value), value) if isinstance(value, nn.Module) else value
    if id(value) in memo:  # one that calls itself
        return memo[id(value)]
    memo[id(value)] = value
    cells = [
        (cell.cell_contents, _rebound(cell.cell_contents, memo)) for cell in value.__closure__ or ()
    ]
    if any(old is not new for old, new in cells):
        closure = tuple(CellType(new) for _, new in cells)
        made = FunctionType(
            value.__code__, value.__globals__, value.__name__, value.__defaults__, closure
        )
        made.__kwdefaults__ = value.__kwdefaults__
        made.__dict__.update({name: _rebound(each, memo) for name, each in vars(value).items()})
        memo[id(value)] = made
    return memo[id(value)]


def make_adaptable(model: nn.Module) -> None:
    """Refuses what torch cannot adapt; buffers of inference mode, or with shared elements, become ordinary ones."""
    modules = list(nn.Module.modules(model))  # by the class: networks have attributes of that name
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise InputError(
            "model: it has lazy layers without weights; predict once with it, or load its weights, before"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise InputError(
            "model: parameters are on the device meta, without numbers; load it whole onto one device"
        )
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        raise InputError(
            "model: it is a ScriptModule, which cannot be adapted; give the nn.Module it was made from"
        )
    if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in modules):
        raise InputError(
            "model: it is a DistributedDataParallel, which takes no further forward; give its .module"
        )
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise InputError(
            "model: its parameters were made under inference_mode(), without gradients; make it outside"
        )
    for module in modules:
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_inference() or 0 in buffer.stride():
                module._buffers[name] = buffer.clone()
    _refuse_changing(model, modules)


def _refuse_changing(model: nn.Module, modules: list[nn.Module]) -> None:
    """Refuses layers whose weights are others in ``eval()``, and exported networks, which have no ``eval()``."""
    own = [
        each for each in modules if type(each).train is not nn.Module.train or "train" in vars(each)
    ]
    if not own:
        return
    flags, held = flags_of(model), dict([*model.named_parameters(), *model.named_buffers()])
    before = {name: value.detach().clone() for name, value in held.items()}
    try:
        model.eval()
    except NotImplementedError:
        raise InputError(
            "model: it was exported, and its layers are operations; give the nn.Module it is of"
        ) from None
    written = [name for name, value in held.items() if not torch.equal(value, before[name])]
    for module in own:
        module.train(flags[modules.index(module)][2])
    for owner, flag, value in flags:
        setattr(owner, flag, value)
    if written:
        put_values(model, before)
        raise InputError(
            f"model: its layers write '{written[0]}' in eval(), as low-rank adapters that are merged there; call "
            "model.eval() before, to adapt it merged, or turn that off"
        )
