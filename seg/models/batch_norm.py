"""BatchNorm policies: which affine parameters train, and which domain's batches update the running statistics.

A score depends on the policy, which its protocol names. A network without batch normalisation takes no policy but
``trainable``: layer and group normalisation have no running statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from timm.layers.norm_act import convert_sync_batchnorm
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dem_apps.errors import InputError

#: The first is the only one of a network without batch normalisation.
BATCH_NORM_POLICIES = ("trainable", "affine-frozen", "frozen", "source", "target")

_AFFINE_FROZEN = ("affine-frozen", "frozen")


def resolved_policy(given: str | None, model: nn.Module, uses_target: bool) -> str:
    """The policy that is ``given``, else the one whose statistics are those of the domain that is scored.

    ``uses_target``: whether the method passes target images through the network.
    """
    if given is not None:
        return given
    if not layers_of(model):
        return BATCH_NORM_POLICIES[0]
    return "target" if uses_target else "source"


def set_up_batch_norm(model: nn.Module, policy: str, synchronised: bool) -> nn.Module:
    """Prepare a network's batch normalisation for a policy, in place, with the network on its device.

    Parameters stay the same objects and keep their names. ``synchronised`` batch statistics are those of all processes.
    Returns the model, or its replacement if it is itself a batch normalisation.

    Raises InputError: another policy than ``trainable`` for a network without batch normalisation, or batch statistics
    that several processes on CPUs would have to share.
    """
    if policy != BATCH_NORM_POLICIES[0] and not layers_of(model):
        raise InputError(
            f"--model.batch-norm: the network has no batch normalisation, so '{policy}' would change nothing; leave it "
            f"at {BATCH_NORM_POLICIES[0]}"
        )
    if synchronised and policy != "frozen" and layers_of(model):
        if next(model.parameters()).device.type == "cpu":
            raise InputError(
                "--model.batch-norm: processes on CPUs cannot share batch statistics; give frozen, or train in one "
                "process"
            )
        # timm's, because torch's own converter would drop the activations inside timm's layers
        model = convert_sync_batchnorm(model)
    for layer in layers_of(model):
        for parameter in (layer.weight, layer.bias):
            if parameter is not None:
                parameter.requires_grad_(policy not in _AFFINE_FROZEN)
    return model


def feed_batch_norm(model: nn.Module, policy: str, domain: Literal["source", "target"]) -> None:
    """Set the layers for a batch of ``domain``; in training before each forward, after ``model.train()``.

    ``eval()`` needs no call: it always uses the running statistics and moves none.
    """
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
    """A few words about the images behind a network's running statistics.

    ``labelled`` are the domains of its labelled images, ``uses_target`` says whether unlabelled target images passed
    through it, ``trained`` whether a step was made, and ``re_estimated_on`` names the images of AdaBN statistics.
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
    """One sentence about a policy in this network, for the protocol beside a score.

    ``whose`` are the :func:`statistics`; None takes those of a training on images of both domains.
    """
    whose = whose or statistics(policy, model)
    if not layers_of(model):
        return whose
    affine = "fixed" if policy in _AFFINE_FROZEN else "trained"
    normalised_by = "no batch statistics" if policy == "frozen" else "batch statistics"
    return f"{policy}: affine parameters {affine}, {normalised_by} in training, running statistics {whose}"


def layers_of(model: nn.Module) -> list[_BatchNorm]:
    """The network's layers of batch normalisation, in the order of ``model.modules()``."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]
