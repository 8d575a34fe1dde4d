"""The head of DeepLab-V2: atrous spatial pyramid pooling as a sum (Chen et al., TPAMI 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DILATIONS = (6, 12, 18, 24)


class AtrousHead(nn.Module):
    """The sum of four dilated 3×3 convolutions with bias: (B, channels, h, w) → (B, C, h, w)."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        branches = [nn.Conv2d(channels, num_classes, 3, padding=d, dilation=d) for d in DILATIONS]
        for branch in branches:
            nn.init.normal_(branch.weight, std=0.01)
            nn.init.zeros_(branch.bias)  # type: ignore[arg-type]
        self.branches = nn.ModuleList(branches)

    def forward(self, features: Tensor) -> Tensor:
        """Add up all four branches; float32 under autocast, too.

        The 36 taps are one product over the channels, shifted and added afterwards: a convolution with so few outputs
        reads its input nine times and uses little of the processor for it.
        """
        # fold moves a tap the opposite way from a convolution, so the kernels are turned round
        weights = [branch.get_parameter("weight") for branch in self.branches]
        weight = torch.cat([weight.flip(2, 3).permute(0, 2, 3, 1).flatten(0, 2) for weight in weights])
        taps = F.conv2d(features, weight[:, :, None, None])
        taps = taps.to(torch.promote_types(taps.dtype, torch.float32)).flatten(2)
        # added one by one: through a stack the four gradients would share memory, and a second backward pass, which
        # adds in place, would add to each of them four times
        bias = sum((branch.get_parameter("bias") for branch in self.branches), start=weight.new_zeros(()))
        logits = bias[:, None, None]
        for part, dilation in zip(taps.chunk(len(DILATIONS), dim=1), DILATIONS, strict=True):
            logits = logits + F.fold(part, features.shape[2:], 3, dilation=dilation, padding=dilation)
        return logits
