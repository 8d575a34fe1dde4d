"""The network of the adaptation literature, number for number: DeepLab-V2 on the older ResNet-101.

AdaptSegNet (Tsai et al., CVPR 2018) and ADVENT (Vu et al., CVPR 2019) publish weights for it. Other than torchvision's,
a stage's stride sits on its first 1×1 convolution, the max-pool rounds up, all blocks of a dilated stage are dilated,
and images are BGR from 0 to 255 minus a mean. Shapes: B batch, C classes, h × w features, an eighth of the image's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dem_apps.errors import InputError
from seg.data.pixel_format import IMAGENET_MEAN, IMAGENET_STD
from seg.models.deeplabv2 import AtrousHead
from seg.models.network import SegmentationNetwork

#: What ADVENT's configuration subtracts from BGR images from 0 to 255 (``IMG_MEAN``).
ADVENT_MEAN_BGR = (104.00698793, 116.66876762, 122.67891434)

ENCODER, OUTPUT_STRIDE, DEPTH = "resnet101", 8, 5

_EXPANSION = 4
#: Per stage of ResNet-101: blocks, channels inside a block, stride, dilation.
_STAGES = ((3, 64, 1, 1), (4, 128, 2, 1), (23, 256, 1, 2), (3, 512, 1, 4))


class AdventDeepLabV2(SegmentationNetwork):
    """ADVENT's network, with its random start and parameters named as in :class:`seg.models.deeplabv2.DeepLabV2`."""

    name, heads = "deeplabv2-advent", ("main", "aux")

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.to_bgr = BgrMinusMean()
        self.encoder = AdventResNet101()
        self.main_head = AtrousHead(512 * _EXPANSION, num_classes)
        self.auxiliary_head = AtrousHead(256 * _EXPANSION, num_classes)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised RGB images → logits ``main`` and ``aux``, (B, C, h, w) each."""
        before_last, last = self.encoder(self.to_bgr(images))
        return {"main": self.main_head(last), "aux": self.auxiliary_head(before_last)}


class BgrMinusMean(nn.Module):
    """(B, 3, H, W) images in this project's normalisation → BGR from 0 to 255 minus ADVENT's mean."""

    scale: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        scale = 255.0 * torch.tensor(IMAGENET_STD[::-1], dtype=torch.float64)
        mean = 255.0 * torch.tensor(IMAGENET_MEAN[::-1], dtype=torch.float64)
        shift = mean - torch.tensor(ADVENT_MEAN_BGR, dtype=torch.float64)
        # constants, not weights: they are in no checkpoint
        self.register_buffer("scale", scale.float().view(3, 1, 1), persistent=False)
        self.register_buffer("shift", shift.float().view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Swap the channels, then one multiplication and one addition."""
        return images.flip(1) * self.scale + self.shift


class AdventResNet101(nn.Module):
    """(B, 3, H, W) → features of the last two stages, (B, 1024, h, w) and (B, 2048, h, w)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True)
        stages, channels = [], 64
        for blocks, width, stride, dilation in _STAGES:
            first = Bottleneck(channels, width, stride, dilation, projected=True)
            channels = width * _EXPANSION
            others = [Bottleneck(channels, width, 1, dilation, projected=False) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(first, *others))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.01)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features of the last two stages."""
        features = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        before_last: Tensor = self.layer3(self.layer2(self.layer1(features)))
        last: Tensor = self.layer4(before_last)
        return before_last, last


class Bottleneck(nn.Module):
    """Convolutions of 1×1 (with the stride), 3×3 (dilated) and 1×1 beside a shortcut; 4 × ``width`` outputs."""

    def __init__(self, channels: int, width: int, stride: int, dilation: int, projected: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, stride=stride, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * _EXPANSION, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * _EXPANSION)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if projected:
            projection = nn.Conv2d(channels, width * _EXPANSION, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(width * _EXPANSION))

    def forward(self, features: Tensor) -> Tensor:
        """(B, channels, h, w) → (B, 4 × width, h / stride, w / stride), rounded up."""
        inner = self.relu(self.bn1(self.conv1(features)))
        inner = self.relu(self.bn2(self.conv2(inner)))
        summed: Tensor = self.relu(self.bn3(self.conv3(inner)) + self.downsample(features))
        return summed


def build_advent_network(
    encoder: str, num_classes: int, weights: str | None = None, depth: int = DEPTH, output_stride: int = OUTPUT_STRIDE
) -> AdventDeepLabV2:
    """The network, which has one encoder, output stride and depth."""
    if (encoder, output_stride, depth) != (ENCODER, OUTPUT_STRIDE, DEPTH):
        raise InputError(
            f"model: deeplabv2-advent has encoder {ENCODER}, output_stride {OUTPUT_STRIDE} and depth {DEPTH}, not "
            f"{encoder}, {output_stride} and {depth}"
        )
    if weights is not None:  # torchvision's fit in shape and cost 7 points of mIoU (AdaptSegNet's issue 55)
        raise InputError(
            f"model: there are no '{weights}' weights for deeplabv2-advent; start from a published checkpoint with "
            "python -m seg.convert and --model.start-from, or take the model deeplabv2"
        )
    return AdventDeepLabV2(num_classes)
