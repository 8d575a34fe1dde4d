import csv
import dataclasses
import math

import numpy as np
import pytest
import torch
from PIL import Image
from support import cases, noise, refuses, save
from support.untrained_run import write_run
from torch.nn import functional as F

from dem_apps.runtime.checkpoint import load_checkpoint, save_checkpoint
from dem_apps.runtime.settings import parse_config
from seg.data.labels import CITYSCAPES_CLASSES
from seg.data.pixel_format import RGB
from seg.data.read_images import read_image
from seg.data.settings import TargetDataConfig
from seg.export import ExportConfig, _gathered, export, main
from seg.trained.run_network import open_run

LABEL_IDS = "a_pred_labelIds.png"
KINDS = ("prediction", "overlay", "entropy", "panel")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(
        tmp_path_factory.mktemp("runs") / "first", seed=0, method="minent", loss="entropy"
    )


@pytest.fixture
def draw(tmp_path):
    """Write a random image below ``images``."""

    def write(name, size=(24, 16)):
        return save(tmp_path / "images" / name, noise(len(name), *size))

    return write


def settings(first, tmp_path, **changes):
    defaults = {
        "run": str(first),
        "images": str(tmp_path / "images"),
        "out": str(tmp_path / "out"),
        "device": "cpu",
    }
    return ExportConfig(**{**defaults, **changes})


def rows(file):
    with open(file, newline="") as opened:
        return list(csv.DictReader(opened))


def test_every_image_gets_its_pictures_in_its_own_size_at_its_own_path(run, draw, tmp_path):
    draw("wide.png", (40, 16))
    draw("deep/er/tall.jpg", (9, 33))
    draw("deep/one.bmp", (1, 1))
    assert export(settings(run, tmp_path)) == 0
    for name, size in (("wide", (40, 16)), ("deep/er/tall", (9, 33)), ("deep/one", (1, 1))):
        sizes = [Image.open(tmp_path / "out" / f"{name}_{kind}.png").size for kind in KINDS]
        assert sizes[:3] == [size] * 3
        assert sizes[3][0] > 3 * 64
    assert len(list((tmp_path / "out").rglob("*.*"))) == 3 * 4 + 1


def test_probabilities_of_all_classes_and_pixels_that_are_left_out(run, draw, tmp_path):
    draw("a.png")
    assert export(settings(run, tmp_path, raw=["probabilities", "npz"], label_ids=True)) == 0
    out = tmp_path / "out"
    with np.load(out / "a_probabilities.npz") as found, np.load(out / "a_entropy.npz") as numbers:
        probabilities, classes = found["probabilities"], numbers["prediction"]
        assert tuple(found["names"]) == CITYSCAPES_CLASSES.names
    assert probabilities.shape == (19, 16, 24)
    assert np.allclose(probabilities.sum(0, dtype=np.float32), 1, atol=2e-3)
    assert np.array_equal(probabilities.argmax(0), classes)
    least = float(np.median(probabilities.max(0)))
    some = settings(
        run, tmp_path, out=str(tmp_path / "some"), min_probability=least, label_ids=True
    )
    assert export(some) == 0
    every, ids = (np.asarray(Image.open(folder / LABEL_IDS)) for folder in (out, tmp_path / "some"))
    kept = probabilities.max(0) >= least
    assert 0 < kept.sum() < kept.size
    assert (ids[kept] == every[kept]).all()
    assert (ids[~kept] == CITYSCAPES_CLASSES.no_data).mean() > 0.9  # float16 rounds


def test_numbers_are_those_of_the_networks_softmax(run, draw, tmp_path):
    file = draw("a.png")
    export(settings(run, tmp_path, raw=["png16", "npz"], label_ids=True))
    trained = open_run(run, "last")
    with torch.no_grad():
        features = trained.network(RGB.normalised(np.asarray(Image.open(file)))[None])["main"]
    p = (
        F.interpolate(features, (16, 24), mode="bilinear", align_corners=True)[0]
        .double()
        .softmax(0)
    )
    entropy, classes = -(p * p.log()).sum(0).numpy(), p.argmax(0).numpy()

    out = tmp_path / "out"
    raw = np.load(out / "a_entropy.npz")
    np.testing.assert_array_equal(raw["prediction"], classes)
    np.testing.assert_allclose(raw["entropy"], entropy, atol=1e-5)
    np.testing.assert_allclose(raw["entropy_normalised"], entropy / math.log(19), atol=1e-5)
    assert (raw["prediction"].dtype, raw["entropy"].dtype) == (np.uint8, np.float32)
    png16 = np.asarray(Image.open(out / "a_entropy16.png"))
    # bits; an older Pillow reads them into 32
    assert (out / "a_entropy16.png").read_bytes()[24] == 16
    np.testing.assert_allclose(png16 / 65535, entropy / math.log(19), atol=3e-5)
    ids = np.asarray(Image.open(out / "a_pred_labelIds.png"))
    np.testing.assert_array_equal(ids, np.asarray(CITYSCAPES_CLASSES.ids)[classes])
    colours = np.asarray(Image.open(out / "a_prediction.png"))
    np.testing.assert_array_equal(colours, np.asarray(CITYSCAPES_CLASSES.colors)[classes])

    (image_row,) = rows(out / "entropy.csv")
    assert float(image_row["mean_entropy"]) == pytest.approx(
        entropy.mean() / math.log(19), abs=2e-6
    )
    top = np.bincount(classes.ravel()).argmax()
    assert image_row["top_class"] == CITYSCAPES_CLASSES.names[top]
    assert float(image_row["top_class_share"]) == pytest.approx((classes == top).mean(), abs=2e-6)


def test_the_last_checkpoint_is_exported_at_the_runs_target_size_by_default(draw, tmp_path):
    draw("a.png", (40, 24))
    run = write_run(
        tmp_path / "run", 0, ("selected", "last"), target=TargetDataConfig(size=[32, 16])
    )
    trained, image = open_run(run, "last"), read_image(tmp_path / "images" / "a.png")
    for size, seen in (("own", (32, 16)), (None, None), ([20, 12], (20, 12))):
        out = tmp_path / f"out-{size}"
        export(settings(run, tmp_path, size=size, out=str(out), raw=["npz"]))
        expected = dataclasses.replace(trained, size=seen).maps(image).entropy
        assert expected.shape == (24, 40)
        np.testing.assert_array_equal(
            np.load(out / "a_entropy.npz")["entropy_normalised"], expected
        )


def test_a_damaged_image_is_one_line_and_the_others_go_on(run, draw, tmp_path, run_here):
    whole = draw("a.png", (64, 48))
    (tmp_path / "images" / "b.png").write_bytes(whole.read_bytes()[:3000])
    (tmp_path / "images" / "c.jpg").write_text("no image")
    draw("d.png")
    draw("e" * 240 + ".png")
    folders = ["--images", tmp_path / "images", "--out", tmp_path / "out"]
    finished = run_here(main, "--run", run, *folders, status=1)
    complaints = finished.err.strip().splitlines()
    assert len(complaints) == 3
    assert "b.png: the image cannot be read" in complaints[0]
    assert "c.jpg: the image cannot be read" in complaints[1]
    assert (
        "e.png: the name is too long for the files that are written of it; at most 237 bytes fit"
        in complaints[2]
    )
    assert "exported 2 of 5 images, 3 skipped" in finished.out
    assert [row["image"] for row in rows(tmp_path / "out" / "entropy.csv")] == ["a.png", "d.png"]


def test_an_image_that_does_not_fit_into_memory_is_one_line(
    run, draw, tmp_path, capsys, monkeypatch
):
    draw("a.png")
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")
    monkeypatch.setattr(
        "seg.trained.trained_network.upsampled", lambda *_: (_ for _ in ()).throw(error)
    )
    assert export(settings(run, tmp_path)) == 1
    assert "a.png: does not fit into memory" in capsys.readouterr().err


@cases(
    ({"raw": ["png61"]}, "did you mean 'png16'"),
    ({"size": "12,x"}, "--size: expected W,H"),
    ({"out": "images/out"}, "lies in --images"),
    ({"out": "images"}, "holds files already"),
)
def test_a_mistake_is_one_sentence(changes, sentence, run, draw, tmp_path, monkeypatch):
    draw("a.png")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    refuses(sentence, export, settings(run, tmp_path, **changes))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("formats", [["--raw", "png16", "npz"], ["--raw=png16", "--raw", "npz"]])
def test_several_formats_are_given_as_one_would_write_them(formats):
    given = ["--run", "b c", *formats, "--label-ids", "--images", "i", "--out", "o"]
    config = parse_config(ExportConfig, "x", "x", _gathered(given))
    assert (config.run, config.raw, config.label_ids) == ("b c", ["png16", "npz"], True)


def test_what_is_not_finite_is_not_published(draw, tmp_path, capsys):
    """As class 0, certain everywhere, it would look like a result."""
    draw("a.png")
    second = write_run(tmp_path / "second", 1)
    state = load_checkpoint(second / "checkpoints", "last")
    for name, value in state["model"].items():
        value.fill_(1 if name.startswith("encoder.") else 1e38)
    save_checkpoint(second / "checkpoints", "last", state)
    assert export(settings(second, tmp_path)) == 1
    printed = capsys.readouterr()
    assert "a.png: the network's output is not finite; check its weights" in printed.err
    assert "exported 0 of 1 images" in printed.out
    assert not list((tmp_path / "out").rglob("*.png"))
    assert all(
        "nan" not in table.read_text().lower() for table in (tmp_path / "out").rglob("*.csv")
    )
