"""A network's predictions at the size of the images: used by training steps, methods, scores and exports.

Shapes: B batch, C classes, h × w feature resolution, H × W the images' size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seg.data.pixel_format import RGB, PixelFormat
from seg.models.batch_norm import Domain, feed_batch_norm

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class Predictor:
    """A network in training, with a policy of batch norm: called with images it gives every head's logits."""

    model: nn.Module
    accelerator: Accelerator
    batch_norm: str
    align_corners: bool = True
    pixels: PixelFormat = RGB  #: of the images

    @property
    def heads(self) -> tuple[str, ...]:
        """``("main", "aux")``, or ``("main",)`` where there is no auxiliary head."""
        heads: tuple[str, ...] = self.model.heads  # type: ignore[assignment]
        return heads

    def __call__(self, images: Tensor, domain: Domain) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised images → float32 logits (B, C, H, W) per head, computed in the run's precision."""
        feed_batch_norm(self.model, self.batch_norm, domain)
        images = images.to(self.accelerator.device, memory_format=torch.channels_last, non_blocking=True)
        with self.accelerator.autocast():
            logits: dict[str, Tensor] = self.model(images)
        size = (images.shape[-2], images.shape[-1])
        return {head: upsampled(values, size, self.align_corners) for head, values in logits.items()}


def upsampled(logits: Tensor, size: tuple[int, int], align_corners: bool = True) -> Tensor:
    """(B, C, h, w) → (B, C, H, W), bilinear, with corners aligned as ADVENT does by default; in float32."""
    return F.interpolate(logits.float(), size=size, mode="bilinear", align_corners=align_corners)


def upsampled_bands(
    logits: Tensor, size: tuple[int, int], align_corners: bool = True, rows: int = 128
) -> Iterator[Tensor]:
    """What :func:`upsampled` gives of one image, (1, C, h, w), up to rounding, as bands (1, C, ≤ rows, W) top down."""
    height, width = logits.shape[2], size[1]
    every = torch.arange(size[0], dtype=torch.float32, device=logits.device)
    if align_corners:
        places = every * ((height - 1) / max(1, size[0] - 1))
    else:
        places = ((every + 0.5) * (height / size[0]) - 0.5).clamp_min(0)
    for band in places.split(rows):
        above = band.long().clamp_max(height - 1)
        below = (above + 1).clamp_max(height - 1)
        share = (band - above)[:, None]
        lines = torch.lerp(logits[:, :, above].float(), logits[:, :, below].float(), share)
        yield upsampled(lines, (len(band), width), align_corners)
