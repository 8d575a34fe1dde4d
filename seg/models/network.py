"""The interface that training, scores and exports use of a network."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn


class SegmentationNetwork(nn.Module):
    """(B, 3, H, W) images, RGB in ImageNet's normalisation or bands in the run's → logits (B, C, h, w) by head.

    ``encoder`` is the part that learns at the plain rate and may start from pretrained weights.
    """

    #: The keys of the logits: ``main``, which is scored and exported, and ``aux`` where there is an auxiliary head.
    heads: ClassVar[tuple[str, ...]] = ("main",)
    encoder: nn.Module


def parameter_groups(model: nn.Module, lr: float, head_factor: float, repeats: str = "none") -> list[dict[str, Any]]:
    """The groups of an optimiser: the parameters of ``model.encoder`` at ``lr``, all others at ``head_factor * lr``.

    ``base_lr`` holds the rate that a schedule multiplies. The repeats ``advent`` group the encoder's parameters by the
    number of modules below the encoder that each is in: 1 for ``conv1``, 3 in a block, 4 in its shortcut. ADVENT lists
    them as often (``get_1x_lr_params_no_scale`` of its ``deeplabv2.py``).
    """
    inside = {id(parameter): name.count(".") for name, parameter in model.get_submodule("encoder").named_parameters()}
    encoder: dict[int, list[nn.Parameter]] = {}
    heads: list[nn.Parameter] = []
    for parameter in model.parameters():
        if id(parameter) not in inside:
            heads.append(parameter)
        else:
            encoder.setdefault(inside[id(parameter)] if repeats == "advent" else 1, []).append(parameter)
    groups: list[dict[str, Any]] = [{"params": encoder[times], "base_lr": lr, "repeats": times} for times in encoder]
    return [*groups, {"params": heads, "base_lr": lr * head_factor, "repeats": 1}]
