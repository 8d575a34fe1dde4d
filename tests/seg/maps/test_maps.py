import matplotlib
import numpy as np
import torch

from seg.data.labels import CITYSCAPES_CLASSES
from seg.maps.entropy_maps import Prediction, coloured_entropy, coloured_label, wrong_pixels
from seg.maps.run_pictures import map_pictures
from seg.scores.report_scores import VIEWS

RED, GREEN, GREY = (230, 40, 10), (10, 200, 30), (200, 200, 200)


def filled(width, height, colour):
    return np.full((height, width, 3), colour, np.uint8)


def test_tiles_are_the_views_that_a_report_looks_for():
    logits = torch.zeros(19, 24, 48)
    logits[0, :, :40] = logits[13, :, 40:] = 50.0
    label = np.zeros((24, 48), np.uint8)
    tiles, _ = map_pictures(filled(48, 24, GREY), label, Prediction.of(logits), CITYSCAPES_CLASSES)
    assert tuple(tiles) == tuple(view.name for view in VIEWS)
    assert {tile.shape for tile in tiles.values()} == {(24, 48, 3)}
    np.testing.assert_array_equal(
        tiles["prediction"][0, [0, 47]], [CITYSCAPES_CLASSES.colors[i] for i in (0, 13)]
    )
    np.testing.assert_array_equal(
        tiles["entropy"], coloured_entropy(np.zeros((24, 48), np.float32))
    )
    np.testing.assert_array_equal(tiles["label"], filled(48, 24, CITYSCAPES_CLASSES.colors[0]))


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
    assert all(len(np.unique(row, axis=0)) == 2 for row in coloured[:, 100:])


def test_wrong_pixels_have_the_predicted_colour_and_only_certain_ones_are_confidently_wrong():
    label = np.array([[0, 1, 1, 255]], np.uint8)
    entropy = np.array([[0.0, 0.05, 0.5, 0.0]], np.float32)
    coloured = np.full((1, 4, 3), RED, np.uint8)
    prediction = Prediction(np.zeros((1, 4), np.uint8), entropy)
    pictures = wrong_pixels(np.full((2, 8, 3), 100, np.uint8), label, prediction, coloured)
    faded = (205, 205, 205)  # light
    assert pictures["wrong"][0].tolist() == [list(faded), list(RED), list(RED), list(faded)]
    assert pictures["confidently-wrong"][0].tolist() == [
        list(faded),
        list(RED),
        list(faded),
        list(faded),
    ]
