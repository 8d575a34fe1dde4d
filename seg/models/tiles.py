"""Prediction of large images by overlapping tiles, without seams.

Tiles are joined at the resolution of the logits and begin at multiples of the network's stride, so that every tile has
the grid of the whole. Neighbours share a quarter of a side; there each counts less towards its end and nothing in the
last quarter.
Shapes: B batch, C classes, H × W the image's size, h × w that of its logits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Tiles begin at multiples of it and of the logits' stride: encoders halve their features five times.
GRID = 32


@dataclass(frozen=True)
class TilesOfImage:
    """One image whose tiles are normalised one by one: the whole of a 16-bit scene would be twice as large."""

    values: NDArray[Any]  #: (H, W, B) as read
    valid: NDArray[np.bool_] | None  #: (H, W), False where they hold no data; None for everywhere
    #: (h, w, B) pixels and (h, w) where they hold data → (B, h, w) as the network takes them
    normalised: Callable[[NDArray[Any], NDArray[np.bool_] | None], Tensor]
    device: torch.device

    @property
    def shape(self) -> tuple[int, ...]:
        """(1, B, H, W)."""
        height, width, bands = self.values.shape
        return (1, bands, height, width)

    def __getitem__(self, parts: tuple[slice, ...]) -> Tensor:
        """(1, B, h, w) of ``[:, :, rows, columns]``."""
        place = parts[2:]
        valid = None if self.valid is None else self.valid[place]
        return self.normalised(self.values[place], valid)[None].to(self.device)


def tiled_logits(forward: Callable[[Tensor], Tensor], images: Tensor | TilesOfImage, side: int | None) -> Tensor:
    """Predict (B, 3, H, W) images by tiles of a side where they are larger; (B, C, h, w) logits in main memory."""
    height, width = images.shape[2:]
    if side is None or max(height, width) <= side:
        return forward(images[:, :, :, :])
    first = forward(images[:, :, :side, :side])
    # along the side that a tile does not have whole: of a short one the logits may be rounded up by much
    stride = max(1, round(side / first.shape[2 if height > width else 3]))
    # one more than there may be: networks that round up, or that have a feature on either edge
    sums = torch.zeros(*first.shape[:2], *(-(-whole // stride) + 1 for whole in (height, width)))
    weights, places = torch.zeros(sums.shape[2:]), [slice(0), slice(0)]
    for start in itertools.product(_starts(height, side, stride), _starts(width, side, stride)):
        tile = images[:, :, start[0] : start[0] + side, start[1] : start[1] + side]
        logits, ramps = first if start == (0, 0) else forward(tile), []
        for axis, (begin, whole) in enumerate(zip(start, (height, width), strict=True)):
            at = begin // stride
            number = min(logits.shape[2 + axis], weights.shape[axis] - at)
            places[axis] = slice(at, at + number)
            ramps.append(_ramp(number, side // 4 // stride, begin > 0, begin + side < whole))
        weight = ramps[0][:, None] * ramps[1]
        sums[:, :, places[0], places[1]] += logits[:, :, : len(weight), : weight.shape[1]].float().cpu() * weight
        weights[places[0], places[1]] += weight
    rows, columns = (place.stop for place in places)  # of the last tile
    return sums[:, :, :rows, :columns].div_(weights[:rows, :columns])


def _starts(length: int, side: int, stride: int) -> list[int]:
    """First pixels of the tiles along a side: multiples of a grid; the last tile is about as long as the others."""
    if length <= side:
        return [0]
    grid = math.lcm(GRID, stride)
    step = max(grid, (side - side // 4) // grid * grid)
    last = -(-(length - side) // grid) * grid
    return [*range(0, last, step), last]


def _ramp(number: int, overlap: int, before: bool, after: bool) -> Tensor:
    """Weights along a tile: 1 in the middle; towards a neighbour they fall to 0 before its last quarter of overlap."""
    weights, dropped = torch.ones(number), overlap // 4
    rising = ((torch.arange(number) - dropped + 1) / (overlap - 2 * dropped + 1)).clamp(0, 1)
    if overlap > 0 and before:
        weights = weights * rising
    return weights * rising.flip(0) if overlap > 0 and after else weights
