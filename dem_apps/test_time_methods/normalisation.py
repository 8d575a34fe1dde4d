"""Normalisation layers: their parameters, and by which statistics batch norm normalises."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils.hooks import RemovableHandle

#: Batch norm of every dimension, synchronised or not, instance, group, layer and RMS norm, and their subclasses
#: (timm's). Other layers with scale and shift are reached by a pattern over names.
NORMALISATIONS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)

#: The statistics that batch norm normalises by: the batch's, while the stored ones stay (Tent); the batch's, while the
#: stored ones move (``train()``); the stored ones (``eval()``).
BATCH_NORM = ("batch", "moving", "stored")


def affine_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Scale and shift of the normalisation layers by name; shared ones once."""
    layers = [layer for layer in model.modules() if isinstance(layer, NORMALISATIONS)]
    own = {id(parameter) for layer in layers for parameter in layer.parameters(recurse=False)}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in own}


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """All batch norm layers."""
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]


def set_modes(model: nn.Module, batch_norm: str) -> None:
    """``eval()``, so that dropout is off, except for batch norm, see :data:`BATCH_NORM`; no buffer is touched."""
    model.eval()
    if batch_norm == "stored":
        return
    for layer in batch_norms(model):
        layer.training = True
        # in training mode a layer that tracks nothing leaves its buffers alone, and they stay in state_dict()
        layer.track_running_stats = batch_norm == "moving" and layer.running_mean is not None


class Modes:
    """The flags of a network's layers and parameters, to be restored."""

    def __init__(self, model: nn.Module) -> None:
        self._training = [(module, module.training) for module in model.modules()]
        self._tracking = [(layer, layer.track_running_stats) for layer in batch_norms(model)]
        self._learning = [(parameter, parameter.requires_grad) for parameter in model.parameters()]

    def restore(self) -> None:
        """Restore ``training``, ``track_running_stats`` and ``requires_grad``."""
        for module, training in self._training:
            module.training = training
        for layer, tracking in self._tracking:
            layer.track_running_stats = tracking
        for parameter, learning in self._learning:
            parameter.requires_grad_(learning)


def mix_statistics(model: nn.Module, share: float) -> list[RemovableHandle]:
    """From now on batch norm in ``eval()`` mode normalises by (1 − α) stored + α batch's statistics; α is ``share``.

    The buffers hold the mixture while a layer runs and what they held before otherwise. The batch's variance is the one
    that batch norm divides by in training, without Bessel's correction (Schneider et al., NeurIPS 2020, Eq. 2). Returns
    what removes the hooks.
    """
    handles = []
    for layer in batch_norms(model):
        if layer.running_mean is not None:
            mixture = _Mixture(share)
            handles.append(layer.register_forward_pre_hook(mixture.mix))
            handles.append(layer.register_forward_hook(mixture.put_back, always_call=True))
    return handles


class _Mixture:
    """One layer's mixture while it runs."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.stored: tuple[Tensor, Tensor] | None = None

    def mix(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        features = inputs[0].detach().float()
        variance, mean = torch.var_mean(features, [0, *range(2, features.ndim)], correction=0)
        self.stored = layer.running_mean, layer.running_var  # type: ignore[assignment]
        layer.running_mean = torch.lerp(layer.running_mean, mean.to(layer.running_mean), self.share)  # type: ignore
        layer.running_var = torch.lerp(layer.running_var, variance.to(layer.running_var), self.share)  # type: ignore

    def put_back(self, layer: nn.Module, _inputs: Any, _output: Any) -> None:
        if self.stored is not None:
            layer.running_mean, layer.running_var = self.stored
            self.stored = None
