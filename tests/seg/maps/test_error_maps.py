from __future__ import annotations

import numpy as np

from seg.maps.error_maps import wrong_pixels

RED = (230, 40, 10)


def test_wrong_pixels_have_the_predicted_colour_and_only_certain_ones_are_confidently_wrong():
    label = np.array([[0, 1, 1, 255]], np.uint8)
    entropy = np.array([[0.0, 0.05, 0.5, 0.0]], np.float32)
    coloured = np.full((1, 4, 3), RED, np.uint8)
    pictures = wrong_pixels(np.full((2, 8, 3), 100, np.uint8), label, np.zeros((1, 4), np.uint8), coloured, entropy)
    faded = (205, 205, 205)  # light
    assert pictures["wrong"][0].tolist() == [list(faded), list(RED), list(RED), list(faded)]
    assert pictures["confidently-wrong"][0].tolist() == [list(faded), list(RED), list(faded), list(faded)]
