"""The head of DeepLab-V2: atrous spatial pyramid pooling as a sum (Chen et al., TPAMI 2018)."""

from __future__ import annotations

from torch import Tensor, nn

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
        """Add up all four branches."""
        logits: Tensor = self.branches[0](features)
        for branch in self.branches[1:]:
            logits = logits + branch(features)
        return logits
