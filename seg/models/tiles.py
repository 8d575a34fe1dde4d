"""Prediction of large images by overlapping tiles, without seams.

Tiles are joined at the resolution of the logits and begin at multiples of the network's stride, so that every tile has
the grid of the whole. Neighbours share a quarter of a side; there each counts less towards its end and nothing in the
last quarter.
Shapes: B batch, C classes, H × W the image's size, h × w that of its logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dem_apps.errors import InputError

#: Tiles begin at multiples of it and of the logits' stride: encoders halve their features five times.
GRID = 32


class TiledLogits:
    """The logits (B, C, h, w) of images of (H, W) pixels.

    Images that are larger than a tile are predicted by overlapping tiles.

    Args:
        forward: the network, (B, 3, ·, ·) → (B, C, ·, ·).
        size: (H, W).
        read: gives the normalised pixels (B, 3, ·, ·) of some rows and columns, which may end beyond the image.
        side: of a tile; None is the whole image.

    Raises:
        InputError: a side that is too small for the network's stride, or no multiple of it.
    """

    def __init__(
        self,
        forward: Callable[[Tensor], Tensor],
        size: tuple[int, int],
        read: Callable[[slice, slice], Tensor],
        side: int | None,
    ) -> None:
        self._forward, self._size, self._read = forward, size, read
        height, width = size
        longer = max(size)
        self._side = longer if side is None or side >= longer else side // GRID * GRID
        self._first = forward(self._tile(0, 0))
        self._stride = 1
        if self._side < longer:
            features = self._first.shape[2 if height > width else 3]
            self._stride = _stride(self._side, features)
        self._tops = _starts(height, self._side, self._stride)
        self._lefts = _starts(width, self._side, self._stride)
        #: rows and columns of weight 0 at a tile's edge beside a neighbour
        self._dropped = self._side // 4 // self._stride // 4
        covered = self._side - 2 * self._dropped * self._stride
        # no step is longer than the first
        if max(*self._tops[:2], *self._lefts[:2]) > covered:
            raise InputError(
                f"--tile: {side} is too small for this network, of stride {self._stride}; give a larger one"
            )

    @property
    def height(self) -> int:
        """h."""
        top = self._tops[-1]
        last = self._first
        if self._size[0] - top < min(self._side, self._size[0]):
            last = self._forward(self._tile(top, 0))
        return top // self._stride + last.shape[2]

    def whole(self) -> Tensor:
        """(B, C, h, w), in main memory where there are tiles."""
        return torch.cat(list(self.rows()), 2)

    def rows(self) -> Iterator[Tensor]:
        """(B, C, ·, w) from top to bottom; two rows of tiles are in memory."""
        if len(self._tops) == len(self._lefts) == 1:
            yield self._first
            return
        start, sums = 0, self._row_of_tiles(0)  # weighted sums from row ``start`` on
        for below in self._tops[1:]:
            # the first rows of the tiles below have weight 0
            done = below // self._stride + self._dropped - start
            yield _mean(sums[:, :, :done])
            start += done
            tiles = self._row_of_tiles(below)[:, :, self._dropped :]
            sums = _joined(sums[:, :, done:], tiles, 0, dim=2)
        yield _mean(sums)

    def _row_of_tiles(self, top: int) -> Tensor:
        """(B, C + 1, ·, w) logits of the tiles beside each other times their weights, and the sum of the weights."""
        sums = self._weighted(top, 0)
        for left in self._lefts[1:]:
            sums = _joined(sums, self._weighted(top, left), left // self._stride, dim=3)
        return sums

    def _weighted(self, top: int, left: int) -> Tensor:
        """(B, C + 1, ·, ·) logits of a tile times their weights, and the weights."""
        logits = self._first if top == left == 0 else self._forward(self._tile(top, left))
        logits = logits.float().cpu()
        height, width = self._size
        overlap = self._side // 4 // self._stride
        down = _ramp(logits.shape[2], overlap, top > 0, top + self._side < height)
        across = _ramp(logits.shape[3], overlap, left > 0, left + self._side < width)
        return torch.cat([logits, torch.ones_like(logits[:, :1])], 1) * (down[:, None] * across)

    def _tile(self, top: int, left: int) -> Tensor:
        return self._read(slice(top, top + self._side), slice(left, left + self._side))


def _mean(sums: Tensor) -> Tensor:
    """(B, C, ·, ·) weighted sums, divided by the sums of the weights behind them."""
    return sums[:, :-1] / sums[:, -1:]


def _joined(sums: Tensor, part: Tensor, start: int, dim: int) -> Tensor:
    """Sums to which a part is added from ``start`` on, in place, and continued by what reaches beyond them."""
    shared, more = part.tensor_split([sums.shape[dim] - start], dim)
    sums.narrow(dim, start, shared.shape[dim]).add_(shared)
    return torch.cat([sums, more], dim)


def _stride(side: int, features: int) -> int:
    """Pixels a feature; some networks have a feature on either edge."""
    exact = [side // number for number in (features, features - 1) if number and side % number == 0]
    usual = [stride for stride in exact if GRID % stride == 0] or exact
    if not usual:
        raise InputError(
            f"--tile: {side} pixels have {features} features, so {side} is no multiple of this network's stride; give "
            f"a multiple of the stride and of {GRID}"
        )
    return usual[0]


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
    dropped = overlap // 4
    rising = ((torch.arange(number) - dropped + 1) / (overlap - 2 * dropped + 1)).clamp(0, 1)
    weights = torch.ones(number)
    if before:
        weights *= rising
    if after:
        weights *= rising.flip(0)
    return weights
