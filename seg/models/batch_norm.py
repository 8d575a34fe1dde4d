"""BatchNorm policies: which affine parameters train, and which domain's batches update the running statistics.

A score depends on the policy, which its protocol names. A network without batch normalisation takes no policy but
``trainable``: layer and group normalisation have no running statistics.
"""

from __future__ import annotations

from typing import Literal

from timm.layers.norm_act import convert_sync_batchnorm
from torch import nn

from dem_apps.errors import InputError
from dem_apps.test_time_methods.normalisation import NORMALISATIONS, batch_norms, tracking

#: The domain of a batch.
Domain = Literal["source", "target"]


def batch_norm_normalises(network: nn.Module) -> bool:
    """Return whether most normalisation layers are batch norm with statistics.

    SegFormer has one such layer, beside 30 of layer norm.
    """
    layers = [layer for layer in nn.Module.modules(network) if isinstance(layer, NORMALISATIONS)]
    return 2 * len(tracking(network)) > len(layers)


def set_up_batch_norm(model: nn.Module, policy: str, synchronised: bool) -> nn.Module:
    """Prepare batch normalisation for a policy, in place; ``synchronised`` statistics are those of all processes."""
    if policy != "trainable" and not batch_norms(model):
        raise InputError(
            f"--model.batch-norm: the network has no batch normalisation, so '{policy}' would change nothing; leave "
            "it at trainable"
        )
    if synchronised and policy != "frozen" and batch_norms(model):
        if next(model.parameters()).device.type == "cpu":
            raise InputError(
                "--model.batch-norm: processes on CPUs cannot share batch statistics; give frozen"
            )
        # timm's, because torch's own converter would drop the activations inside timm's layers
        model = convert_sync_batchnorm(model)
    for layer in batch_norms(model):
        for parameter in layer.parameters(recurse=False):
            parameter.requires_grad_(policy not in ("affine-frozen", "frozen"))
    return model


def feed_batch_norm(model: nn.Module, policy: str, domain: Domain) -> None:
    """Set the layers for a batch of ``domain``; in training before each forward, after ``model.train()``."""
    moved = domain == policy or policy not in ("source", "target")
    for layer in batch_norms(model):
        layer.train(policy != "frozen")
        # A layer that does not track normalises by its batch and leaves its running statistics as they are.
        layer.track_running_stats = moved
