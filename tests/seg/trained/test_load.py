"""``from seg import load``: every kind of image, the maps of a prediction, and what a notebook shows."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from support.cases import cases
from support.refusals import refuses
from support.untrained_run import write_run

from seg import load
from seg.data.read_images import ImagePixels
from seg.data.settings import TargetDataConfig

IMAGE = np.random.default_rng(0).integers(0, 256, (45, 70, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "run", 0, target=TargetDataConfig(size=[64, 32]))


@pytest.fixture(scope="module")
def predictor(run):
    return load(run, device="cpu")


def test_a_prediction_holds_together(run, predictor):
    prediction, p = predictor.predict(IMAGE), predictor.predict(IMAGE).probabilities
    assert p.shape == (19, 45, 70)
    np.testing.assert_allclose(p.sum(0), 1, atol=1e-5)
    np.testing.assert_allclose(-(p * np.log(p)).sum(0) / np.log(19), prediction.entropy, atol=1e-4)
    assert (p.argmax(0) == prediction.classes).mean() > 0.999
    assert sum(prediction.shares.values()) == pytest.approx(1)
    first = next(iter(prediction.shares))
    assert prediction.shares[first] == np.mean(prediction.classes == prediction.names.index(first))
    exported = predictor.maps(ImagePixels(IMAGE))  # what seg.export writes
    assert (prediction.classes == exported.classes).mean() > 0.999  # bands round otherwise than the whole
    np.testing.assert_allclose(prediction.entropy, exported.entropy, atol=1e-5)
    assert not np.array_equal(load(run, device="cpu", size=None).predict(IMAGE).entropy, prediction.entropy)


def test_every_kind_of_image(predictor, tmp_path):
    file = tmp_path / "a.png"
    Image.fromarray(IMAGE).save(file)
    tensor = torch.from_numpy(IMAGE).permute(2, 0, 1)
    kinds = {
        "path": file, "text": str(file), "PIL": Image.open(file), "array": IMAGE, "floats": IMAGE / 255.0,
        "alpha": np.dstack([IMAGE, IMAGE[..., 0]]), "tensor": tensor, "float tensor": tensor / 255,
    }  # fmt: skip
    expected = predictor.predict(IMAGE)
    for kind, image in kinds.items():
        assert np.array_equal(predictor.predict(image).entropy, expected.entropy), kind
    Image.fromarray(IMAGE[::-1].copy()).save(tmp_path / "b.png")
    arrays = np.stack([IMAGE, IMAGE[::-1]])
    for many in (tmp_path, str(tmp_path), [file, IMAGE[::-1]], arrays, torch.from_numpy(arrays).permute(0, 3, 1, 2)):
        first, second = predictor.predict(many)
        assert np.array_equal(first.entropy, expected.entropy)
        assert np.array_equal(second.image, IMAGE[::-1])
    masked = predictor.predict(np.ma.array(IMAGE, mask=IMAGE < 9))
    assert np.array_equal(masked.valid, (IMAGE >= 9).all(2))
    grey = predictor.predict(IMAGE[..., 0])
    assert np.array_equal(grey.image, IMAGE[..., :1].repeat(3, 2))


@cases(
    (3, "image: got a int; expected a path, an array"),
    (np.zeros((45, 70, 2), np.uint8), r"image: has shape \(45, 70, 2\), and the network sees 8-bit RGB"),
    (np.full((45, 70, 3), 200.0), "from 200 to 200; expected uint8, or floating point from 0 to 1"),
    (torch.full((3, 45, 70), torch.nan), "from nan to nan"),
)
def test_what_is_no_image(image, message, predictor):
    refuses(message, predictor.predict, image)


def test_a_notebook_shows_it(predictor):
    prediction = predictor.predict(IMAGE)
    picture = Image.open(io.BytesIO(prediction._repr_png_()))
    assert picture.size == prediction.panel().size
    assert f"70 × 45; {next(iter(prediction.shares))} " in repr(prediction)
    assert "19 classes: road, sidewalk" in repr(predictor)
