"""Prediction of large images by overlapping tiles, without seams.

Tiles are joined at the resolution of the logits and begin at multiples of the network's stride, so that every tile has
the grid of the whole. Neighbours share a quarter of a side; there each counts less towards its end and nothing in the
last quarter.
Shapes: B batch, C classes, H × W the image's size, h × w that of its logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import groupby, pairwise, zip_longest
from operator import itemgetter

import torch
from torch import Tensor
from torch.nn import functional as F

from dem_apps.errors import InputError

#: Tiles begin at multiples of it and of the logits' stride: encoders halve their features five times.
GRID = 32


class TiledLogits:
    """The logits (B, C, h, w) of images of (H, W) pixels, by tiles of a side where they are larger; None for the whole.

    ``read`` gives (B, 3, ·, ·) of rows and columns, normalised.
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
        # of a side in the grid the stride is known exactly, whichever way the network rounds
        self._side = max(size) if side is None or side >= max(size) else side // GRID * GRID
        shape = min(self._side, height), min(self._side, width)
        self._first = forward(self._tile(0, 0))
        #: Whether they have the resolution of the images.
        self.full_size = self._first.shape[2:] == shape
        # along the side that a tile does not have whole: of a short one the logits may be rounded up by much
        axis = 0 if height > width else 1
        strides = _strides(shape[axis], self._first.shape[2 + axis])
        self._stride = strides[0]
        self._tops, self._lefts = (
            _starts(length, self._side, self._stride) for length in (height, width)
        )
        # first rows of weight 0, which are the tiles' above
        self._dropped = self._side // 4 // self._stride // 4
        reached = self._side - 2 * self._dropped * self._stride
        starts = [*pairwise(self._tops), *pairwise(self._lefts)]
        if any(after - before > reached for before, after in starts) or (
            starts and len(strides) > 1
        ):
            strided = " or ".join(map(str, strides))
            raise InputError(
                f"--tile: {side} is too small for this network, of stride {strided}; give a larger one"
            )

    @property
    def height(self) -> int:
        """h."""
        top = self._tops[-1]
        whole = self._size[0] - top >= min(self._side, self._size[0])
        return (
            top // self._stride
            + (self._first if whole else self._forward(self._tile(top, 0))).shape[2]
        )

    def whole(self) -> Tensor:
        """(B, C, h, w), in main memory where there are tiles."""
        parts = list(self.rows())
        if len(parts) == 1:
            return parts[0]
        whole = parts[0].new_empty(*parts[0].shape[:2], self.height, parts[0].shape[3])
        for part in whole.split([part.shape[2] for part in parts], 2):
            part.copy_(parts.pop(0))  # which is free then: the logits are in memory once
        return whole

    def rows(self) -> Iterator[Tensor]:
        """(B, C, ·, w) from top to bottom."""
        for _, row in groupby(self.blocks(), itemgetter(0)):
            parts = [block for *_, block in row]
            yield parts[0] if len(parts) == 1 else torch.cat(parts, 3)

    def blocks(self) -> Iterator[tuple[int, int, Tensor]]:
        """(B, C, ·, ·) with their first row and column, row by row; two tiles and what is shared are in memory."""
        if len(self._tops) == len(self._lefts) == 1:
            yield 0, 0, self._first
            return
        stride, first, width = self._stride, self._first, self._size[1]
        dropped = self._dropped
        # the last two rows of tiles may share nearly all of their rows, and are one
        rows_of_tiles = [[top] for top in self._tops[:-2]] + [self._tops[-2:]]
        ends = [rows[0] // stride + dropped for rows in rows_of_tiles[1:]]
        steps = [(below - top) // stride for top, below in pairwise(self._tops[:-1])]
        shared = max([first.shape[2] - step - 2 * dropped for step in steps], default=0)
        # the last of the channels is the sum of weights; networks that round up, or that have a feature on either
        # edge, have one column more
        above = torch.zeros(first.shape[0], first.shape[1] + 1, shared, -(-width // stride) + 1)
        start = 0
        for tops, end in zip_longest(rows_of_tiles, ends):
            beside, place = torch.zeros(1, 1, 1, 0), start - tops[0] // stride
            for left, right in zip_longest(self._lefts, self._lefts[1:]):
                sums, at, known = self._weighted(tops, left), left // stride, beside.shape[3]
                columns = sums.shape[3]
                sums[..., :known] += beside
                sums[..., place : place + shared, known:] += above[..., at + known : at + columns]
                done = sums.shape[2] if end is None else end - tops[0] // stride
                ready = columns if right is None else (right - left) // stride
                yield start, at, sums[:, :-1, place:done, :ready] / sums[:, -1:, place:done, :ready]
                if end is not None:
                    rest = sums[..., done : done + shared, :ready]
                    above[..., at : at + ready] = 0
                    above[..., : rest.shape[2], at : at + ready] = rest
                beside = sums[..., ready:]
            start = end

    def _weighted(self, tops: list[int], left: int) -> Tensor:
        """(B, C + 1, ·, ·) logits of tiles below each other, times their weights, and the sum of these."""
        parts, (height, width), side, stride = list[Tensor](), self._size, self._side, self._stride
        for top in tops:
            logits, ramps = (
                self._first if top == left == 0 else self._forward(self._tile(top, left)),
                [],
            )
            for number, begin, whole in zip(
                logits.shape[2:], (top, left), (height, width), strict=True
            ):
                ramps.append(_ramp(number, side // 4 // stride, begin > 0, begin + side < whole))
            parts.append(
                torch.cat([logits.float().cpu(), torch.ones_like(logits[:, :1], device="cpu")], 1)
            )
            parts[-1] *= ramps[0][:, None] * ramps[1]
        if len(parts) == 1:
            return parts[0]
        below = (tops[1] - tops[0]) // stride
        sums = F.pad(parts[0], (0, 0, 0, max(0, below + parts[1].shape[2] - parts[0].shape[2])))
        sums[:, :, below : below + parts[1].shape[2]] += parts[1]
        return sums

    def _tile(self, top: int, left: int) -> Tensor:
        height, width = self._size
        return self._read(
            slice(top, min(top + self._side, height)), slice(left, min(left + self._side, width))
        )


def _strides(length: int, features: int) -> list[int]:
    """Pixels a feature, more than one number where that can't be told; some networks have one on either edge."""
    exact = [
        length // number for number in (features, features - 1) if number and length % number == 0
    ]
    if fine := [each for each in exact if GRID % each == 0] or exact[:1]:
        return fine[:1]
    rounded = [
        each for each in range(1, length) if features in (length // each, -(-length // each))
    ]
    return rounded or [max(1, round(length / features))]


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
