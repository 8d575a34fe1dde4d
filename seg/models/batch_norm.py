"""Who trains batch normalisation and whose batches feed its running statistics.

A score depends on it: with frozen affine parameters the running statistics still move, and the last batch seen is
one of the target. So the choice is a setting with a name, and every score says which one it was made with.

Layer and group normalisation, as in transformers, have no running statistics, and no policy concerns them. A network
without any batch normalisation takes no policy but ``trainable``, and its scores say that it has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dem_apps.errors import InputError, nearest
from dem_apps.reduction import world_size

#: The first is, of a network without batch normalisation, the only one.
BATCH_NORM_POLICIES = ("trainable", "affine-frozen", "frozen", "source", "target")

_AFFINE_FROZEN = ("affine-frozen", "frozen")


def resolved_policy(given: str | None, model: nn.Module, uses_target: bool) -> str:
    """The policy that a setting comes to: the given one; else that the domain that is scored is the one that moves.

    Args:
        given: one of ``BATCH_NORM_POLICIES``, or None.
        model: whose batch normalisation it is for.
        uses_target: whether the method passes target images through the network. If not, source is all there is.
    """
    if given is not None:
        return given
    if not layers_of(model):
        return BATCH_NORM_POLICIES[0]
    return "target" if uses_target else "source"


def set_up_batch_norm(model: nn.Module, policy: str, synchronised: bool) -> nn.Module:
    """Prepare a network's batch normalisation for a policy: once, with the network on its device.

    Args:
        model: changed in place. Parameters stay the same objects and keep their names in ``state_dict``.
        policy: one of ``BATCH_NORM_POLICIES``; decides whether weight and bias of the layers are trained.
        synchronised: batch statistics are those of all processes of ``torch.distributed``. Every process must
            then run forward and backward equally often; their batches may differ in size.

    Returns:
        the model, or its replacement if it is itself a batch normalisation.

    Raises:
        InputError: an unknown policy, or another than ``trainable`` for a network without batch normalisation.
    """
    _check(policy)
    if policy != BATCH_NORM_POLICIES[0] and not layers_of(model):
        raise InputError(
            f"--model.batch-norm: the network has no batch normalisation, so '{policy}' would change nothing; leave it "
            f"at {BATCH_NORM_POLICIES[0]}"
        )
    if synchronised:
        model = _joined(model) if _device(model) == "cpu" else _synchronised(model)
    for layer in layers_of(model):
        for parameter in (layer.weight, layer.bias):
            if parameter is not None:
                parameter.requires_grad_(policy not in _AFFINE_FROZEN)
    return model


def feed_batch_norm(model: nn.Module, policy: str, domain: Literal["source", "target"]) -> None:
    """Say whose batch comes next; in training before each forward, after ``model.train()``.

    ``eval()`` needs no call: it always uses the running statistics and moves none.

    Raises:
        InputError: an unknown policy.
    """
    _check(policy)
    moved = policy not in ("source", "target") or domain == policy
    for layer in layers_of(model):
        layer.train(policy != "frozen")
        # A layer that does not track normalises by its batch and leaves its running statistics as they are.
        layer.track_running_stats = moved


def statistics(
    policy: str,
    model: nn.Module,
    *,
    labelled: Sequence[str] = ("source",),
    uses_target: bool = True,
    trained: bool = True,
    re_estimated_on: str | None = None,
) -> str:
    """Whose images the running statistics of a network are of, in a few words.

    Args:
        policy: that the network was trained with.
        model: the network.
        labelled: the domains that its labelled images were of, ``source``, ``target`` or both.
        uses_target: whether target images passed through it in training, beside labelled ones.
        trained: whether a step was made since the network got its weights.
        re_estimated_on: the images of which :func:`seg.models.adaptive_batch_norm.re_estimated` made them, if it did.
    """
    if not layers_of(model):
        return "none: the network has no batch normalisation"
    if re_estimated_on is not None:
        return f"re-estimated on {re_estimated_on} after training"
    movers = {"source": ("source",), "target": ("target",), "frozen": ()}.get(policy, ("source", "target"))
    streams = {"source": labelled, "target": ("target",) if uses_target else ()}
    moved_by = sorted({domain for stream in movers if trained for domain in streams[stream]})
    if not moved_by:
        return "those it started with"
    return "moved by both domains" if len(moved_by) == 2 else f"moved by {moved_by[0]} alone"


def describe(policy: str, model: nn.Module, whose: str | None = None) -> str:
    """One sentence about a policy and what it has come to in this network, for the protocol beside a score.

    Args:
        policy: one of ``BATCH_NORM_POLICIES``.
        model: the network.
        whose: the :func:`statistics`; None takes those of a training that passes images of both domains.

    Raises:
        InputError: an unknown policy.
    """
    _check(policy)
    whose = whose or statistics(policy, model)
    if not layers_of(model):
        return whose
    affine = "fixed" if policy in _AFFINE_FROZEN else "trained"
    normalised_by = "no batch statistics" if policy == "frozen" else "batch statistics"
    encoder = getattr(model, "encoder", model)
    return f"{policy}: affine parameters {affine}, {normalised_by} in training, running statistics {whose}" + (
        "" if layers_of(encoder) else "; the encoder has none"
    )


def layers_of(model: nn.Module) -> list[_BatchNorm]:
    """The network's layers of batch normalisation, in the order of ``model.modules()``."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


class JoinedBatchNorm2d(nn.BatchNorm2d):
    """A batch normalisation by the statistics of all processes' batches together, on any device.

    For the CPU, where ``torch.nn.SyncBatchNorm`` refuses to work. The variance is summed around the joined mean, in
    a second message, since a difference of large sums would lose it.

    Args:
        layer: the one to stand in for; its parameters and buffers are taken over, as are the dropout and the
            activation that timm's layers carry.
    """

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__(layer.num_features, layer.eps, layer.momentum, affine=False)
        self.affine = layer.affine
        self.weight, self.bias = layer.weight, layer.bias
        self.running_mean, self.running_var = layer.running_mean, layer.running_var
        self.num_batches_tracked = layer.num_batches_tracked
        self.track_running_stats = layer.track_running_stats
        self.drop = getattr(layer, "drop", nn.Identity())
        self.act = getattr(layer, "act", nn.Identity())
        self.train(layer.training)

    def forward(self, features: Tensor) -> Tensor:
        """(B, channels, h, w) → the same; B may differ between processes and may be 0 in some."""
        joined = self.training and world_size() > 1
        normalised = self._by_joined_batch(features) if joined else super().forward(features)
        activated: Tensor = self.act(self.drop(normalised))
        return activated

    def _by_joined_batch(self, features: Tensor) -> Tensor:
        wide = features.to(torch.promote_types(features.dtype, torch.float32))
        own_count = wide.new_tensor([wide.numel() / self.num_features])
        message = _SumOverProcesses.apply(torch.cat([wide.sum((0, 2, 3)), own_count]))
        count = message[-1].detach()
        mean = message[:-1] / count
        centred = wide - mean[:, None, None]
        variance = _SumOverProcesses.apply(centred.square().sum((0, 2, 3))) / count
        self._move_running_statistics(mean.detach(), variance.detach() * count / (count - 1).clamp_min(1))
        scale = (variance + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        normalised = centred * scale[:, None, None]
        if self.bias is not None:
            normalised = normalised + self.bias[:, None, None]
        joined: Tensor = normalised.to(features.dtype)
        return joined

    @torch.no_grad()
    def _move_running_statistics(self, mean: Tensor, unbiased_variance: Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None:
            return
        assert self.running_var is not None  # for the type checker: the two come together
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased_variance.to(self.running_var.dtype), share)


class _SumOverProcesses(torch.autograd.Function):
    """Each element added over all processes. Every process's loss depends on the sum, so its gradient adds up too."""

    @staticmethod
    def forward(_context: Any, part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_context: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


def _joined(module: nn.Module) -> nn.Module:
    if isinstance(module, _BatchNorm):
        return JoinedBatchNorm2d(module)
    for name, child in module.named_children():
        setattr(module, name, _joined(child))
    return module


def _synchronised(model: nn.Module) -> nn.Module:
    # timm's, because torch's own converter would drop the activations inside timm's layers
    from timm.layers.norm_act import convert_sync_batchnorm

    converted: nn.Module = convert_sync_batchnorm(model)
    return converted


def _device(model: nn.Module) -> str:
    return next((tensor.device.type for tensor in model.parameters()), "cpu")


def _check(policy: str) -> None:
    if policy not in BATCH_NORM_POLICIES:
        known = ", ".join(BATCH_NORM_POLICIES)
        raise InputError(f"batch_norm: '{policy}' is not one of {known}{nearest(policy, BATCH_NORM_POLICIES)}")
