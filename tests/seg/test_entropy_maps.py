from __future__ import annotations

import numpy as np
import torch

from seg.entropy_maps import coloured_entropy, coloured_prediction, normalised_entropy, panel


def test_entropy_is_on_one_scale_from_certain_to_uniform():
    logits = torch.zeros(19, 2, 3)
    logits[4, 0] = 100.0
    entropy = normalised_entropy(logits)
    np.testing.assert_allclose(entropy[0], 0.0, atol=1e-6)
    np.testing.assert_allclose(entropy[1], 1.0, atol=1e-6)


def test_colours_depend_on_the_value_alone():
    colours = coloured_entropy(np.array([[0.0, 0.5, 1.0]], np.float32))
    np.testing.assert_array_equal(colours[:, 1:2], coloured_entropy(np.array([[0.5]], np.float32)))
    brightness = colours.astype(int).sum(-1)[0]
    assert brightness[0] < brightness[1] < brightness[2]


def test_the_panel_shows_all_three_parts():
    image = np.full((24, 48, 3), 200, np.uint8)
    prediction = coloured_prediction(np.zeros((24, 48), np.int64), [(1, 2, 3)])
    entropy = coloured_entropy(np.ones((24, 48), np.float32))
    picture = np.asarray(panel(image, prediction, entropy, "mean 1.00"))
    width = 48 * 8
    for column, tile in enumerate((image, prediction, entropy)):
        x = column * (width + 4) + width // 2
        np.testing.assert_array_equal(picture[18 + 96, x], tile[12, 24])


def test_labels_larger_than_the_image_do_not_spill_over():
    image = np.full((24, 48, 3), 200, np.uint8)
    prediction = coloured_prediction(np.zeros((48, 96), np.int64), [(1, 2, 3)])
    entropy = coloured_entropy(np.ones((48, 96), np.float32))
    small = [tile[::2, ::2] for tile in (prediction, entropy)]
    np.testing.assert_array_equal(panel(image, prediction, entropy, ""), panel(image, *small, ""))
