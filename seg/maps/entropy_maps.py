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
from seg.data.labels import IGNORE_INDEX, ClassSet

Colour = tuple[int, int, int]

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

    classes: NDArray[np.uint8]  #: (H, W) uint8 train ids
    entropy: NDArray[np.float32]  #: (H, W) float32, 0 to 1: Shannon entropy / log C
    #: (H, W), False where the image holds no data and nothing counts; None for data everywhere.
    valid: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, logits: Tensor, valid: NDArray[np.bool_] | None = None) -> Prediction:
        """From (C, H, W) logits."""
        nats = torch.cat([shannon_entropy(rows, 0) for rows in logits.split(_ROWS_AT_ONCE, dim=1)])
        entropy = (nats / math.log(logits.shape[0])).clamp(0, 1).cpu().numpy()
        return cls(logits.argmax(0).to(torch.uint8).cpu().numpy(), entropy, valid)

    @classmethod
    def of_bands(cls, bands: Iterable[Tensor], valid: NDArray[np.bool_] | None = None) -> Prediction:
        """From bands of (1, C, ·, W) logits, from top to bottom; one of them is in memory at a time."""
        parts = [Prediction.of(band[0]) for band in bands]
        classes, entropy = (np.concatenate([getattr(part, name) for part in parts]) for name in ("classes", "entropy"))
        return cls(classes, entropy, valid)

    @property
    def caption(self) -> str:
        """The mean entropy, for a title."""
        entropy = self.counted[1]
        return f"mean {entropy.mean():.2f}" if entropy.size else "no data"

    @property
    def counted(self) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Classes and entropy of the pixels that count; (H, W) each where all do, else (N,)."""
        if self.valid is None:
            return self.classes, self.entropy
        return self.classes[self.valid], self.entropy[self.valid]

    def pixels(self, num_classes: int) -> NDArray[np.int64]:
        """(C,) number of counted pixels of each class."""
        return np.bincount(self.counted[0].ravel(), minlength=num_classes)

    def tiles(self, palette: Sequence[Colour]) -> dict[str, NDArray[np.uint8]]:
        """(H, W, 3) ``prediction`` and ``entropy`` in colours; pixels without data are hatched."""
        tiles = {"prediction": coloured_prediction(self.classes, palette), "entropy": coloured_entropy(self.entropy)}
        if self.valid is not None:
            nothing = ~self.valid
            for tile in tiles.values():
                tile[nothing] = _hatch(nothing.shape)[nothing]
        return tiles

    def ids(self, classes: ClassSet) -> NDArray[np.uint8]:
        """(H, W) label ids in the class set's numbering; that of :attr:`ClassSet.no_data` where there is none."""
        return classes.to_ids(self.classes, self.valid)


def coloured_prediction(prediction: NDArray[np.integer], palette: Sequence[Colour]) -> NDArray[np.uint8]:
    """(H, W) train ids → (H, W, 3) colours."""
    return np.asarray(np.asarray(palette, np.uint8)[prediction])


def coloured_label(label: NDArray[np.integer], palette: Sequence[Colour]) -> NDArray[np.uint8]:
    """(H, W) train ids → (H, W, 3) colours; ignored pixels are hatched."""
    counted = label < len(palette)
    coloured = coloured_prediction(np.where(counted, label, 0), palette)
    return np.where(counted[..., None], coloured, _hatch(label.shape))


def _hatch(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """(H, W, 3) stripes in two greys."""
    stripe = max(2, max(shape) // 100)
    # in small integers, which take as much memory as the image does
    rows, columns = (np.arange(side) % (2 * stripe) for side in shape)
    diagonals = np.add.outer(rows.astype(np.uint16), columns.astype(np.uint16)) // np.uint16(stripe) % 2
    return np.asarray(np.asarray(_IGNORED, np.uint8)[diagonals.astype(np.uint8)])


def coloured_entropy(entropy: NDArray[np.floating]) -> NDArray[np.uint8]:
    """(H, W) in 0 to 1 → (H, W, 3) in the colour map magma, on the same scale for every image."""
    index = (entropy * np.float32(len(_MAGMA))).clip(0, len(_MAGMA) - 1).astype(np.uint8)
    return np.asarray(_MAGMA[index], np.uint8)


def overlay(image: NDArray[np.uint8], prediction: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Coloured classes blended over the image: (H, W, 3) both; 0.55 of a pixel is the class."""
    return np.asarray(Image.blend(Image.fromarray(image), Image.fromarray(prediction), 0.55), dtype=np.uint8)


def wrong_pixels(
    image: NDArray[np.uint8], label: NDArray[np.uint8], prediction: Prediction, coloured: NDArray[np.uint8],
) -> dict[str, NDArray[np.uint8]]:  # fmt: skip
    """The image in light grey, (H, W, 3), with wrong pixels in ``coloured``: all, and those below :data:`CERTAIN`."""
    grey = Image.fromarray(image).convert("L").resize((label.shape[1], label.shape[0]), Image.Resampling.BILINEAR)
    black, white = _FADED
    light = (black + np.asarray(grey) / 255 * (white - black)).astype(np.uint8)
    faded = np.repeat(light[..., None], 3, axis=2)
    wrong = (prediction.classes != label) & (label != IGNORE_INDEX)
    certain = wrong & (prediction.entropy < CERTAIN)
    return {
        name: np.where(shown[..., None], coloured, faded)
        for name, shown in (("wrong", wrong), ("confidently-wrong", certain))
    }
