"""DeepLab-V2 (Chen et al., TPAMI 2018) on any encoder of segmentation-models-pytorch, with an auxiliary head.

Each head is the SUM of four dilated 3×3 convolutions (ASPP), as in the adaptation literature. Shapes: B batch,
C classes, h × w feature resolution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import segmentation_models_pytorch as smp
import timm
from segmentation_models_pytorch.encoders._utils import replace_strides_with_dilation
from torch import Tensor, nn

from dem_apps.errors import InputError, nearest
from seg.models.atrous_head import AtrousHead
from seg.models.deeplabv2_advent import build_advent_network

OUTPUT_STRIDES = (4, 8, 16)


class DeepLabV2(nn.Module):
    """An encoder with a main head on its last stage and an auxiliary head on the one before.

    Args:
        encoder: name of an encoder of segmentation-models-pytorch (``resnet101``, ``tu-…`` for timm).
        num_classes: C.
        output_stride: input pixels per feature; 4 needs a ResNet-like encoder.
        depth: stages of the encoder in use, 3 to 5.
        weights: name of pretrained encoder weights such as ``imagenet``, or None for a random start.

    Raises:
        InputError: an unknown encoder, a stride it cannot have, or weights that cannot be had.
    """

    heads = ("main", "aux")

    def __init__(
        self, encoder: str, num_classes: int, output_stride: int = 8, depth: int = 5, weights: str | None = None
    ) -> None:
        super().__init__()
        if output_stride not in OUTPUT_STRIDES:
            raise InputError(f"output_stride: {output_stride} is not one of {', '.join(map(str, OUTPUT_STRIDES))}")
        self.encoder, channels = _build_encoder(encoder, output_stride, depth, weights)
        auxiliary_channels, main_channels = channels[-2:]
        self.main_head = AtrousHead(main_channels, num_classes)
        self.auxiliary_head = AtrousHead(auxiliary_channels, num_classes)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised images → logits ``main`` and ``aux``, (B, C, h, w) each."""
        features = self.encoder(images)
        return {"main": self.main_head(features[-1]), "aux": self.auxiliary_head(features[-2])}

    def parameter_groups(self, learning_rate: float, head_factor: float) -> list[dict[str, Any]]:
        """Encoder at ``learning_rate``, heads at ``head_factor`` times that; ``base_lr`` is kept for schedules."""
        heads = [*self.main_head.parameters(), *self.auxiliary_head.parameters()]
        return [
            {"params": list(self.encoder.parameters()), "base_lr": learning_rate},
            {"params": heads, "base_lr": learning_rate * head_factor},
        ]


def build_model(
    name: str = "deeplabv2",
    encoder: str = "resnet101",
    num_classes: int = 19,
    output_stride: int = 8,
    depth: int = 5,
    weights: str | None = None,
) -> nn.Module:
    """A segmentation model by name; see :class:`DeepLabV2` for the arguments.

    ``deeplabv2-advent`` is :class:`seg.models.deeplabv2_advent.AdventDeepLabV2`, which leaves no choice but
    ``num_classes``.

    Returns:
        a module that maps (B, 3, H, W) images to ``{"main": (B, C, h, w), "aux": (B, C, h, w)}``.

    >>> import torch
    >>> model = build_model("deeplabv2", encoder="resnet18", num_classes=4, output_stride=8)
    >>> {head: tuple(logits.shape) for head, logits in model(torch.zeros(1, 3, 64, 96)).items()}
    {'main': (1, 4, 8, 12), 'aux': (1, 4, 8, 12)}
    """
    if name not in _MODELS:
        raise InputError(f"model: '{name}' is not one of {', '.join(_MODELS)}{nearest(name, _MODELS)}")
    return _MODELS[name](encoder, num_classes, output_stride, depth, weights)


_MODELS: dict[str, Callable[[str, int, int, int, str | None], nn.Module]] = {
    "deeplabv2": DeepLabV2,
    "deeplabv2-advent": build_advent_network,
}


def _build_encoder(name: str, output_stride: int, depth: int, weights: str | None) -> tuple[nn.Module, list[int]]:
    known = smp.encoders.get_encoder_names()
    if name not in known and not name.startswith("tu-"):
        raise InputError(f"encoder: '{name}' is not known to segmentation-models-pytorch{nearest(name, known)}")
    if name.startswith("tu-") and not timm.is_model(name[3:].partition(".")[0]):
        # timm would also take the name of a folder, or of a repository that it then downloads
        raise InputError(f"encoder: '{name}' is no network of timm")
    try:
        encoder = smp.encoders.get_encoder(
            name, depth=depth, weights=weights, output_stride=16 if output_stride == 16 else 8
        )
    except (KeyError, ValueError, NotImplementedError) as error:
        raise InputError(f"encoder '{name}' with output stride {output_stride}, depth {depth}: {error}") from error
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"encoder '{name}': the '{weights}' weights could not be loaded ({type(error).__name__}); without a "
            "network or a cached copy, start from random weights with --model.encoder-weights null"
        ) from error
    if output_stride == 4:
        _dilate_for_stride_4(name, encoder)
    _drop_unused_stages(encoder, depth)
    return encoder, list(encoder.out_channels)


def _drop_unused_stages(encoder: nn.Module, depth: int) -> None:
    """A ResNet cut short still carries its later stages: most of its weights, which nothing would train."""
    for stage in range(depth, 5):
        if hasattr(encoder, f"layer{stage}"):
            setattr(encoder, f"layer{stage}", nn.Identity())


def _dilate_for_stride_4(name: str, encoder: nn.Module) -> None:
    """Strides of every stage after the first become dilations; the library itself stops at stride 8."""
    for stage, dilation in (("layer2", 2), ("layer3", 4), ("layer4", 8)):
        module = getattr(encoder, stage, None)
        if module is None:
            raise InputError(f"encoder '{name}': output stride 4 needs a ResNet-like encoder; use 8 or 16")
        replace_strides_with_dilation(module, dilation)
