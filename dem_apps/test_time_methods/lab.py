"""Colour transfer in CIE Lab (Reinhard et al., *Color Transfer between Images*, 2001, there in lαβ).

Images get the source's mean and deviation, six numbers; no weight changes.

Shapes: B images, H × W pixels; RGB from 0 to 1; L from 0 to 100, a and b about −100 to 100.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dem_apps.entropy import Mask, computed_in
from dem_apps.errors import InputError
from dem_apps.test_time_methods.learner import Learner
from dem_apps.test_time_methods.method import Method, checked_images, fitted_mask

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

#: Linear sRGB to XYZ (IEC 61966-2-1), and the white of D65.
_TO_XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
_WHITE = (0.95047, 1.0, 1.08883)
#: Below its cube CIE Lab's cube root is a straight line.
_BEND = 6 / 29


def rgb_to_lab(rgb: Tensor) -> Tensor:
    """Convert sRGB (B, 3, H, W) from 0 to 1 to CIE Lab under D65.

    >>> rgb_to_lab(torch.ones(1, 3, 1, 1)).flatten().round(decimals=2).abs()  # white
    tensor([100.,   0.,   0.])
    """
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = torch.einsum("ij,bjhw->bihw", rgb.new_tensor(_TO_XYZ), linear) / _column(_WHITE, rgb)
    f = torch.where(xyz > _BEND**3, xyz ** (1 / 3), xyz / (3 * _BEND**2) + 4 / 29)
    x, y, z = f.unbind(1)
    return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], 1)


def lab_to_rgb(lab: Tensor) -> Tensor:
    """Convert CIE Lab to sRGB, the inverse of :func:`rgb_to_lab`.

    Colours outside sRGB are cut off at 0 and 1.
    """
    lightness, a, b = lab.unbind(1)
    y = (lightness + 16) / 116
    f = torch.stack([y + a / 500, y, y - b / 200], 1)
    xyz = torch.where(f > _BEND, f**3, 3 * _BEND**2 * (f - 4 / 29)) * _column(_WHITE, lab)
    from_xyz = torch.linalg.inv(lab.new_tensor(_TO_XYZ))
    linear = torch.einsum("ij,bjhw->bihw", from_xyz, xyz).clamp(0, 1)
    return torch.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)


@torch.no_grad()
def lab_statistics(
    batches: Iterable[Tensor],
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> dict[str, tuple[float, ...]]:
    """The six numbers of the source: means over images of each image's Lab mean and deviation, options of ``lab``.

    The (B, 3, H, W) images are normalised by ``mean`` and ``std``, of RGB from 0 to 1.
    """
    parts = []
    for batch in batches:
        images = checked_images("batches", batch)
        counted = fitted_mask(None, images, images)
        moments = _moments(rgb_to_lab(_plain(images, mean, std)), counted)
        parts.append(torch.cat(moments, 1)[..., 0, 0])
    if not parts:
        raise InputError("batches: holds no image to take colours from")
    six = torch.cat(parts).cpu().double().mean(0).tolist()
    return {"source_mean": tuple(six[:3]), "source_std": tuple(six[3:])}


class LabTransfer(Method):
    """Each image's Lab mean and deviation become the source's, and the network predicts; nothing learns.

    Args:
        source_mean: the source's mean of L, a and b, see :func:`lab_statistics`.
        source_std: the source's deviation of L, a and b.
        mean: of the images' normalisation, of RGB from 0 to 1; ImageNet's by default.
        std: of the images' normalisation, of RGB from 0 to 1; ImageNet's by default.
    """

    parameters = None
    batch_norm = "stored"

    def __init__(
        self,
        source_mean: Sequence[float] | None = None,
        source_std: Sequence[float] | None = None,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        if source_mean is None or source_std is None:
            raise InputError(
                "method 'lab': needs source_mean= and source_std=, three Lab numbers each of the images that the "
                "network was trained on; compute them by dem_apps.test_time_methods.lab.lab_statistics"
            )
        self.source_mean = source_mean
        self.source_std = source_std
        self.mean = mean
        self.std = std

    @torch.no_grad()
    def step(self, learner: Learner, images: Tensor, mask: Mask) -> Tensor:
        """The logits of the images in the source's colours.

        Pixels that a mask of the images' size leaves out do not count in their statistics.
        """
        of_pixels = mask is not None and mask.shape[1:] == images.shape[2:]
        logits = learner.logits(self.transferred(images, mask if of_pixels else None))
        fitted_mask(mask, images, logits)  # refuses what does not fit
        return logits

    def transferred(self, images: Tensor, mask: Mask = None) -> Tensor:
        """Return normalised images (B, 3, H, W) in the source's colours.

        A mask (B, H, W) selects the pixels of their statistics.
        """
        if images.ndim != 4 or images.shape[1] != 3:
            raise InputError(
                f"images: method 'lab' needs RGB, (B, 3, H, W), got shape {tuple(images.shape)}"
            )
        lab = rgb_to_lab(_plain(images, self.mean, self.std))
        mean, std = _moments(lab, fitted_mask(mask, images, images))
        contrast = _column(self.source_std, lab) / std.clamp_min(1e-3)
        moved = lab_to_rgb((lab - mean) * contrast + _column(self.source_mean, lab))
        normalised = (moved - _column(self.mean, lab)) / _column(self.std, lab)
        return normalised.to(images.dtype)


def _plain(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """RGB from 0 to 1, float32 or wider."""
    images = images.to(computed_in(images.dtype))
    return (images * _column(std, images) + _column(mean, images)).clamp(0, 1)


def _moments(lab: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the deviation of each image, (B, 3, 1, 1) each.

    Where a mask (B, H, W) leaves no pixel of an image, all its pixels count.
    """
    counted = mask[:, None].to(lab.dtype)
    counted = torch.where(counted.amax((2, 3), keepdim=True) > 0, counted, 1.0)
    share = counted / counted.sum((2, 3), keepdim=True)
    mean = (lab * share).sum((2, 3), keepdim=True)
    return mean, ((lab - mean).square() * share).sum((2, 3), keepdim=True).sqrt()


def _column(numbers: Sequence[float], like: Tensor) -> Tensor:
    return like.new_tensor(numbers).view(1, 3, 1, 1)
