"""Normalisation layers: their parameters, and by which statistics batch norm normalises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

#: Batch norm of every dimension, synchronised or not, instance, group, layer and RMS norm, and their subclasses
#: (timm's). Other layers with scale and shift are reached by a pattern over names.
NORMALISATIONS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)

#: The statistics that batch norm normalises by. With ``batch`` a share of them is the batch's,
#: while the stored ones stay. With ``stored`` all are the stored ones.
BATCH_NORM = ("batch", "stored")

#: The default share of a batch's statistics, which are gathered through layers that mix already (docs/adaptation.md).
BATCH_SHARE = 0.1
#: Mean and variance, (C,) each.
Moments = tuple[Tensor, Tensor]
#: Types of devices on which torch has batch norm's pass over a batch alone; Apple's has not.
_OWN_PASS = {"cpu", "cuda"}


def affine_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Scale and shift of the normalisation layers by name; shared ones once."""
    # by the class, since public networks keep a list under the name `modules`
    layers = [layer for layer in nn.Module.modules(model) if isinstance(layer, NORMALISATIONS)]
    affine = {id(parameter) for layer in layers for parameter in layer.parameters(recurse=False)}
    return {
        name: parameter for name, parameter in model.named_parameters() if id(parameter) in affine
    }


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """All batch norm layers."""
    return [layer for layer in nn.Module.modules(model) if isinstance(layer, _BatchNorm)]


def set_modes(model: nn.Module) -> None:
    """Set ``eval()``, so that dropout is off, and let batch norm track nothing.

    Hooks of :func:`own_statistics` normalise.
    """
    model.eval()
    for layer in batch_norms(model):
        # in training mode a layer that tracks nothing leaves its buffers alone, and they stay in state_dict()
        layer.track_running_stats = False


def flags_of(model: nn.Module) -> list[tuple[Any, str, bool]]:
    """The flags of a network's layers and parameters, to be restored by ``setattr``."""
    owners: dict[str, Iterable[Any]] = {
        "training": nn.Module.modules(model),
        "track_running_stats": batch_norms(model),
        "requires_grad": model.parameters(),
    }
    return [(each, flag, getattr(each, flag)) for flag, of in owners.items() for each in of]


def mixed(
    mean: Tensor, variance: Tensor, new_mean: Tensor, new_variance: Tensor, share: float
) -> Moments:
    """Mean and variance, (C,), of a mixture of the stored distribution and a ``share`` of the new one.

    The variance includes the distance of the means, which Schneider et al. (NeurIPS 2020) leave out.
    """
    new_mean, new_variance = new_mean.to(mean), new_variance.to(variance)
    apart = share * (1 - share) * (new_mean - mean).square()
    return mean.lerp(new_mean, share), variance.lerp(new_variance, share) + apart


def moments(features: Tensor) -> Moments:
    """Return the mean and the variance of features (B, C, …), (C,) float32 each.

    The variance is divided by the number.
    """
    wide = features.float()
    # many times as fast on a CPU as torch.var_mean over several dimensions
    if wide.device.type in _OWN_PASS:
        return torch.batch_norm_update_stats(wide, None, None, 0.0)
    variance, mean = torch.var_mean(wide, [0, *range(2, wide.ndim)], correction=0)
    return mean, variance


def tracking(model: nn.Module) -> list[_BatchNorm]:
    """The batch norm layers that have stored statistics."""
    return [layer for layer in batch_norms(model) if layer.running_mean is not None]


@contextmanager
def own_statistics(model: nn.Module, bn_alpha: float | None) -> Iterator[None]:
    """Let batch norm normalise by a share of the batch's statistics inside.

    The share is ``bn_alpha``, None for the default. The stored statistics stay.

    With a share of 1 a layer is in ``train()`` mode, and the gradient flows through the statistics, as in Tent; a
    mixture is a constant. A layer with at most a single value per channel keeps its stored statistics.
    """
    share = BATCH_SHARE if bn_alpha is None else bn_alpha
    stored: dict[Any, Moments] = {}  # of the layers that run

    @torch.no_grad()
    def mix(layer: Any, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        features = inputs[0] if inputs else named["input"]
        if features.numel() <= features.shape[1]:  # a single value per channel has no variance
            return
        layer.training = share == 1.0
        if share < 1.0:
            stored[layer] = layer.running_mean, layer.running_var
            layer.running_mean, layer.running_var = mixed(*stored[layer], *moments(features), share)

    def put_back(layer: Any, _inputs: Any, _output: Any) -> None:
        layer.training = False
        if layer in stored:
            layer.running_mean, layer.running_var = stored.pop(layer)

    with ExitStack() as hooks:
        for layer in tracking(model):
            hooks.enter_context(layer.register_forward_pre_hook(mix, with_kwargs=True))
            hooks.enter_context(layer.register_forward_hook(put_back, always_call=True))
        yield
