from __future__ import annotations

import numpy as np
import pytest
import torch

from seg.data.pixel_format import normalised
from seg.data.statistics import IMAGES, spread_batches

CPU = torch.device("cpu")


def image(index: int, width: int = 4) -> torch.Tensor:
    return normalised(np.full((3, width, 3), index, np.uint8))


def indices(batches) -> list[list[int]]:
    """Which image each row of each batch is, by its value."""
    levels = [float(image(index)[0, 0, 0]) for index in range(200)]
    return [[int(np.abs(np.array(levels) - float(row[0, 0, 0])).argmin()) for row in batch] for batch in batches]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 17, 50])
def test_every_image_comes_once_and_no_batch_is_left_with_the_rest(count):
    got = indices(spread_batches(image, count, CPU))
    assert sorted(index for batch in got for index in batch) == list(range(count))
    sizes = [len(batch) for batch in got]
    assert max(sizes) <= IMAGES
    assert max(sizes) - min(sizes) <= 1
    assert got[0][:2] == [0, len(got)][: len(got[0])]


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_the_batches_of_one(processes):
    whole = indices(spread_batches(image, 30, CPU))
    shares = [indices(spread_batches(image, 30, CPU, (rank, processes))) for rank in range(processes)]
    assert sorted(batch for share in shares for batch in share) == sorted(whole)
