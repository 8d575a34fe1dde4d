"""Which images are adapted to, at which size, in which batches, by which labels and normalisation."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support import noise, save

from seg.adaptation import images as images_module
from seg.adaptation.images import ImageFolder, confusion_with
from seg.adaptation.normalisation import Candidate, conclusion, usual
from seg.data.labels import IGNORE_INDEX, named_classes
from seg.data.pixel_format import rgb_format
from seg.trained.description import Description

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path):
    sizes = [(20, 10), (20, 10), (33, 17), (20, 10), (20, 10), (20, 10), (33, 17)]
    for index, (width, height) in enumerate(sizes):
        save(tmp_path / f"{index}.png", noise(index, width, height))
    return tmp_path


def test_batches_hold_one_size_and_every_image_once(folder):
    images = ImageFolder(folder, Description(), None, CPU)
    assert images.batches(2) == [[0, 1], [2], [3, 4, 5], [6]]
    for batches in (images.batches(2), images.batches(2, (0, 0)), images.batches(3, (5, 1))):
        assert sorted(index for batch in batches for index in batch) == list(range(7))
        assert all(len({images.sizes[index] for index in batch}) == 1 for batch in batches)
    assert images.batches(2, (0, 0)) == images.batches(2, (0, 0))
    assert len({str(images.batches(2, (seed, epoch))) for seed in (0, 1) for epoch in (0, 1)}) > 1
    assert [len(batch) for batch in images.spread_batches(7, 2)] == [2, 3, 2]


def test_the_network_gets_multiples_and_its_own_preprocessing(folder):
    wanted = Description(rgb_format((0.0,) * 3, (1.0,) * 3), multiple=8)
    images = ImageFolder(folder, wanted, None, CPU)
    assert images.seen(2)[0].shape == (3, 16, 32)
    exact = ImageFolder(folder, Description(rgb_format((0.0,) * 3, (1.0,) * 3)), None, CPU)
    np.testing.assert_allclose(
        exact.seen(0)[0].permute(1, 2, 0).numpy() * 255, exact.picture(0).values, atol=1e-4
    )
    assert ImageFolder(folder, wanted, (100, 50), CPU).seen(0)[0].shape == (3, 48, 96)


def test_pixels_are_counted_by_label_and_prediction_at_the_labels_size(tmp_path):
    truth = np.random.default_rng(0).integers(0, 3, (8, 12)).astype(np.uint8)
    truth[0, :4] = IGNORE_INDEX
    label, classes = save(tmp_path / "deep" / "0.png", truth), named_classes(["a", "b", "c"])
    predicted = np.random.default_rng(1).integers(0, 3, truth.shape).astype(np.uint8)
    expected = [
        [((truth == label) & (predicted == each)).sum() for each in range(3)] for label in range(3)
    ]
    for size in (predicted, predicted.repeat(2, 0).repeat(2, 1)):
        np.testing.assert_array_equal(
            confusion_with(label, Path("0.jpg"), classes, size, None), expected
        )


GUESS, OTHER = Description(origin="a guess: by its name"), usual(Description())[1]
#: Score and distance of the assumed normalisation and of the nearest other one, and what is said: dusk, Seq05VD and
#: 0006R0 by ESPNetv2, each as it should be and with another.
LEADS = [
    ((None, 0.13), (None, 0.25), "no other usual normalisation is clearly better"),
    ((0.64, 0.23), (2.29, 0.13), "maybe trained with"),
    ((1.77, 0.25), (2.29, 0.13), "maybe trained with"),
    ((0.45, 0.83), (2.29, 0.13), "maybe trained with"),
    ((None, 2568.0), (None, 0.13), "ALARM, wrong scale"),
    ((2.25, 1.10), (1.88, 0.25), "no other usual normalisation is clearly better"),
    ((2.39, 1.05), (2.74, 0.22), "no other usual normalisation is clearly better"),
    ((1.35, 1.21), (2.39, 1.05), "maybe trained with"),
    ((2.00, 0.40), (2.10, 0.02), "maybe trained with"),
    ((2.00, 0.40), (1.90, 0.02), "no other usual normalisation is clearly better"),
]


@pytest.mark.parametrize(("own", "other", "said"), LEADS)
def test_neither_lead_decides_alone(own, other, said):
    assumed, nearest = Candidate(GUESS, own[1], own[0]), Candidate(OTHER, other[1], other[0])
    sentence, warns = conclusion(assumed, nearest)
    assert sentence.startswith(said)
    assert warns == ("no other" not in said)
    for candidate in (assumed, nearest):
        assert candidate.text in sentence


def test_the_usual_normalisations_are_others_than_the_own_one():
    half = Description(rgb_format([0.5] * 3, [0.5] * 3), order="bgr")
    for own in (Description(), half):
        assert len(usual(own)) == 7


def test_pictures_are_kept_up_to_a_number_of_bytes(folder, monkeypatch):
    read, read_image = [], images_module.read_image
    noting = lambda file, pixels: read.append(file) or read_image(file, pixels)  # noqa: E731
    monkeypatch.setattr(images_module, "read_image", noting)
    monkeypatch.setattr(images_module, "MOST_BYTES", 2 * 20 * 10 * 3)
    images = ImageFolder(folder, Description(), None, CPU)
    for index in (0, 1, 0, 3, 1, 0):
        images.picture(index)
    assert [int(file.stem) for file in read] == [0, 1, 3, 0]
