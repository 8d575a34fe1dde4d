"""The network of the adaptation literature, number for number: DeepLab-V2 on the older ResNet-101.

AdaptSegNet (Tsai et al., CVPR 2018) and ADVENT (Vu et al., CVPR 2019) publish weights for it. Other than torchvision's,
a stage's stride sits on its first 1×1 convolution, the max-pool rounds up, all blocks of a dilated stage are dilated,
and images are BGR from 0 to 255 minus a mean. Shapes: B batch, C classes, h × w features, an eighth of the image's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dem_apps.errors import InputError
from seg.data.pixel_format import IMAGENET_MEAN, IMAGENET_STD
from seg.models.deeplabv2 import DeepLabV2

#: What ADVENT's configuration subtracts from BGR images from 0 to 255 (``IMG_MEAN``).
ADVENT_MEAN_BGR = (104.00698793, 116.66876762, 122.67891434)

ENCODER, OUTPUT_STRIDE, DEPTH = "resnet101", 8, 5


class AdventDeepLabV2(DeepLabV2):
    """ADVENT's network, with its random start and parameters named as in :class:`seg.models.deeplabv2.DeepLabV2`."""

    name = "deeplabv2-advent"
    scale: Tensor
    shift: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__(ENCODER, num_classes, None, DEPTH, OUTPUT_STRIDE)
        encoder: Any = self.encoder
        encoder.maxpool.ceil_mode = True
        first = encoder.layer2[0]  # the strides of the stages after it are dilations
        first.conv1.stride, first.conv2.stride = first.conv2.stride, first.conv1.stride
        for module in encoder.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.01)
        # RGB in this project's normalisation → BGR from 0 to 255 minus ADVENT's mean; in no checkpoint
        mean, std = (255.0 * torch.tensor(each[::-1], dtype=torch.float64) for each in (IMAGENET_MEAN, IMAGENET_STD))
        shift = mean - torch.tensor(ADVENT_MEAN_BGR, dtype=torch.float64)
        self.register_buffer("scale", std.float().view(3, 1, 1), persistent=False)
        self.register_buffer("shift", shift.float().view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised RGB images → logits ``main`` and ``aux``, (B, C, h, w) each."""
        return super().forward(images.flip(1) * self.scale + self.shift)


def build_advent_network(
    encoder: str, num_classes: int, weights: str | None = None, depth: int = DEPTH, output_stride: int = OUTPUT_STRIDE
) -> AdventDeepLabV2:
    """The network, which has one encoder, output stride and depth."""
    if (encoder, output_stride, depth) != (ENCODER, OUTPUT_STRIDE, DEPTH):
        has = f"encoder {ENCODER}, output_stride {OUTPUT_STRIDE} and depth {DEPTH}"
        raise InputError(f"model: deeplabv2-advent has {has}, not {encoder}, {output_stride} and {depth}")
    if weights is not None:  # torchvision's fit in shape and cost 7 points of mIoU (AdaptSegNet's issue 55)
        instead = "start from a published checkpoint by python -m seg.convert and --model.start-from"
        raise InputError(f"model: there are no '{weights}' weights for deeplabv2-advent; {instead}")
    return AdventDeepLabV2(num_classes)
