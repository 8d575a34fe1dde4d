"""What a teacher's prediction is worth as a label: a weight for every pixel. B batch, C classes, H × W pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dem_apps.reduction import summed_over_processes, sums_in

#: Of the moving averages of "adaptive", as FreeMatch has it.
_KEPT = 0.999


class PseudoLabels(nn.Module):
    """The most probable class of each pixel, and how much it counts.

    - ``image``: every pixel of an image counts as the share of its pixels whose confidence is at least the threshold
      (DACS, Tranheden et al., WACV 2021).
    - ``pixel``: those pixels count 1, the others 0 (FixMatch, Sohn et al., NeurIPS 2020).
    - ``adaptive``: a pixel counts 1 from its class's own threshold on. The mean confidence, as a moving average, is the
      threshold of the class that is predicted most, and a rarer one's is lower (FreeMatch, Wang et al., ICLR 2023,
      without its fairness loss; a batch gives many pixels, so that of the first one is where the averages begin).

    ``threshold`` is of the confidence, 0 to 1; ``adaptive`` has none.
    """

    confidence: Tensor
    probability: Tensor
    seen: Tensor

    def __init__(self, num_classes: int, weighting: str, threshold: float) -> None:
        super().__init__()
        self.weighting = weighting
        self.threshold = threshold
        if weighting == "adaptive":
            self.register_buffer("confidence", torch.tensor(1.0 / num_classes))
            self.register_buffer("probability", torch.full((num_classes,), 1.0 / num_classes))
            self.register_buffer("seen", torch.tensor(0))

    @torch.no_grad()
    def forward(self, logits: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits (B, C, H, W) → labels (B, H, W) int64 and weights float32, 0 to 1; only ``valid`` pixels count."""
        p = logits.float().softmax(1)
        confidence, label = p.max(1)
        if self.weighting == "adaptive":
            self._follow(p, confidence, valid)
            thresholds = self.confidence * self.probability / self.probability.max()
            sure = (confidence >= thresholds[label]).float()
            return label, sure if valid is None else sure * valid
        sure = (confidence >= self.threshold).float()
        if valid is not None:
            sure = sure * valid
        if self.weighting == "pixel":
            return label, sure
        if valid is None:
            return label, sure.mean((1, 2), keepdim=True).expand_as(sure)
        share = sure.sum((1, 2), keepdim=True) / valid.sum((1, 2), keepdim=True).clamp_min(1)
        return label, share * valid

    def _follow(self, p: Tensor, confidence: Tensor, valid: Tensor | None) -> None:
        if valid is not None:
            p, confidence = p.movedim(1, -1)[valid].T[None, ..., None], confidence[valid]
        wide = sums_in(p)
        own = confidence.sum(dtype=wide)
        sums = torch.cat([own[None], p.sum((0, 2, 3), dtype=wide), own.new_tensor([confidence.numel()])])
        (sums,) = summed_over_processes(sums)
        means = (sums[:-1] / sums[-1].clamp_min(1)).float()
        moved = torch.where(self.seen == 0, 1.0, 1.0 - _KEPT)
        self.confidence.lerp_(means[0], moved)
        self.probability.lerp_(means[1:], moved)
        self.seen += 1
