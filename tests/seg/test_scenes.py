"""Scenes that are read by windows: the files of a scene read whole, one GeoTIFF with its coordinates."""

import numpy as np
import pytest
import torch
from PIL import Image
from support.scenes import rasterio, write_scene

from seg.adapt import AdaptConfig, adapt
from seg.adaptation.images import ImageFolder
from seg.data import rasters
from seg.export import ExportConfig, export
from seg.inference import export_images
from seg.trained.description import Description

NETWORKS = """
from torch import nn
FACTS = {"mean": [0.4] * 3, "std": [0.2] * 3}
def fine(): return nn.Sequential(nn.Conv2d(3, 6, 5, 1, 2), nn.ReLU(), nn.Conv2d(6, 4, 3, 1, 1)), FACTS
def coarse(): return nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 4, 3, 2, 1)), FACTS
def normed():
    return nn.Sequential(nn.Conv2d(3, 6, 3, 1, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1)), FACTS
def broken():
    network = nn.Conv2d(3, 4, 1)
    network.bias.data.fill_(float("nan"))
    return network, FACTS
"""


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """700 × 500 pixels without data along two sides, and a module of networks."""
    (tmp_path / "of_scenes.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    values = np.random.default_rng(0).integers(1, 256, (25, 35, 3), np.uint8).repeat(20, 0).repeat(20, 1)
    values[:30] = values[:, -50:] = 0
    write_scene(tmp_path / "scenes" / "a.tif", values, nodata=0)
    return tmp_path / "scenes" / "a.tif"


def exported(scene, name, network, **more):
    torch.manual_seed(0)
    out = scene.parent.parent / name
    config = ExportConfig(model=f"of_scenes:{network}", images=str(scene), out=str(out), device="cpu", **more)
    return export(config), out


@pytest.mark.parametrize("network", ["fine", "coarse"])
def test_windows_give_the_files_of_the_whole(scene, network):
    (failed, windows), (_, tiles) = (exported(scene, str(raw), network, tile=128, raw=raw) for raw in ([], ["npz"]))
    assert not failed
    with rasterio.open(scene) as image, rasterio.open(windows / "a_prediction.tif") as made:
        assert (made.crs, made.transform, made.shape, made.nodata) == (image.crs, image.transform, image.shape, 255)
        np.testing.assert_array_equal(made.read_masks(1) == 0, image.dataset_mask() == 0)
    for file in sorted(windows.iterdir()):
        if file.suffix == ".tif":
            with rasterio.open(file) as made, rasterio.open(tiles / file.name) as expected:
                np.testing.assert_array_equal(made.read(1), expected.read(1))
        else:
            assert file.read_bytes() == (tiles / file.name).read_bytes(), file.name
    whole = exported(scene, "whole", network)[1]
    with rasterio.open(whole / "a_entropy.tif") as expected, rasterio.open(windows / "a_entropy.tif") as made:
        np.testing.assert_allclose(made.read(1), expected.read(1), atol=1e-5)  # they see a few pixels on either side


def test_a_scene_of_more_pixels_than_are_read_whole(scene, monkeypatch, capsys):
    monkeypatch.setattr(rasters, "MOST_PIXELS", 1000)
    monkeypatch.setattr(export_images, "MOST_SHOWN", 70)
    assert exported(scene, "whole", "fine")[0] == 1
    assert "has 700 × 500 pixels; 1,000 are read at most, and any number by --tile N" in capsys.readouterr().err
    failed, out = exported(scene, "windows", "fine", tile=128)
    assert not failed
    with rasterio.open(out / "a_entropy.tif") as made, Image.open(out / "a_overlay.png") as shown:
        assert (made.shape, shown.size) == ((500, 700), (70, 50))
        mean = float(np.nanmean(made.read(1), dtype=np.float64))
    row = (out / "entropy.csv").read_text().splitlines()[1].split(",")
    assert row[:3] == ["a.tif", "700", "500"]
    assert float(row[3]) == pytest.approx(mean, abs=2e-6)
    hatched = np.asarray(Image.open(out / "a_prediction.png"))
    assert {tuple(pixel) for pixel in hatched[:3].reshape(-1, 3)} == {(255,) * 3, (170,) * 3}


def test_nothing_is_left_of_a_scene_that_fails(scene):
    failed, out = exported(scene, "broken", "broken", tile=128)
    assert failed == 1
    assert not list(out.rglob("*.tif")) + list(out.rglob("*.png"))


def test_batches_are_of_windows_with_data(scene):
    folder = ImageFolder(scene.parent, Description(), None, torch.device("cpu"), tile=128)
    with rasterio.open(scene) as image:
        here = image.dataset_mask() != 0
    left = here.copy()
    for index, (_, rows, columns) in enumerate(folder.parts):
        values, valid = folder.seen(index)
        assert values.shape == (3, 128, 128)
        np.testing.assert_array_equal(np.ones((128, 128)) if valid is None else valid, here[rows, columns])
        left[rows, columns] = False
    assert not left.any()  # they cover what there is
    write_scene(scene.parent / "b.tif", np.zeros((100, 300, 3), np.uint8), nodata=0)
    both = ImageFolder(scene.parent, Description(), None, torch.device("cpu"), tile=128)
    assert (len(both), both.parts) == (2, folder.parts)


@pytest.mark.parametrize(("method", "labelled"), [("bn", False), ("tent", True)])
def test_a_scene_is_adapted_to_by_windows(scene, method, labelled):
    root = scene.parent.parent
    if labelled:
        label = np.random.default_rng(1).integers(0, 4, (25, 35)).astype(np.uint8).repeat(20, 0).repeat(20, 1)
        (root / "labels").mkdir()
        Image.fromarray(label).save(root / "labels" / "a.png")
    settings = {"images": str(scene.parent), "out": str(root / "out"), "device": "cpu", "tile": 128, "accept": True}
    labels = {"labels": str(root / "labels")} if labelled else {}
    torch.manual_seed(0)
    result = adapt(AdaptConfig(model="of_scenes:normed", method=method, **settings, **labels))
    assert (result.score is not None) == labelled
    with rasterio.open(scene) as image, rasterio.open(root / "out" / "after" / "a_prediction.tif") as made:
        assert (made.crs, made.transform, made.shape) == (image.crs, image.transform, image.shape)
        np.testing.assert_array_equal(made.read_masks(1) == 0, image.dataset_mask() == 0)
    (weights,) = (root / "out" / "adapted").iterdir()
    for stage, more in (("before", {}), ("after", {"weights": str(weights)})):
        assert not exported(scene, stage, "normed", tile=128, **more)[0]
        for name in ("a_prediction.tif", "a_entropy.tif"):
            with rasterio.open(root / stage / name) as expected, rasterio.open(root / "out" / stage / name) as made:
                np.testing.assert_allclose(made.read(1), expected.read(1), atol=1e-5)
