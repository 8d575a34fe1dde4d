"""Samplers, and passes over all files for statistics."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from scipy.special import softmax

from dem_apps.errors import InputError
from seg.data.datasets import SegmentationDataset
from seg.data.labels import IGNORE_INDEX
from seg.data.loader import Epochs, RareClasses, labelled_sampler
from seg.data.statistics import class_pixels

# three images of 100 pixels; of class 2 there is too little everywhere, class 3 is nowhere; the last column is ignored
PIXELS = np.array([[90, 5, 1, 0, 4], [95, 0, 0, 0, 5], [50, 40, 2, 0, 8]])


def drawn(sampler, count=4000):
    return np.bincount([sampler.index(position) for position in range(count)], minlength=3) / count


@pytest.mark.parametrize("temperature", [10.0, 0.5, 0.01, 0.0001])
def test_classes_are_drawn_as_published(temperature):
    """Softmax of (1 - f) / T over the classes that are there: get_rcs_class_probs of DAFormer."""
    shares = np.array([235, 45, 3]) / 283
    probabilities = RareClasses(PIXELS, temperature, 0.04, (0,)).probabilities
    assert np.isfinite(probabilities).all()
    np.testing.assert_allclose(probabilities[:3], softmax((1 - shares) / temperature), rtol=1e-9)
    assert probabilities[3] == 0


def test_an_image_that_shows_enough_of_the_class_is_drawn():
    sampler = RareClasses(PIXELS, 0.5, 0.04, (0, 7))
    road, sign, fallback, _ = sampler.probabilities
    # class 0 is in all images, class 1 in the first and third, class 2 by default in those that have any
    expected = [road / 3 + sign / 2 + fallback / 2, road / 3, road / 3 + sign / 2 + fallback / 2]
    np.testing.assert_allclose(drawn(sampler), expected, atol=0.03)
    stricter = RareClasses(PIXELS, 0.5, 0.06, (0, 7))
    expected = [road / 3 + fallback / 2, road / 3, road / 3 + sign + fallback / 2]
    np.testing.assert_allclose(drawn(stricter), expected, atol=0.03)


def test_ignored_pixels_belong_to_the_image_but_are_no_class():
    pixels = np.array([[0, 5, 95], [5, 5, 0]])
    sampler = RareClasses(pixels, 0.5, 0.2, (0,))
    np.testing.assert_allclose(sampler.probabilities, softmax((1 - np.array([1, 2]) / 3) / 0.5))
    # class 1 is 5 % of the first image, although it is all that is labelled there
    assert set(np.flatnonzero(drawn(sampler))) == {1}


def test_passes_show_every_sample_once():
    sampler = Epochs(5, (3, 0))
    passes = [[sampler.index(number * 5 + place) for place in range(5)] for number in range(3)]
    assert all(sorted(order) == list(range(5)) for order in passes)
    assert len({tuple(order) for order in passes}) > 1


@pytest.mark.parametrize(("size", "workers"), [(None, 0), ((48, 24), 2)])
def test_class_pixels_are_those_of_the_labels_that_training_reads(tiny_pair, size, workers):
    dataset = SegmentationDataset(tiny_pair.source_root, "gta5", "train", labelled=True, size=size)
    ids = [*range(len(dataset.classes)), IGNORE_INDEX]
    expected = [[(sample.label == train_id).sum() for train_id in ids] for sample in dataset]
    np.testing.assert_array_equal(class_pixels(dataset, workers), expected)


def test_labels_that_cannot_be_read_or_are_all_ignored_are_named(source):
    dataset = SegmentationDataset(source, "gta5", "train", labelled=True)
    (source / "labels" / "00002.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"00002.png: the image cannot be read"):
        labelled_sampler([dataset], (3, 0), 0.01)
    for label in (source / "labels").iterdir():
        Image.fromarray(np.zeros((48, 96), np.uint8)).save(label)
    with pytest.raises(InputError, match=r"--source.rare-class-temperature: every pixel of every label in .* is ignor"):
        labelled_sampler([dataset], (3, 0), 0.01)
