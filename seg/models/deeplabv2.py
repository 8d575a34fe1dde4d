"""DeepLab-V2 (Chen et al., TPAMI 2018) on any encoder of segmentation-models-pytorch, with an auxiliary head.

Each head is the SUM of four dilated 3×3 convolutions (ASPP), as in the adaptation literature. Shapes: B batch,
C classes, h × w feature resolution.
"""

from __future__ import annotations

from typing import Any

import segmentation_models_pytorch as smp
import torch
from segmentation_models_pytorch.encoders._utils import replace_strides_with_dilation
from torch import Tensor, nn
from torch.nn import functional as F

from dem_apps.errors import InputError, one_of, passed_on
from dem_apps.runtime.documents import Document
from seg.data.pixel_format import IMAGENET_MEAN, IMAGENET_STD
from seg.models.network import HeadLogits, SegmentationNetwork
from seg.models.smp_network import encoder_errors

DILATIONS = (6, 12, 18, 24)
#: Mean that ADVENT's configuration subtracts from BGR images from 0 to 255 (``IMG_MEAN``).
ADVENT_MEAN_BGR = (104.00698793, 116.66876762, 122.67891434)
#: Arguments that ADVENT's network is built with.
ADVENT: Document = {"encoder": "resnet101", "depth": 5, "output_stride": 8}


class AtrousHead(nn.Module):
    """The sum of four dilated 3×3 convolutions with bias.

    It maps features (B, channels, h, w) to logits (B, C, h, w).
    """

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        branches = [nn.Conv2d(channels, num_classes, 3, padding=d, dilation=d) for d in DILATIONS]
        for branch in branches:
            nn.init.normal_(branch.weight, std=0.01)
            nn.init.zeros_(branch.bias)  # type: ignore[arg-type]
        self.branches = nn.ModuleList(branches)

    def forward(self, features: Tensor) -> Tensor:
        """Add up all four branches; float32 under autocast, too.

        The 36 taps are one product over the channels, shifted and added: faster than convolutions of so few outputs.
        """
        # fold moves a tap the opposite way from a convolution, so the kernels are turned round
        weights = [branch.get_parameter("weight") for branch in self.branches]
        weight = torch.cat(
            [weight.flip(2, 3).permute(0, 2, 3, 1).flatten(0, 2) for weight in weights]
        )
        taps = F.conv2d(features, weight[:, :, None, None])
        taps = taps.to(torch.promote_types(taps.dtype, torch.float32)).flatten(2)
        # added one by one: through a stack the four gradients would share memory, and a second backward pass, which
        # adds in place, would add to each of them four times
        bias = sum(
            (branch.get_parameter("bias") for branch in self.branches), start=weight.new_zeros(())
        )
        logits = bias[:, None, None]
        for part, dilation in zip(taps.chunk(len(DILATIONS), dim=1), DILATIONS, strict=True):
            logits = logits + F.fold(
                part, features.shape[2:], 3, dilation=dilation, padding=dilation
            )
        return logits


class DeepLabV2(SegmentationNetwork):
    """An encoder with a main head on its last stage and an auxiliary head on the one before; see ``build_model``.

    ``depth`` is 3 to 5, and an ``output_stride`` of 4 needs a ResNet-like encoder. Raises InputError.
    """

    name, heads = "deeplabv2", ("main", "aux")

    def __init__(
        self,
        encoder: str,
        num_classes: int,
        weights: str | None = None,
        depth: int = 5,
        output_stride: int = 8,
        bands: int = 3,
    ) -> None:
        super().__init__()
        one_of("output_stride", str(output_stride), ("4", "8", "16"))
        where = f"encoder '{encoder}' with output stride {output_stride}, depth {depth}"
        with encoder_errors(where, encoder, weights):
            self.encoder = parts = smp.encoders.get_encoder(
                encoder,
                in_channels=bands,
                depth=depth,
                weights=weights,
                output_stride=max(8, output_stride),
            )
        # strides of every stage after the first become dilations; the library stops at 8
        if output_stride == 4:
            with passed_on(f"{where}: needs a ResNet-like encoder; use 8 or 16", AttributeError):
                for part, dilation in (("layer2", 2), ("layer3", 4), ("layer4", 8)):
                    replace_strides_with_dilation(getattr(parts, part), dilation)
        # a ResNet cut short still carries its later stages, which nothing would train
        for stage in range(depth, 5):
            if hasattr(parts, f"layer{stage}"):
                setattr(parts, f"layer{stage}", nn.Identity())
        aux_channels, main_channels = parts.out_channels[-2:]
        self.main_head = AtrousHead(main_channels, num_classes)
        self.auxiliary_head = AtrousHead(aux_channels, num_classes)  # named so in checkpoints

    def forward(self, images: Tensor) -> HeadLogits:
        """Compute the logits of both heads.

        Args:
            images: (B, 3, H, W), normalised.

        Returns:
            logits ``main`` and ``aux``, (B, C, h, w) each.
        """
        features = self.encoder(images)
        return {"main": self.main_head(features[-1]), "aux": self.auxiliary_head(features[-2])}


class AdventDeepLabV2(DeepLabV2):
    """The network of the adaptation literature, number for number, with parameters named as in :class:`DeepLabV2`.

    AdaptSegNet (Tsai et al., CVPR 2018) and ADVENT (Vu et al., CVPR 2019) publish weights for it. Other than in
    torchvision's ResNet-101, a stage's stride sits on its first 1×1 convolution, the max-pool rounds up, all blocks of
    a dilated stage are dilated, and images are BGR from 0 to 255 minus a mean. h × w are an eighth of the image's.
    """

    name = "deeplabv2-advent"
    scale: Tensor
    shift: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes=num_classes, **ADVENT)
        encoder: Any = self.encoder
        encoder.maxpool.ceil_mode = True
        first = encoder.layer2[0]  # the strides of the stages after it are dilations
        first.conv1.stride, first.conv2.stride = first.conv2.stride, first.conv1.stride
        for module in encoder.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.01)
        # RGB in this project's normalisation → BGR from 0 to 255 minus ADVENT's mean; in no checkpoint
        mean, std = (
            255.0 * torch.tensor(each[::-1], dtype=torch.float64)
            for each in (IMAGENET_MEAN, IMAGENET_STD)
        )
        shift = mean - torch.tensor(ADVENT_MEAN_BGR, dtype=torch.float64)
        for name, values in (("scale", std), ("shift", shift)):
            self.register_buffer(name, values.float().view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> HeadLogits:
        """Compute the logits of both heads.

        Args:
            images: (B, 3, H, W) RGB, normalised.

        Returns:
            logits ``main`` and ``aux``, (B, C, h, w) each.
        """
        return super().forward(images.flip(1) * self.scale + self.shift)


def build_advent_network(
    encoder: str, num_classes: int, weights: str | None = None, **options: Any
) -> AdventDeepLabV2:
    """The network, which has one encoder, output stride and depth."""
    arguments = {**ADVENT, "encoder": encoder, **options}
    # torchvision's weights fit in shape and cost 7 points of mIoU (AdaptSegNet's issue 55)
    if arguments != ADVENT or weights is not None:
        raise InputError(
            f"model: deeplabv2-advent has {ADVENT}, not {arguments}, and no encoder weights ({weights}); start from a "
            "published checkpoint by python -m seg.convert and --model.start-from"
        )
    return AdventDeepLabV2(num_classes)
