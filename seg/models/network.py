"""What training, scores and exports ask of a network; everything else is the network's own affair."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn


class SegmentationNetwork(nn.Module):
    """(B, 3, H, W) images, RGB in ImageNet's normalisation → logits (B, C, h, w) by head, at any resolution h × w.

    ``encoder`` is the part that learns at the plain rate and may start from pretrained weights; see
    :func:`parameter_groups`. Whoever calls the network brings its logits to the images' or the labels' size.
    """

    #: The keys of the logits: ``main``, which is scored and exported, and ``aux`` where there is an auxiliary head.
    heads: ClassVar[tuple[str, ...]] = ("main",)
    encoder: nn.Module


def parameter_groups(model: nn.Module, lr: float, head_factor: float) -> list[dict[str, Any]]:
    """The groups of an optimiser: the parameters of ``model.encoder`` at ``lr``, all others at ``head_factor * lr``.

    ``base_lr`` holds the rate that a schedule multiplies. Either group keeps the order of ``model.parameters()``, by
    which the state of an optimiser is stored.
    """
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    of_encoder = {id(parameter) for parameter in model.get_submodule("encoder").parameters()}
    for parameter in model.parameters():
        groups[id(parameter) in of_encoder].append(parameter)
    return [
        {"params": groups[True], "base_lr": lr},
        {"params": groups[False], "base_lr": lr * head_factor},
    ]
