"""Prediction of large images by overlapping tiles, without seams.

Tiles are joined at the resolution of the logits and begin at multiples of the network's stride, so that every tile has
the grid of the whole. Neighbours share a quarter of a side; there each counts less towards its end and nothing in the
last quarter.
Shapes: B batch, C classes, H × W the image's size, h × w that of its logits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
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
    return joined(tiled_rows(forward, images, side))


def joined(rows: Iterable[Tensor]) -> Tensor:
    """(B, C, h, w) of rows (B, C, ·, w); both are in memory once."""
    parts = list(rows)
    if len(parts) == 1:
        return parts[0]
    whole = parts[0].new_empty(*parts[0].shape[:2], sum(part.shape[2] for part in parts), parts[0].shape[3])
    for part in whole.split([part.shape[2] for part in parts], 2):
        part.copy_(parts.pop(0))  # which is free then: the logits are in memory once
    return whole


def tiled_rows(
    forward: Callable[[Tensor], Tensor], images: Tensor | TilesOfImage, side: int | None
) -> Iterator[Tensor]:
    """The rows of :func:`tiled_logits`, (B, C, ·, w), from top to bottom; those of one row of tiles are in memory."""
    height, width = images.shape[2:]
    if side is None or max(height, width) <= side:
        yield forward(images[:, :, :, :])
        return
    first = forward(images[:, :, :side, :side])
    # along the side that a tile does not have whole: of a short one the logits may be rounded up by much
    stride = max(1, round(side / first.shape[2 if height > width else 3]))
    tops = _starts(height, side, stride)
    # one more than there may be: networks that round up, or that have a feature on either edge
    sums = torch.zeros(*first.shape[:2], -(-min(side, height) // stride) + 1, -(-width // stride) + 1)
    weights = torch.zeros(sums.shape[2:])
    for top, below in itertools.zip_longest(tops, tops[1:]):
        for left in _starts(width, side, stride):
            tile = images[:, :, top : top + side, left : left + side]
            logits, ramps = first if top == left == 0 else forward(tile), []
            at = left // stride
            rows, columns = min(logits.shape[2], len(weights)), min(logits.shape[3], weights.shape[1] - at)
            for number, begin, whole in ((rows, top, height), (columns, left, width)):
                ramps.append(_ramp(number, side // 4 // stride, begin > 0, begin + side < whole))
            weight, place = ramps[0][:, None] * ramps[1], (slice(rows), slice(at, at + columns))
            sums[:, :, *place] += logits[:, :, :rows, :columns].float().cpu() * weight
            weights[place] += weight
        done = rows if below is None else (below - top) // stride
        yield sums[:, :, :done, : at + columns] / weights[:done, : at + columns]
        for kept in (sums, weights):  # what the next row of tiles adds to
            kept[..., : kept.shape[-2] - done, :] = kept[..., done:, :].clone()
            kept[..., kept.shape[-2] - done :, :] = 0


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
