"""Strong views of a target image: source pixels pasted in, colour jitter, blur, masked blocks.

Every draw comes from a generator of the sample's own, so that it is the same in one process or several.
Shapes: B batch, H × W the images' size; images are normalised (``seg.data.loader.normalised``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.transforms import v2

from dem_apps.errors import InputError
from seg.data.labels import IGNORE_INDEX
from seg.data.pixel_format import RGB, PixelFormat
from seg.methods.optimization import MicroBatch

#: Blur, and colour jitter before it, of DACS and DAFormer.
_BLUR = v2.RandomApply([v2.GaussianBlur(5, (0.15, 1.15))], 0.5)
_STRONG = v2.Compose([v2.RandomApply([v2.ColorJitter(0.2, 0.2, 0.2, 0.2)], 0.8), _BLUR])


def generators(draws: Tensor, purpose: int) -> list[torch.Generator]:
    """Return a generator per sample from the batch's ``draw`` (B,); draws of one ``purpose`` depend on no other's."""
    return [torch.Generator().manual_seed((int(draw) + 7919 * purpose) % 2**63) for draw in draws]


def check_sizes(batch: MicroBatch, what: str, instead: str = "") -> None:
    """Raises InputError: ``what`` is done with source and target images needs them of one size."""
    source, target = (tuple(part["image"].shape) for part in batch)
    if source != target:
        sizes = " and ".join(f"{shape[3]} × {shape[2]}" for shape in (source, target))
        raise InputError(
            f"{what}, and they are {sizes}; give --source.size and --target.size one size, or crop both to one in "
            f"their augmentation{instead}"
        )


def pasted_pixels(label: Tensor, mix: str, draws: Sequence[torch.Generator]) -> Tensor:
    """Mask (B, H, W) of the pixels pasted from source, by its labels (B, H, W); never ignored pixels.

    ``classes``: half of the classes in the label, rounded up (ClassMix, Olsson et al., WACV 2021); ``box``: a box of a
    quarter to half of the image (CutMix, Yun et al., ICCV 2019).
    """
    region = _of_classes if mix == "classes" else _in_box
    return torch.stack([region(one, draw) for one, draw in zip(label, draws, strict=True)]) & (label != IGNORE_INDEX)


def _of_classes(label: Tensor, draw: torch.Generator) -> Tensor:
    present = label.unique()
    present = present[present != IGNORE_INDEX]
    order = torch.randperm(len(present), generator=draw).to(label.device)
    return torch.isin(label, present[order[: (len(present) + 1) // 2]])


def _in_box(label: Tensor, draw: torch.Generator) -> Tensor:
    height, width = label.shape
    share, ratio, across, down = torch.rand(4, generator=draw).tolist()
    area = (0.25 + 0.25 * share) * height * width
    box_width = min(width, max(1, round((area * width / height) ** 0.5 * 2 ** (ratio - 0.5))))
    box_height = min(height, max(1, round(area / box_width)))
    left, top = round(across * (width - box_width)), round(down * (height - box_height))
    inside = torch.zeros_like(label, dtype=torch.bool)
    inside[top : top + box_height, left : left + box_width] = True
    return inside


def recoloured(images: Tensor, draws: Sequence[torch.Generator], pixels: PixelFormat = RGB) -> Tensor:
    """Brightness, contrast, saturation and hue jittered, and blurred, each image for itself: (B, 3, H, W) → the same.

    With the strengths and probabilities of DACS and DAFormer (Hoyer et al., CVPR 2022). Images that are no RGB
    have no colours that could be jittered, and are blurred alone.
    """
    mean, std = (torch.tensor(each, device=images.device)[:, None, None] for each in (pixels.mean, pixels.std))
    plain, changed = (images * std + mean).clamp(0, 1) if pixels.is_rgb else images, []
    with torch.random.fork_rng(devices=[]):
        for image, draw in zip(plain, draws, strict=True):
            torch.default_generator.set_state(draw.get_state())
            changed.append((_STRONG if pixels.is_rgb else _BLUR)(image))
    return (torch.stack(changed) - mean) / std if pixels.is_rgb else torch.stack(changed)


def hidden(images: Tensor, ratio: float, draws: Sequence[torch.Generator]) -> Tensor:
    """(B, 3, H, W) images without a share of their blocks, which become the mean (MIC, Hoyer et al., CVPR 2023)."""
    height, width = images.shape[-2:]
    side = max(1, min(height, width) // 8)  # as 64 of 512 in the paper
    rows, columns = -(-height // side), -(-width // side)
    kept = torch.stack([torch.rand(rows, columns, generator=draw) >= ratio for draw in draws]).to(images.device)
    kept = kept.repeat_interleave(side, 1).repeat_interleave(side, 2)[:, None, :height, :width]
    return images * kept
