from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from seg.data.labels import CITYSCAPES_CLASSES
from seg.maps.entropy_maps import coloured_entropy, coloured_prediction
from seg.maps.panels import Row, comparison, map_pictures, panel
from seg.scores.described_metrics import VIEWS

RED, GREEN, BLUE = (230, 40, 10), (10, 200, 30), (20, 30, 220)


def grey(width: int, height: int) -> np.ndarray:
    return np.full((height, width, 3), 200, np.uint8)


def filled(width: int, height: int, colour: tuple[int, int, int]) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def extent(picture: Image.Image, colour: tuple[int, int, int]) -> tuple[int, int, int]:
    """Width, height and left edge of the area that a colour covers."""
    ys, xs = np.nonzero((np.asarray(picture) == colour).all(-1))
    return int(np.ptp(xs)) + 1, int(np.ptp(ys)) + 1, int(xs.min())


def test_the_panel_shows_image_prediction_and_entropy_from_left_to_right():
    prediction = coloured_prediction(np.zeros((24, 48), np.int64), [GREEN])
    picture = panel(filled(48, 24, RED), prediction, filled(48, 24, BLUE), "mean 1.00")
    left, middle, right = (extent(picture, colour) for colour in (RED, GREEN, BLUE))
    assert left[:2] == middle[:2] == right[:2] == (384, 192)
    assert left[2] + 384 < middle[2] < right[2] - 384


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        ((192, 96), (384, 192)),
        ((2048, 1024), (640, 320)),
        ((1000, 3000), (213, 640)),
        ((300, 400), (300, 400)),
        ((5, 9), (355, 639)),
        ((3000, 2), (640, 1)),
    ],
)
def test_tiles_are_legible_and_never_huge(size, shown):
    picture = panel(grey(*size), filled(*size, GREEN), filled(*size, BLUE), "mean 0.00")
    assert extent(picture, GREEN)[:2] == shown


def test_a_reduced_prediction_has_no_colour_between_classes():
    prediction = coloured_prediction(np.indices((900, 1800)).sum(0) % 2, [GREEN, BLUE])
    picture = np.asarray(panel(grey(1800, 900), prediction, grey(1800, 900), ""))
    green, blue = ((picture == colour).all(-1).sum() for colour in (GREEN, BLUE))
    assert green + blue == 640 * 320


def test_a_comparison_has_a_row_per_run_below_each_other():
    colours = (GREEN, BLUE)
    rows = [Row(name, filled(48, 24, c), grey(48, 24), "") for name, c in zip("ab", colours, strict=True)]
    picture = np.asarray(comparison(grey(48, 24), rows))
    tops = [np.nonzero((picture == colour).all(-1))[0].min() for colour in colours]
    assert tops[1] - tops[0] > 192
    assert picture.shape[0] > 2 * 192


def test_a_legend_is_wrapped_inside_the_picture():
    legend = [(f"a class with a name {index}", (250, 5, index)) for index in range(30)]
    plain = panel(grey(30, 60), grey(30, 60), grey(30, 60), "")
    picture = panel(grey(30, 60), grey(30, 60), grey(30, 60), "", legend)
    assert picture.width == plain.width
    assert picture.height > plain.height
    shown = {colour for _, colour in picture.getcolors(maxcolors=10**6)}
    assert shown.issuperset(colour for _, colour in legend)
    # the right margin is free: nothing is cut off
    assert (np.asarray(picture)[plain.height :, -3:] == 255).all()


# -- what a training shows of an image ------------------------------------------------------------------------------


def shown(label: np.ndarray | None) -> tuple[dict[str, np.ndarray], Image.Image]:
    logits = torch.zeros(19, 24, 48)
    logits[0, :, :40] = 50.0
    logits[13, :, 40:] = 50.0
    return map_pictures(grey(48, 24), label, logits, CITYSCAPES_CLASSES)


def test_tiles_are_the_views_that_a_report_looks_for():
    tiles, _ = shown(np.zeros((24, 48), np.uint8))
    assert tuple(tiles) == tuple(view.name for view in VIEWS)
    assert {tile.shape for tile in tiles.values()} == {(24, 48, 3)}
    np.testing.assert_array_equal(tiles["prediction"][0, [0, 47]], [CITYSCAPES_CLASSES.colors[i] for i in (0, 13)])
    np.testing.assert_array_equal(tiles["entropy"], coloured_entropy(np.zeros((24, 48), np.float32)))
    np.testing.assert_array_equal(tiles["label"], filled(48, 24, CITYSCAPES_CLASSES.colors[0]))


def test_the_panel_lists_the_predicted_classes_alone():
    _, picture = shown(None)
    below = np.asarray(picture)[-24:].reshape(-1, 3)
    for index, listed in ((0, True), (13, True), (2, False)):
        assert (below == CITYSCAPES_CLASSES.colors[index]).all(-1).any() == listed
