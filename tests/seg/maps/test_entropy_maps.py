from __future__ import annotations

import matplotlib
import numpy as np
import torch

from seg.maps.entropy_maps import Prediction, coloured_entropy, coloured_label, normalised_entropy, wrong_pixels

RED, GREEN = (230, 40, 10), (10, 200, 30)


def test_entropy_is_on_one_scale_from_certain_to_uniform():
    logits = torch.zeros(19, 2, 3)
    logits[4, 0] = 100.0
    entropy = normalised_entropy(logits)
    np.testing.assert_allclose(entropy[0], 0.0, atol=1e-6)
    np.testing.assert_allclose(entropy[1], 1.0, atol=1e-6)


def test_colours_are_those_of_matplotlibs_magma():
    values = np.linspace(0, 1, 1001, dtype=np.float32)[None]
    expected = (matplotlib.colormaps["magma"](values)[..., :3] * 255).round().astype(np.uint8)
    np.testing.assert_array_equal(coloured_entropy(values), expected)


def test_ignored_pixels_of_a_label_look_like_no_class():
    label = np.full((40, 200), 255, np.uint8)
    label[:, :100] = 1
    coloured = coloured_label(label, [RED, GREEN])
    assert (coloured[:, :100] == GREEN).all()
    ignored = coloured[:, 100:].reshape(-1, 3)
    shades, counts = np.unique(ignored, axis=0, return_counts=True)
    assert len(shades) == 2  # a hatch, whatever the palette
    assert counts.min() > 0.4 * len(ignored)
    # and not a solid area in any row
    assert all(len(np.unique(row, axis=0)) == 2 for row in coloured[:, 100:])


def test_wrong_pixels_have_the_predicted_colour_and_only_certain_ones_are_confidently_wrong():
    label = np.array([[0, 1, 1, 255]], np.uint8)
    entropy = np.array([[0.0, 0.05, 0.5, 0.0]], np.float32)
    coloured = np.full((1, 4, 3), RED, np.uint8)
    prediction = Prediction(np.zeros((1, 4), np.uint8), entropy)
    pictures = wrong_pixels(np.full((2, 8, 3), 100, np.uint8), label, prediction, coloured)
    faded = (205, 205, 205)  # light
    assert pictures["wrong"][0].tolist() == [list(faded), list(RED), list(RED), list(faded)]
    assert pictures["confidently-wrong"][0].tolist() == [list(faded), list(RED), list(faded), list(faded)]
