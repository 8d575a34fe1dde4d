"""A pair of six-band scenes through every command, and nodata in what is learned and scored."""

import numpy as np
import pytest
import torch
from PIL import Image
from support.refusals import refuses
from support.scenes import draw_pair, rasterio

from dem_apps.runtime.settings import parse_config
from seg import build_model, load
from seg.adapt import AdaptConfig, adapt
from seg.config import TrainConfig
from seg.export import ExportConfig, export
from seg.export_model import ExportModelConfig, export_model
from seg.methods.self_training import pseudo_labels
from seg.scores.metrics import LabelFreeScores, SegmentationScores
from seg.train import train
from seg.trained.run_network import open_run
from seg.trained.start_from import start_from

SMALL = ("--model.encoder", "resnet18", "--model.depth", "3", "--model.output-stride", "8", "--max-steps", "2",
         "--eval-every", "1", "--maps", "1")  # fmt: skip


def flags(root, run, *more):
    data = ("--source.root", str(root / "mine"), "--target.root", str(root / "theirs"), "--classes", "field,water,wood")
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
    resumed = train(flags(pair, run, "--resume", "true"))  # it has come to its end, and scores once more
    assert open_run(resumed, "last").description.pixels == loaded.description.pixels


def test_an_export_lies_where_its_image_lies(pair, run, tmp_path):
    images = pair / "theirs" / "images" / "val"
    for name, tile in (("whole", None), ("tiled", 64)):
        export(ExportConfig(run=str(run), images=str(images), out=str(tmp_path / name), tile=tile, label_ids=True))
    for kind, nodata in (("prediction", 255), ("entropy", np.nan)):
        with rasterio.open(tmp_path / "whole" / f"0_{kind}.tif") as made, rasterio.open(images / "0.tif") as image:
            assert (made.crs, made.transform, made.shape) == (image.crs, image.transform, image.shape)
            np.testing.assert_array_equal(made.read(1)[:6], nodata)
            np.testing.assert_equal(made.nodata, nodata)
            values = made.read(1)
        if kind == "prediction":
            np.testing.assert_array_equal(values, np.asarray(Image.open(tmp_path / "whole" / "0_pred_labelIds.png")))
            assert set(np.unique(values[6:])) <= {0, 1, 2}
    table = (tmp_path / "whole" / "entropy.csv").read_text().splitlines()[1].split(",")
    with rasterio.open(tmp_path / "whole" / "0_entropy.tif") as made:
        assert float(table[3]) == pytest.approx(float(np.nanmean(made.read(1))), abs=2e-6)
    assert (tmp_path / "whole" / "entropy.csv").read_bytes() == (tmp_path / "tiled" / "entropy.csv").read_bytes()


def test_networks_go_out_and_in_with_their_bands(run, pair, tmp_path):
    image = pair / "theirs" / "images" / "val" / "0.tif"
    expected = load(run).predict(image)
    export_model(ExportModelConfig(run=str(run), out=str(tmp_path / "out")))
    np.testing.assert_allclose(load(tmp_path / "out").predict(image).entropy, expected.entropy, atol=1e-5)
    refuses("image: has shape", load(run).predict, np.zeros((8, 8, 3), np.uint16))


def test_a_network_is_adapted_to_scenes(run, pair, tmp_path):
    adapt(AdaptConfig(model=str(run), images=str(pair / "theirs" / "images" / "train"), out=str(tmp_path / "out")))
    predicted = load(tmp_path / "out" / "adapted").predict(pair / "theirs" / "images" / "val" / "0.tif")
    assert predicted.probabilities.shape == (3, 24, 32)
    with rasterio.open(tmp_path / "out" / "after" / "0_prediction.tif") as made:
        assert (made.read(1)[:6] == 255).all()


def test_pixels_without_data_move_no_score():
    logits = torch.randn(1, 3, 8, 10, generator=torch.Generator().manual_seed(0))
    label = torch.randint(0, 3, (1, 8, 10), generator=torch.Generator().manual_seed(1))
    valid = torch.ones(1, 8, 10, dtype=torch.bool)
    valid[:, :, 6:] = False
    wild = torch.where(valid[:, None], logits, 100 * torch.randn(1, 3, 8, 10))
    masked, cut = (SegmentationScores(("a", "b", "c"), 255) for _ in range(2))
    masked.update(wild, torch.where(valid, label, 255), valid)
    cut.update(logits[..., :6], label[..., :6])
    torch.testing.assert_close(masked.sums, cut.sums)
    free, free_cut = LabelFreeScores(3), LabelFreeScores(3)
    free.update(wild, valid)
    free_cut.update(logits[..., :6])
    assert free.result() == pytest.approx(free_cut.result())


def test_pseudo_labels_look_past_pixels_without_data():
    logits = 4 * torch.randn(2, 3, 8, 10, generator=torch.Generator().manual_seed(0))
    valid = torch.ones(2, 8, 10, dtype=torch.bool)
    valid[:, :, 6:] = False
    wild = torch.where(valid[:, None], logits, 50.0)
    _, weight = pseudo_labels(wild, "image", 0.9, valid)
    _, expected = pseudo_labels(logits[..., :6], "image", 0.9)
    assert (weight[..., 6:] == 0).all()
    torch.testing.assert_close(weight[..., :6], expected)


def test_weights_of_rgb_start_a_network_of_bands(tmp_path):
    rgb = build_model("unet", encoder="resnet18", num_classes=3).eval()
    torch.save(rgb.state_dict(), tmp_path / "rgb.pth")
    six = build_model("unet", encoder="resnet18", num_classes=3, bands=6).eval()
    (note,) = start_from(six, tmp_path / "rgb.pth")
    assert "sees 3 bands; its weights are repeated over 6" in note
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():  # the same picture twice
        torch.testing.assert_close(six(image.repeat(1, 2, 1, 1))["main"], rgb(image)["main"], atol=1e-4, rtol=1e-4)
