"""Scenes: large ones by windows; a pair of six bands through every command; nodata in what is learned and scored."""

import numpy as np
import pytest
import torch
from PIL import Image
from support import refuses
from support.scenes import draw_pair, rasterio, write_scene

from dem_apps.runtime.settings import parse_config
from seg import build_model, load
from seg.adapt import AdaptConfig, adapt
from seg.adaptation.images import ImageFolder
from seg.config import TrainConfig
from seg.data import rasters
from seg.export import ExportConfig, export
from seg.export_model import ExportModelConfig, export_model
from seg.inference import export_images
from seg.methods.self_training import pseudo_labels
from seg.models.settings import ModelConfig
from seg.scores.segmentation_scores import SegmentationScores, label_free_scores, label_free_sums
from seg.train import train
from seg.trained.description import Description
from seg.trained.run_network import open_run
from seg.trained.start_from import Start

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
    values = (
        np.random.default_rng(0).integers(1, 256, (25, 35, 3), np.uint8).repeat(20, 0).repeat(20, 1)
    )
    values[:30] = values[:, -50:] = 0
    write_scene(tmp_path / "scenes" / "a.tif", values, nodata=0)
    return tmp_path / "scenes" / "a.tif"


def exported(scene, name, network, **more):
    torch.manual_seed(0)
    out = scene.parent.parent / name
    config = ExportConfig(
        model=f"of_scenes:{network}", images=str(scene), out=str(out), device="cpu", **more
    )
    return export(config), out


@pytest.mark.parametrize("network", ["fine", "coarse"])
def test_windows_give_the_files_of_the_whole(scene, network):
    (failed, windows), (_, tiles) = (
        exported(scene, str(raw), network, tile=128, raw=raw) for raw in ([], ["npz"])
    )
    assert not failed
    with rasterio.open(scene) as image, rasterio.open(windows / "a_prediction.tif") as made:
        assert (made.crs, made.transform, made.shape, made.nodata) == (
            image.crs,
            image.transform,
            image.shape,
            255,
        )
        np.testing.assert_array_equal(made.read_masks(1) == 0, image.dataset_mask() == 0)
    for file in sorted(windows.iterdir()):
        if file.suffix == ".tif":
            with rasterio.open(file) as made, rasterio.open(tiles / file.name) as expected:
                np.testing.assert_array_equal(made.read(1), expected.read(1))
        else:
            assert file.read_bytes() == (tiles / file.name).read_bytes(), file.name
    whole = exported(scene, "whole", network)[1]
    with (
        rasterio.open(whole / "a_entropy.tif") as expected,
        rasterio.open(windows / "a_entropy.tif") as made,
    ):
        # they see a few pixels on either side
        np.testing.assert_allclose(made.read(1), expected.read(1), atol=1e-5)


def test_a_scene_of_more_pixels_than_are_read_whole(scene, monkeypatch, capsys):
    monkeypatch.setattr(rasters, "MOST_PIXELS", 1000)
    monkeypatch.setattr(export_images, "MOST_SHOWN", 70)
    assert exported(scene, "whole", "fine")[0] == 1
    assert (
        "has 700 × 500 pixels; 1,000 are read at most, and any number by --tile N"
        in capsys.readouterr().err
    )
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
    for index, (_, (rows, columns)) in enumerate(folder.parts):
        values, valid = folder.seen(index)
        assert values.shape == (3, 128, 128)
        np.testing.assert_array_equal(
            np.ones((128, 128)) if valid is None else valid, here[rows, columns]
        )
        left[rows, columns] = False
    assert not left.any()  # they cover what there is
    write_scene(scene.parent / "b.tif", np.zeros((100, 300, 3), np.uint8), nodata=0)
    both = ImageFolder(scene.parent, Description(), None, torch.device("cpu"), tile=128)
    assert (len(both), both.parts) == (2, folder.parts)


@pytest.mark.parametrize(("method", "labelled"), [("bn", False), ("tent", True)])
def test_a_scene_is_adapted_to_by_windows(scene, method, labelled):
    root = scene.parent.parent
    if labelled:
        label = (
            np.random.default_rng(1)
            .integers(0, 4, (25, 35))
            .astype(np.uint8)
            .repeat(20, 0)
            .repeat(20, 1)
        )
        (root / "labels").mkdir()
        Image.fromarray(label).save(root / "labels" / "a.png")
    settings = {
        "images": str(scene.parent),
        "out": str(root / "out"),
        "device": "cpu",
        "tile": 128,
        "accept": True,
    }
    labels = {"labels": str(root / "labels")} if labelled else {}
    torch.manual_seed(0)
    result = adapt(AdaptConfig(model="of_scenes:normed", method=method, **settings, **labels))
    assert (result.score is not None) == labelled
    with (
        rasterio.open(scene) as image,
        rasterio.open(root / "out" / "after" / "a_prediction.tif") as made,
    ):
        assert (made.crs, made.transform, made.shape) == (image.crs, image.transform, image.shape)
        np.testing.assert_array_equal(made.read_masks(1) == 0, image.dataset_mask() == 0)
    (weights,) = (root / "out" / "adapted").iterdir()
    for stage, more in (("before", {}), ("after", {"weights": str(weights)})):
        assert not exported(scene, stage, "normed", tile=128, **more)[0]
        for name in ("a_prediction.tif", "a_entropy.tif"):
            with (
                rasterio.open(root / stage / name) as expected,
                rasterio.open(root / "out" / stage / name) as made,
            ):
                np.testing.assert_allclose(made.read(1), expected.read(1), atol=1e-5)


SMALL = (
    "--model.encoder",
    "resnet18",
    "--model.depth",
    "3",
    "--model.output-stride",
    "8",
    "--max-steps",
    "2",
    "--eval-every",
    "1",
    "--maps",
    "1",
)


def flags(root, run, *more):
    data = (
        "--source.root",
        str(root / "mine"),
        "--target.root",
        str(root / "theirs"),
        "--classes",
        "field,water,wood",
    )
    return parse_config(TrainConfig, "test", "", [*data, *SMALL, "--run-dir", str(run), *more])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return draw_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def run(pair, tmp_path_factory):
    return train(flags(pair, tmp_path_factory.mktemp("runs") / "run"))


def test_a_run_knows_its_bands_and_is_resumed_with_them(pair, run):
    loaded = open_run(run, "last")
    assert (loaded.description.pixels.bands, loaded.description.pixels.dtype) == (6, "uint16")
    assert loaded.network.encoder.conv1.weight.shape[1] == 6
    # it has come to its end, and scores once more
    resumed = train(flags(pair, run, "--resume", "true"))
    assert open_run(resumed, "last").description.pixels == loaded.description.pixels


def test_an_export_lies_where_its_image_lies(pair, run, tmp_path):
    images = pair / "theirs" / "images" / "val"
    for name, tile in (("whole", None), ("tiled", 64)):
        export(
            ExportConfig(
                run=str(run),
                images=str(images),
                out=str(tmp_path / name),
                tile=tile,
                label_ids=True,
            )
        )
    for kind, nodata in (("prediction", 255), ("entropy", np.nan)):
        with (
            rasterio.open(tmp_path / "whole" / f"0_{kind}.tif") as made,
            rasterio.open(images / "0.tif") as image,
        ):
            assert (made.crs, made.transform, made.shape) == (
                image.crs,
                image.transform,
                image.shape,
            )
            np.testing.assert_array_equal(made.read(1)[:6], nodata)
            np.testing.assert_equal(made.nodata, nodata)
            values = made.read(1)
        if kind == "prediction":
            np.testing.assert_array_equal(
                values, np.asarray(Image.open(tmp_path / "whole" / "0_pred_labelIds.png"))
            )
            assert set(np.unique(values[6:])) <= {0, 1, 2}
    table = (tmp_path / "whole" / "entropy.csv").read_text().splitlines()[1].split(",")
    with rasterio.open(tmp_path / "whole" / "0_entropy.tif") as made:
        assert float(table[3]) == pytest.approx(float(np.nanmean(made.read(1))), abs=2e-6)
    assert (tmp_path / "whole" / "entropy.csv").read_bytes() == (
        tmp_path / "tiled" / "entropy.csv"
    ).read_bytes()


def test_networks_go_out_and_in_with_their_bands(run, pair, tmp_path):
    image = pair / "theirs" / "images" / "val" / "0.tif"
    expected = load(run).predict(image)
    export_model(ExportModelConfig(run=str(run), out=str(tmp_path / "out")))
    np.testing.assert_allclose(
        load(tmp_path / "out").predict(image).entropy, expected.entropy, atol=1e-5
    )
    refuses("image: got a ndarray of shape", load(run).predict, np.zeros((8, 8, 3), np.uint16))


def test_a_network_is_adapted_to_scenes(run, pair, tmp_path):
    adapt(
        AdaptConfig(
            model=str(run),
            images=str(pair / "theirs" / "images" / "train"),
            out=str(tmp_path / "out"),
        )
    )
    predicted = load(tmp_path / "out" / "adapted").predict(
        pair / "theirs" / "images" / "val" / "0.tif"
    )
    assert predicted.probabilities.shape == (3, 24, 32)
    with rasterio.open(tmp_path / "out" / "after" / "0_prediction.tif") as made:
        assert (made.read(1)[:6] == 255).all()


def test_pixels_without_data_move_no_score():
    logits = torch.randn(1, 3, 8, 10, generator=torch.Generator().manual_seed(0))
    label = torch.randint(0, 3, (1, 8, 10), generator=torch.Generator().manual_seed(1))
    valid = torch.ones(1, 8, 10, dtype=torch.bool)
    valid[:, :, 6:] = False
    wild = torch.where(valid[:, None], logits, 100 * torch.randn(1, 3, 8, 10))
    masked, cut = (SegmentationScores(("a", "b", "c")) for _ in range(2))
    masked.update(wild, torch.where(valid, label, 255), valid)
    cut.update(logits[..., :6], label[..., :6])
    torch.testing.assert_close(masked.sums, cut.sums)
    free, free_cut = label_free_sums(wild, valid), label_free_sums(logits[..., :6])
    assert label_free_scores(free) == pytest.approx(label_free_scores(free_cut))


def test_pseudo_labels_look_past_pixels_without_data():
    logits = 4 * torch.randn(2, 3, 8, 10, generator=torch.Generator().manual_seed(0))
    valid = torch.ones(2, 8, 10, dtype=torch.bool)
    valid[:, :, 6:] = False
    wild = torch.where(valid[:, None], logits, 50.0)
    _, weight = pseudo_labels(wild, 0.9, valid)
    _, expected = pseudo_labels(logits[..., :6], 0.9)
    assert (weight[..., 6:] == 0).all()
    torch.testing.assert_close(weight[..., :6], expected)


def test_weights_of_rgb_start_a_network_of_bands(tmp_path):
    rgb = build_model("unet", encoder="resnet18", num_classes=3).eval()
    torch.save(rgb.state_dict(), tmp_path / "rgb.pth")
    six = build_model("unet", encoder="resnet18", num_classes=3, bands=6).eval()
    start = Start(ModelConfig(start_from=str(tmp_path / "rgb.pth")))
    (note,) = start.put_into(six)
    assert "sees 3 bands; its weights are repeated over 6" in note
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():  # the same picture twice
        torch.testing.assert_close(
            six(image.repeat(1, 2, 1, 1))["main"], rgb(image)["main"], atol=1e-4, rtol=1e-4
        )
