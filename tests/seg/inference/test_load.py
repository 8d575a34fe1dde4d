"""``from seg import load``: every kind of image, the maps of a prediction, and what a notebook shows."""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch
from PIL import Image

from dem_apps.errors import InputError
from seg import load
from seg.config import ModelConfig, SourceConfig, TargetDataConfig, TrainConfig
from seg.data.read import ImagePixels
from seg.models.trained import open_run
from seg.models.trained_network import TrainedNetwork
from seg.train import train

IMAGE = np.random.default_rng(0).integers(0, 256, (45, 70, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_pair) -> Path:
    return train(
        TrainConfig(
            run_dir=str(tmp_path_factory.mktemp("runs") / "run"),
            maps=0,
            max_steps=2,
            eval_every=1,
            device="cpu",
            model=ModelConfig(output_stride=8),
            source=SourceConfig(str(tiny_pair.source_root)),
            target=TargetDataConfig(str(tiny_pair.target_root), size=[64, 32]),
        )
    )


@pytest.fixture(scope="module")
def predictor(run: Path) -> TrainedNetwork:
    return load(run, device="cpu")


@pytest.fixture(scope="module")
def unet(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("smp")
    smp.Unet("resnet18", 3, encoder_weights=None, decoder_channels=(16, 16, 8), classes=3).save_pretrained(folder)
    return folder


def test_a_run_predicts_as_its_export_does(run: Path, predictor: TrainedNetwork) -> None:
    exported = dataclasses.replace(open_run(run)[0], size=(64, 32)).maps(ImagePixels(IMAGE))
    prediction = predictor.predict(IMAGE)
    assert (prediction.classes == exported.classes).mean() > 0.999  # bands round otherwise than the whole
    np.testing.assert_allclose(prediction.entropy, exported.entropy, atol=1e-5)
    assert prediction.classes.shape == prediction.entropy.shape == (45, 70)
    own = load(run, device="cpu", size=None).predict(IMAGE)
    assert not np.array_equal(own.entropy, prediction.entropy)


def test_probabilities_classes_and_entropy_belong_together(predictor: TrainedNetwork) -> None:
    prediction = predictor.predict(IMAGE)
    p = prediction.probabilities
    assert p.shape == (19, 45, 70)
    np.testing.assert_allclose(p.sum(0), 1, atol=1e-5)
    np.testing.assert_allclose(-(p * np.log(p)).sum(0) / np.log(19), prediction.entropy, atol=1e-4)
    assert (p.argmax(0) == prediction.classes).mean() > 0.999
    assert sum(prediction.shares.values()) == pytest.approx(1)
    first = next(iter(prediction.shares))
    assert prediction.shares[first] == np.mean(prediction.classes == prediction.names.index(first))


def test_every_kind_of_image(predictor: TrainedNetwork, tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.fromarray(IMAGE).save(file)
    alpha = np.dstack([IMAGE, np.zeros((45, 70), np.uint8)])
    kinds = {
        "path": file, "text": str(file), "PIL": Image.fromarray(IMAGE), "PIL from a file": Image.open(file),
        "array": IMAGE, "with alpha": alpha, "floats": IMAGE / 255.0,
        "tensor": torch.from_numpy(IMAGE).permute(2, 0, 1),
        "float tensor": torch.from_numpy(IMAGE).permute(2, 0, 1) / 255,
    }  # fmt: skip
    expected = predictor.predict(IMAGE)
    for kind, image in kinds.items():
        assert np.array_equal(predictor.predict(image).entropy, expected.entropy), kind
    Image.fromarray(IMAGE[::-1].copy()).save(tmp_path / "b.png")
    tensors = torch.from_numpy(np.stack([IMAGE, IMAGE[::-1]])).permute(0, 3, 1, 2)
    for many in (
        tmp_path,
        str(tmp_path),
        [file, IMAGE[::-1]],
        (IMAGE, IMAGE[::-1]),
        np.stack([IMAGE, IMAGE[::-1]]),
        tensors,
    ):
        first, second = predictor.predict(many)
        assert np.array_equal(first.entropy, expected.entropy)
        assert np.array_equal(second.image, IMAGE[::-1])
    grey = predictor.predict(IMAGE[..., 0])
    assert np.array_equal(grey.image, IMAGE[..., :1].repeat(3, 2))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (3, "image: got a int; expected a path, an array"),
        (np.zeros((45, 70, 2), np.uint8), r"image: has shape \(45, 70, 2\), and the network sees 8-bit RGB"),
        (np.zeros((45, 70, 3), np.int64), "int64 from 0 to 0; expected uint8, or floating point"),
        (np.full((45, 70, 3), 200.0), "from 200 to 200; expected uint8, or floating point from 0 to 1"),
        (torch.full((3, 45, 70), torch.nan), "from nan to nan"),
        ("/nowhere.png", "no such file"),
    ],
)
def test_what_is_no_image(image: object, message: str, predictor: TrainedNetwork) -> None:
    with pytest.raises(InputError, match=message):
        predictor.predict(image)


def test_a_notebook_shows_it(predictor: TrainedNetwork) -> None:
    prediction = predictor.predict(IMAGE)
    picture = Image.open(io.BytesIO(prediction._repr_png_()))
    assert picture.size == prediction.panel().size
    largest = next(iter(prediction.shares))
    assert f"70 × 45; {largest} " in repr(prediction)
    assert "19 classes: road, sidewalk" in repr(predictor)


def test_a_network_of_strangers_has_numbers_for_names(unet: Path) -> None:
    predictor = load(unet, device="cpu")
    assert predictor.predict(IMAGE).names == ("class 0", "class 1", "class 2")


def test_tiles_of_a_large_image(unet: Path) -> None:
    """A network whose field is wider than the overlap: blended and close, not equal; equal is test_tiles.py."""
    image = np.random.default_rng(1).integers(0, 256, (160, 200, 3)).astype(np.uint8)
    whole = load(unet, device="cpu").predict(image)
    tiled = load(unet, device="cpu", tile=128, tile_overlap=64).predict(image)
    assert tiled.logits.shape == whole.logits.shape
    assert np.abs(tiled.probabilities - whole.probabilities).mean() < 0.2 * whole.probabilities.std()


def test_import_is_light() -> None:
    """Nothing but the core is read before a name is used."""
    code = "import sys, seg; assert 'segmentation_models_pytorch' not in sys.modules; print(dir(seg)); seg.load"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "'load'" in done.stdout
