"""Normalisation is known, said, or tried: a network that was trained with another than its encoder's name suggests."""

import dataclasses

import numpy as np
import pytest
import torch

from seg.adaptation.normalisation_trial import WRONG_SCALE, Tried, _without_labels, distance_of, translated, usual_ones
from seg.data.pixel_format import rgb_format
from seg.trained.description import Description

HALF = rgb_format([0.5] * 3, [0.5] * 3)


OWN, OTHERS = Description(origin="a guess: by its name"), usual_ones(Description())
#: Score and distance of the own normalisation and of one other, and what is said: dusk, Seq05VD and 0006R0 by
#: ESPNetv2, each as it should be and with another.
LEADS = [
    ((2.29, 0.13), (1.77, 0.25), "no other usual normalisation is clearly better"),
    ((0.64, 0.23), (2.29, 0.13), "maybe trained with"), ((1.77, 0.25), (2.29, 0.13), "maybe trained with"),
    ((0.45, 0.83), (2.29, 0.13), "maybe trained with"), ((None, 2568.0), (2.29, 0.13), "ALARM, wrong scale"),
    ((2.25, 1.10), (1.88, 0.25), "no other usual normalisation is clearly better"),
    ((2.39, 1.05), (2.74, 0.22), "no other usual normalisation is clearly better"),
    ((1.35, 1.21), (2.39, 1.05), "maybe trained with"), ((2.00, 0.40), (2.10, 0.02), "maybe trained with"),
    ((2.00, 0.40), (1.90, 0.02), "no other usual normalisation is clearly better"),
]  # fmt: skip


@pytest.mark.parametrize(("own", "other", "said"), LEADS)
def test_neither_lead_decides_alone(own, other, said):
    rows = [Tried("own", OWN, own[1], own[0]), dataclasses.replace(OTHERS[1], score=other[0], distance=other[1])]
    sentence, warns = _without_labels(rows, own[1] >= WRONG_SCALE)
    assert sentence.startswith(said)
    assert warns == ("no other" not in said)
    numbers = (
        (f"{own[1]:,.0f}", f"{other[1]:.3g}") if own[0] is None else (f"score {own[0]:.2f}, distance {own[1]:.3g}",)
    )
    assert all(number in sentence for number in numbers)


def test_the_distance_is_that_of_torchs_normal_distributions():
    mean, variance, new_mean, new_variance = torch.rand(4, 6, dtype=torch.float64) + 0.1
    gaussian = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(
        gaussian(new_mean, new_variance.sqrt()), gaussian(mean, variance.sqrt())
    )
    assert distance_of((mean, variance), (new_mean, new_variance), 0.0) == pytest.approx(float(expected.mean()))


@pytest.mark.parametrize("own", [Description(), Description(HALF, order="bgr")])
def test_images_are_translated_as_if_they_were_read_again(own):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6, 3)).astype(np.uint8)
    others = [each.description for each in usual_ones(own)]
    assert len(others) == 7
    for other in others:
        seen = translated(own.normalised(pixels)[None], own, other)[0]
        torch.testing.assert_close(seen, other.normalised(pixels), rtol=1e-4, atol=1e-3)
