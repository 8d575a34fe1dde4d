"""Large images by overlapping tiles, without seams: the one way to them for scores, exports and ``seg.load``.

Tiles are joined at the resolution of the logits, before they are upsampled: what is upsampled with aligned corners has
another scale in a tile than in the image, and would not meet its neighbour. They begin at multiples of the network's
stride, so that every tile has the grid of the whole. In an overlap each tile counts less towards its end and nothing in
the last quarter, where it knows only one side; so a network that sees no further than that gives, everywhere, what it
would give on the whole image, up to rounding.

Shapes: B batch, C classes, H × W the image's size, h × w that of its logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dem_apps.errors import InputError
from seg.config import LEAST_TILE
from seg.models.description import Description

#: Tiles begin at multiples of it and of the logits' stride: encoders halve their features five times.
GRID = 32


@dataclass(frozen=True)
class Tiling:
    """How an image is cut.

    Args:
        side: pixels of a tile's sides.
        overlap: pixels that neighbours share at least, up to the network's stride.
    """

    side: int
    overlap: int


def tiling(side: int | None, overlap: int | None) -> Tiling | None:
    """The cut that ``--tile`` and ``--tile-overlap`` say; None without the first.

    Raises:
        InputError: an overlap without tiles, or one that leaves nothing of a tile.
    """
    if side is None:
        if overlap is not None:
            raise InputError("--tile-overlap: belongs to --tile, which is not given")
        return None
    if side < LEAST_TILE:
        raise InputError(f"--tile: expected {LEAST_TILE} pixels or more, got {side}")
    overlap = side // 4 if overlap is None else overlap
    if not 0 <= overlap <= side - GRID:
        raise InputError(f"--tile-overlap: expected 0 to {side - GRID}, {GRID} less than --tile, got {overlap}")
    return Tiling(side, overlap)


class Sliceable(Protocol):
    """Images (B, 3, H, W), normalised, as a tensor has them or as they are made when they are asked for."""

    @property
    def shape(self) -> Sequence[int]:
        """(B, 3, H, W)."""

    def __getitem__(self, parts: tuple[slice, ...]) -> Tensor: ...


@dataclass(frozen=True)
class TilesOfImage:
    """One image whose tiles are normalised when it is their turn: the whole of a 16-bit scene would be twice as large.

    Args:
        values: (H, W, B) as read.
        valid: (H, W), False where it holds no data; None is everywhere.
        description: of the network.
        device: where tiles go.
    """

    values: NDArray[Any]
    valid: NDArray[np.bool_] | None
    description: Description
    device: torch.device

    @property
    def shape(self) -> Sequence[int]:
        """(1, B, H, W)."""
        height, width, bands = self.values.shape
        return (1, bands, height, width)

    def __getitem__(self, parts: tuple[slice, ...]) -> Tensor:
        """(1, B, h, w) of ``[:, :, rows, columns]``."""
        place = parts[2:]
        valid = None if self.valid is None else self.valid[place]
        return self.description.normalised(self.values[place], valid)[None].to(self.device)


def tiled_logits(forward: Callable[[Tensor], Tensor], images: Sliceable, cut: Tiling | None) -> Tensor:
    """What a network gives on images, by tiles where they are larger than one.

    The network's memory is that of a tile. The logits of the whole, (B, C, h, w), lie in the main memory.

    Args:
        forward: (B, 3, H, W) → (B, C, h, w), with one stride k: about H / k rows of logits, and W / k columns.
        images: normalised, on the network's device.
        cut: None is the whole image at once.

    Returns:
        float32 on the CPU, or as ``forward`` returned it where one tile holds the image.
    """
    height, width = images.shape[2:]
    if cut is None or max(height, width) <= cut.side:
        return forward(images[:, :, :, :])
    first = forward(images[:, :, : cut.side, : cut.side])
    # along the side that a tile does not have whole: of a short one the logits may be rounded up by much
    longest = 2 if height > width else 3
    stride = max(1, round(cut.side / first.shape[longest]))
    grid = math.lcm(GRID, stride)
    joined = _Joined(first, (height, width), stride, cut.overlap // stride)
    for top in _starts(height, cut, grid):
        for left in _starts(width, cut, grid):
            tile = images[:, :, top : top + cut.side, left : left + cut.side]
            logits = first if top == left == 0 else forward(tile)
            joined.add(logits, (top, left), (tile.shape[2], tile.shape[3]))
    return joined.result()


class _Joined:
    """Sums of weighted logits, and of the weights.

    Args:
        first: logits of the first tile, (B, C, ·, ·).
        size: (H, W).
        stride: of the logits.
        overlap: of neighbours, in logits.
    """

    def __init__(self, first: Tensor, size: tuple[int, int], stride: int, overlap: int) -> None:
        self.size, self.stride, self.overlap = size, stride, overlap
        # one more than there may be: networks that round up, or that have a feature on either edge
        most = tuple(-(-side // stride) + 1 for side in size)
        self.sums = torch.zeros(*first.shape[:2], *most)
        self.weights = torch.zeros(most)
        self.end = [0, 0]

    def add(self, logits: Tensor, start: tuple[int, int], pixels: tuple[int, int]) -> None:
        """Add a tile that begins at ``start`` in the image and has so many ``pixels``."""
        ramps, places = [], []
        for axis, (begin, side) in enumerate(zip(start, pixels, strict=True)):
            at = begin // self.stride
            number = min(logits.shape[2 + axis], self.sums.shape[2 + axis] - at)
            last = begin + side >= self.size[axis]
            ramps.append(_ramp(number, self.overlap, begin > 0, not last))
            places.append(slice(at, at + number))
            self.end[axis] = max(self.end[axis], at + number)
        weight = ramps[0][:, None] * ramps[1]
        rows, columns = places
        own = logits[:, :, : weight.shape[0], : weight.shape[1]].float().cpu()
        self.sums[:, :, rows, columns] += own * weight
        self.weights[rows, columns] += weight

    def result(self) -> Tensor:
        """(B, C, h, w)."""
        rows, columns = self.end
        sums, weights = self.sums[:, :, :rows, :columns], self.weights[:rows, :columns]
        return sums.div_(weights)


def _starts(length: int, cut: Tiling, grid: int) -> list[int]:
    """Where tiles begin along a side: multiples of the grid, the last one as long as the others or nearly so."""
    if length <= cut.side:
        return [0]
    step = max(grid, (cut.side - cut.overlap) // grid * grid)
    last = -(-(length - cut.side) // grid) * grid
    return [*range(0, last, step), last]


def _ramp(number: int, overlap: int, before: bool, after: bool) -> Tensor:
    """Weights along a tile: 1 in the middle; towards a neighbour they fall to 0 before its last quarter of overlap."""
    weights = torch.ones(number)
    if overlap > 0:
        dropped = overlap // 4
        inside = overlap - 2 * dropped
        places = torch.arange(number) - dropped
        rising = ((places + 1) / (inside + 1)).clamp(0, 1)
        if before:
            weights = weights * rising
        if after:
            weights = weights * rising.flip(0)
    return weights
