"""Predictions, their entropy and their errors as numbers, in colours; every entropy from 0 to 1.

Shapes: C classes, H × W pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dem_apps.entropy import shannon_entropy
from seg.data.labels import IGNORE_INDEX, Color, Ids
from seg.data.pixel_format import Floats, Mask

#: (1, C, ·, ·) logits of a part of an image, behind their first row and column.
Part = tuple[int, int, Tensor]

#: (H, W, 3) colours.
Picture = NDArray[np.uint8]
Tiles = dict[str, Picture]
#: The two greys of the hatch over ignored pixels.
_IGNORED = ((255, 255, 255), (170, 170, 170))
#: Rows of the map whose softmax is in memory at once; a full-size softmax takes three times the logits' memory.
_ROWS_AT_ONCE = 128
#: (256, 3); matplotlib's own call takes eight floats per pixel.
_MAGMA = (matplotlib.colormaps["magma"](np.arange(256))[:, :3] * 255).round().astype(np.uint8)
#: Below this share of log C a pixel counts as certain: with 19 classes, two of them at 91 % and 9 % are at 0.1.
CERTAIN = 0.1
#: Grey of the image's black and white behind the wrong pixels: light, since most class colours are dark.
_FADED = (180, 245)


@dataclass(frozen=True)
class Prediction:
    """A network's prediction of one image."""

    classes: Ids  #: (H, W) uint8 train ids
    entropy: NDArray[np.float32]  #: (H, W) float32, 0 to 1: Shannon entropy / log C
    #: (H, W), False where the image holds no data and nothing counts; None for data everywhere.
    valid: Mask = None

    @classmethod
    def of(cls, logits: Tensor, valid: Mask = None, least: float = 0.0) -> Prediction:
        """Predict by logits.

        Args:
            logits: (C, H, W).
            valid: (H, W) bool, where the image holds data.
            least: probability of the predicted class below which a pixel is left out, as one without data.
        """
        rows = logits.split(_ROWS_AT_ONCE, dim=1)
        if least > 0:
            likely = torch.cat([each.softmax(0).amax(0) >= least for each in rows]).cpu().numpy()
            valid = likely if valid is None else likely & valid
        nats = torch.cat([shannon_entropy(each, 0) for each in rows])
        entropy = (nats / math.log(logits.shape[0])).clamp(0, 1).cpu().numpy()
        return cls(logits.argmax(0).to(torch.uint8).cpu().numpy(), entropy, valid)

    @classmethod
    def of_parts(
        cls,
        parts: Iterable[Part],
        size: tuple[int, int],
        valid: Mask = None,
        least: float = 0.0,
    ) -> Prediction:
        """Predict by the logits of the parts of an image; one is in memory at a time.

        Args:
            parts: of the image.
            size: H and W of the image.
            valid: as in :meth:`of`.
            least: as in :meth:`of`.
        """
        counted = np.ones(size, bool) if valid is None else valid.copy()
        classes = np.empty(size, np.uint8)
        entropy = np.empty(size, np.float32)
        for top, left, logits in parts:
            place = np.s_[top : top + logits.shape[2], left : left + logits.shape[3]]
            part = cls.of(logits[0], counted[place], least)
            classes[place] = part.classes
            entropy[place] = part.entropy
            counted[place] = part.valid
        return cls(classes, entropy, None if counted.all() else counted)

    @property
    def caption(self) -> str:
        """The mean entropy, for a title."""
        pixels, entropy = self.sums(256)
        return f"mean {entropy.sum() / pixels.sum():.2f}" if pixels.sum() else "no data"

    def sums(self, num_classes: int) -> Floats:
        """Return the number of counted pixels and their summed entropy by class, (2, C)."""
        sums = np.zeros((2, num_classes))
        for top in range(0, len(self.classes), _ROWS_AT_ONCE):  # numpy counts in 16 bytes a pixel
            rows = slice(top, top + _ROWS_AT_ONCE)
            counted = ... if self.valid is None else self.valid[rows]
            classes = self.classes[rows][counted].ravel()
            values = self.entropy[rows][counted].ravel()
            sums[0] += np.bincount(classes, minlength=num_classes)
            sums[1] += np.bincount(classes, values, num_classes)
        return sums

    def tiles(self, palette: Sequence[Color]) -> Tiles:
        """Return ``prediction`` and ``entropy`` in colours, (H, W, 3) each.

        Pixels without data are hatched.
        """
        tiles = {
            "prediction": coloured_prediction(self.classes, palette),
            "entropy": coloured_entropy(self.entropy),
        }
        if self.valid is not None:
            hatch = _hatch(self.valid.shape)
            for tile in tiles.values():
                np.copyto(tile, hatch, where=~self.valid[..., None])
        return tiles


def coloured_prediction(prediction: Ids, palette: Sequence[Color]) -> Picture:
    """Colour train ids (H, W) as (H, W, 3)."""
    return np.take(np.asarray(palette, np.uint8), prediction, axis=0)


def coloured_label(label: Ids, palette: Sequence[Color]) -> Picture:
    """Colour train ids (H, W) as (H, W, 3), and hatch ignored pixels."""
    counted = label < len(palette)
    coloured = coloured_prediction(np.where(counted, label, 0), palette)
    return np.where(counted[..., None], coloured, _hatch(label.shape))


def _hatch(shape: tuple[int, int]) -> Picture:
    """Draw stripes (H, W, 3) in two greys."""
    stripe = max(2, max(shape) // 100)
    rows, columns = np.ogrid[: shape[0], : shape[1]]
    greys = np.asarray(_IGNORED, np.uint8)
    return np.take(greys, (rows + columns) // stripe % 2, axis=0)


def coloured_entropy(entropy: NDArray[np.floating]) -> Picture:
    """Colour an entropy map (H, W) from 0 to 1 as (H, W, 3) in magma.

    The scale is the same for every image.
    """
    index = (entropy * np.float32(len(_MAGMA))).clip(0, len(_MAGMA) - 1).astype(np.uint8)
    return np.asarray(_MAGMA[index], np.uint8)


def wrong_pixels(
    image: Picture,
    label: Ids,
    prediction: Prediction,
    coloured: Picture,
) -> Tiles:
    """Draw wrong pixels in ``coloured`` over the image in light grey.

    Returns:
        (H, W, 3) ``wrong`` with all wrong pixels, and ``confidently-wrong`` with the wrong pixels
        of an entropy below :data:`CERTAIN`.
    """
    grey = Image.fromarray(image).convert("L")
    grey = grey.resize(label.shape[::-1], Image.Resampling.BILINEAR)
    black, white = _FADED
    light = (black + np.asarray(grey)[..., None] / 255 * (white - black)).astype(np.uint8)
    wrong = ((prediction.classes != label) & (label != IGNORE_INDEX))[..., None]
    certain = wrong & (prediction.entropy < CERTAIN)[..., None]
    return {
        "wrong": np.where(wrong, coloured, light),
        "confidently-wrong": np.where(certain, coloured, light),
    }
