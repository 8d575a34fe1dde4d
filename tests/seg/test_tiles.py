"""Tiles give what the whole image gives: logits before they are upsampled, and scores and maps of the commands."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from support import cases, python, refuses
from support.untrained_run import write_run
from torch import nn

import seg.evaluate
from seg import load
from seg.export import ExportConfig, export
from seg.models.network import upsampled, upsampled_bands
from seg.models.settings import ModelConfig
from seg.models.tiles import TiledLogits


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

    tiles = TiledLogits(forward, (461, 617), lambda *part: images[:, :, *part], 256).whole()
    assert max(max(shape) for shape in seen) == 256
    assert len(seen) >= 6
    assert tiles.shape == whole.shape
    scale = float(whole.abs().max())
    torch.testing.assert_close(tiles / scale, whole / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", [64, 150, 333])
@pytest.mark.parametrize("stride", [4, 16, 32])
@pytest.mark.parametrize(
    "size", [(461, 617), (512, 1024), (900, 340), (300, 301), (65, 400), (999, 101)]
)
def test_the_stride_is_exact_for_any_side(stride, side, size):
    model, images = nn.AvgPool2d(stride, ceil_mode=True), torch.rand(1, 3, *size)
    tiles = TiledLogits(model, size, lambda *part: images[:, :, *part], side).whole()
    torch.testing.assert_close(tiles, model(images))


def test_tiles_that_cannot_be_joined_are_refused():
    """Patches of 14 begin where tiles may begin every 224 pixels."""
    model, images = nn.AvgPool2d(14), torch.rand(1, 3, 700, 1400)
    given = model, (700, 1400), lambda *part: images[:, :, *part]
    torch.testing.assert_close(TiledLogits(*given, 448).whole(), model(images))
    refuses("--tile: 230 .* 14", TiledLogits, *given, 230)
    refuses("--tile: 320 .* 22 features", TiledLogits, *given, 320)


@torch.no_grad()
def test_a_network_that_sees_everything_has_no_step_at_a_seam():
    """Tiles of a network with global pooling disagree; blending spreads that over the overlap."""

    def forward(tile):
        return tile.mean((2, 3), keepdim=True).expand_as(tile)

    images = torch.linspace(0, 1, 512).expand(1, 3, 128, 512).contiguous()
    row = TiledLogits(forward, (128, 512), lambda *part: images[:, :, *part], 128).whole()[0, 0, 64]
    assert row.diff().abs().max() < 0.25 * (row.max() - row.min()) / 3


@pytest.mark.parametrize("align_corners", [True, False])
@cases(((9, 13), (70, 101)), ((1, 5), (7, 7)), ((300, 20), (300, 20)), ((40, 8), (17, 5)))
def test_bands_are_the_whole_upsampled(small, large, align_corners):
    logits = torch.randn(1, 3, *small)
    strips = list(upsampled_bands([logits], small[0], large, align_corners))
    bands = [band for *_, band in strips]
    assert [top for top, *_ in strips] == list(range(0, large[0], 128))
    assert max(band.shape[2] for band in bands) <= 128
    torch.testing.assert_close(
        torch.cat(bands, 2), upsampled(logits, large, align_corners), rtol=1e-4, atol=1e-5
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_config):
    """A network of stride 8 with a small field: its encoder is cut short."""
    model = ModelConfig("unet", "resnet18", depth=3)
    return write_run(
        tmp_path_factory.mktemp("runs") / "run", 0, target=tiny_config.target, model=model
    )


def test_scores_by_tiles_are_those_of_the_whole(run, tmp_path, run_here):
    def evaluated(name, *flags):
        run_here(seg.evaluate.main, "--run", run, "--out", tmp_path / name, *flags)
        return json.loads((tmp_path / name).read_text())

    whole, tiled = evaluated("whole"), evaluated("tiled", "--tile", "64")
    assert tiled["mean_entropy"] == pytest.approx(whole["mean_entropy"], rel=0.05)
    assert tiled["mean_entropy"] != whole["mean_entropy"]
    assert tiled["protocol"]["tile"] == 64
    assert "tile" not in whole["protocol"]
    assert evaluated("one", "--tile", "512")["mean_entropy"] == whole["mean_entropy"]


def test_a_large_image_is_no_thumbnail_in_tiles(run, tmp_path, capsys):
    small = tmp_path / "small"  # as if it had been trained on images of 64 × 32
    shutil.copytree(run, small)
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["target"]["size"] = [64, 32]
    (small / "config.yaml").write_text(yaml.safe_dump(settings))
    image, images = (
        np.random.default_rng(0).integers(0, 256, (256, 256, 3)).astype(np.uint8),
        tmp_path / "images",
    )
    images.mkdir()
    Image.fromarray(image).save(images / "a.png")

    def exported(name, run, **flags):
        capsys.readouterr()
        config = ExportConfig(
            run=str(run), images=str(images), out=str(tmp_path / name), device="cpu", **flags
        )
        assert not export(config)
        return (tmp_path / name / "a_prediction.png").read_bytes(), capsys.readouterr().out

    native, _ = exported("native", run, tile=128, size=None)
    assert exported("tiled", small, tile=128)[0] == native
    shrunk, said = exported("shrunk", small)
    assert shrunk != native
    assert "64×32" in said
    assert "--tile" in said
    assert exported("asked", small, tile=128, size="own")[0] == shrunk
    loaded = load(small, tile=128, device="cpu").predict(image)
    whole = load(run, size=None, device="cpu").predict(image)
    assert torch.equal(
        loaded.logits, load(run, size=None, tile=128, device="cpu").predict(image).logits
    )
    assert (
        np.abs(loaded.probabilities - whole.probabilities).mean() < 0.2 * whole.probabilities.std()
    )


@pytest.mark.slow
def test_memory_of_tiles_grows_by_the_pictures_alone(tmp_path):
    """In bytes a pixel that is added: the logits of 32 classes have 128, the picture and its maps about 25."""
    program = """
import resource, sys
import torch
from PIL import Image
from seg.export import ExportConfig, export
import own
for number, height in enumerate((256, 1536)):
    Image.new("RGB", (512, height)).save(f"{number}.png")
    export(ExportConfig(model="own:network", images=f"{number}.png", out=f"out{number}", tile=128, device="cpu"))
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    own = "import torch\ndef network(): return torch.nn.Conv2d(3, 32, 1), {'mean': [0.5] * 3, 'std': [0.5] * 3}\n"
    (tmp_path / "own.py").write_text(own)
    peaks = re.findall(r"peak (\d+)", python("-c", program, folder=tmp_path))
    small, large = (1024 * int(peak) for peak in peaks)
    assert (large - small) / (512 * 1280) < 50
