"""Tiles give what the whole image gives: the grid, the weights and the joining of logits before they are upsampled."""

import pytest
import torch
from torch import nn

from seg.models.network import upsampled, upsampled_bands
from seg.models.tiles import tiled_logits


def network(stride, ceil=False):
    """A receptive field of a few pixels on either side, at several strides; ``ceil`` has features on both edges."""
    torch.manual_seed(stride)
    layers = []
    channels, left = 3, stride
    while left > 1:
        layers += [nn.Conv2d(channels, 6, 3, 2, 1), nn.ReLU()]
        channels, left = 6, left // 2
    if ceil:
        layers.append(nn.MaxPool2d(3, 2, 1, ceil_mode=True))
    return nn.Sequential(*layers, nn.Conv2d(channels, 4, 3, 1, 1)).eval()


@pytest.mark.parametrize(("stride", "ceil"), [(1, False), (8, False), (4, True)])
@torch.no_grad()
def test_a_network_that_sees_little_gives_the_whole_images_logits(stride, ceil):
    model = network(stride, ceil)
    images = torch.randn(2, 3, 461, 617, generator=torch.Generator().manual_seed(0))
    whole = model(images)
    seen = []

    def forward(tile):
        seen.append(tuple(tile.shape[2:]))
        return model(tile)

    tiles = tiled_logits(forward, images, 256)
    assert max(max(shape) for shape in seen) == 256
    assert len(seen) >= 6
    assert tiles.shape == whole.shape
    scale = float(whole.abs().max())
    torch.testing.assert_close(tiles / scale, whole / scale, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_network_that_sees_everything_has_no_step_at_a_seam():
    """Tiles of a network with global pooling disagree; blending spreads that over the overlap."""

    def forward(tile):
        return tile.mean((2, 3), keepdim=True).expand_as(tile)

    images = torch.linspace(0, 1, 512).expand(1, 3, 128, 512).contiguous()
    row = tiled_logits(forward, images, 128)[0, 0, 64]
    assert row.diff().abs().max() < 0.25 * (row.max() - row.min()) / 3


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize(
    ("small", "large"), [((9, 13), (70, 101)), ((1, 5), (7, 7)), ((300, 20), (300, 20)), ((40, 8), (17, 5))]
)
def test_bands_are_the_whole_upsampled(small, large, align_corners):
    logits = torch.randn(1, 3, *small)
    bands = list(upsampled_bands([logits], small[0], large, align_corners, rows=32))
    assert max(band.shape[2] for band in bands) <= 32
    torch.testing.assert_close(torch.cat(bands, 2), upsampled(logits, large, align_corners), rtol=1e-4, atol=1e-5)
