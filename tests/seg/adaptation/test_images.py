"""Which images are adapted to, at which size, in which batches, by which labels and normalisation; which to label."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from support import noise, save

from seg.adaptation.images import ImageFolder, ImageNumbers, confusion_with
from seg.adaptation.normalisation_trial import (
    WRONG_SCALE,
    Tried,
    _without_labels,
    distance_of,
    translated,
    usual_ones,
)
from seg.adaptation.result import label_first
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


def test_uncertain_images_unlike_those_above_are_to_be_labelled_first():
    def row(pixels, entropy, labelled=False):
        return ImageNumbers(
            np.array(pixels), entropy, np.eye(3, dtype=np.int64) if labelled else None
        )

    rows = {
        "sure": row([5, 5, 0], 0.1),
        "unsure": row([9, 1, 0], 0.5),
        "its twin": row([9, 1, 0], 0.49),
        "other": row([0, 2, 8], 0.3),
        "labelled": row([0, 0, 10], 0.9, True),
    }
    listed = label_first(rows)
    assert [each["image"] for each in listed] == ["unsure", "other", "sure", "its twin"]
    assert listed[0]["reason"] == "mean entropy 0.500, of the folder 0.347"
    assert listed[1]["reason"].endswith(
        "; 90% of its pixels are of other classes than in those above"
    )
    assert label_first({"a": row([1, 0, 0], 0.5, True)}) == []


HALF = rgb_format([0.5] * 3, [0.5] * 3)
OWN, OTHERS = Description(origin="a guess: by its name"), usual_ones(Description())
#: Score and distance of the own normalisation and of one other, and what is said: dusk, Seq05VD and 0006R0 by
#: ESPNetv2, each as it should be and with another.
LEADS = [
    ((2.29, 0.13), (1.77, 0.25), "no other usual normalisation is clearly better"),
    ((0.64, 0.23), (2.29, 0.13), "maybe trained with"),
    ((1.77, 0.25), (2.29, 0.13), "maybe trained with"),
    ((0.45, 0.83), (2.29, 0.13), "maybe trained with"),
    ((None, 2568.0), (2.29, 0.13), "ALARM, wrong scale"),
    ((2.25, 1.10), (1.88, 0.25), "no other usual normalisation is clearly better"),
    ((2.39, 1.05), (2.74, 0.22), "no other usual normalisation is clearly better"),
    ((1.35, 1.21), (2.39, 1.05), "maybe trained with"),
    ((2.00, 0.40), (2.10, 0.02), "maybe trained with"),
    ((2.00, 0.40), (1.90, 0.02), "no other usual normalisation is clearly better"),
]


@pytest.mark.parametrize(("own", "other", "said"), LEADS)
def test_neither_lead_decides_alone(own, other, said):
    rows = [
        Tried("own", OWN, own[1], own[0]),
        dataclasses.replace(OTHERS[1], score=other[0], distance=other[1]),
    ]
    sentence, warns = _without_labels(rows, own[1] >= WRONG_SCALE)
    assert sentence.startswith(said)
    assert warns == ("no other" not in said)
    assert (
        f"{own[1]:,.0f}" if own[0] is None else f"score {own[0]:.2f}, distance {own[1]:.3g}"
    ) in sentence


def test_the_distance_is_that_of_torchs_normal_distributions():
    mean, variance, new_mean, new_variance = torch.rand(4, 6, dtype=torch.float64) + 0.1
    gaussian, divergence = torch.distributions.Normal, torch.distributions.kl_divergence
    expected = divergence(gaussian(new_mean, new_variance.sqrt()), gaussian(mean, variance.sqrt()))
    assert distance_of((mean, variance), (new_mean, new_variance), 0.0) == pytest.approx(
        float(expected.mean())
    )


@pytest.mark.parametrize("own", [Description(), Description(HALF, order="bgr")])
def test_images_are_translated_as_if_they_were_read_again(own):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6, 3)).astype(np.uint8)
    others = [each.description for each in usual_ones(own)]
    assert len(others) == 7
    for other in others:
        seen = translated(own.normalised(pixels)[None], own, other)[0]
        torch.testing.assert_close(seen, other.normalised(pixels), rtol=1e-4, atol=1e-3)
