"""The training stream: a function of seed and position, what samplers draw, augmentation, styles as published."""

import warnings
from functools import partial

import albumentations
import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import softmax
from support import cases, refuses
from torch.utils.data import ConcatDataset

from dem_apps.errors import InputError
from seg.data.datasets import Sample, SegmentationDataset
from seg.data.labels import IGNORE_INDEX
from seg.data.loader import batches, build_augmentation, fourier, target_style
from seg.data.samplers import Epochs, RareClasses, labelled_sampler
from seg.data.settings import SourceConfig
from seg.data.statistics import class_pixels

FLIP = [{"HorizontalFlip": {"p": 0.5}}, {"RandomBrightnessContrast": {"p": 1.0}}]


@pytest.fixture(scope="module")
def dataset(tiny_pair):
    return SegmentationDataset(tiny_pair / "gta5", "gta5", "train", labelled=True)


@pytest.fixture(scope="module")
def target(tiny_pair):
    return SegmentationDataset(tiny_pair / "cityscapes", "cityscapes", "train", labelled=True)


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert list(one["name"]) == list(other["name"])
        assert all(torch.equal(one[key], other[key]) for key in ("image", "label", "draw"))


@pytest.mark.parametrize("style", [None, "fourier"])
@pytest.mark.parametrize("rare", [None, 0.01])
def test_a_stream_is_a_function_of_seed_and_position(dataset, target, style, rare):
    """Whatever is resumed, read by workers, or shared by processes; with labelled target images beside the source."""
    given = None if style is None else partial(target_style, target, 0.2, 0.8)
    sampler, joined = (
        labelled_sampler([dataset, target], (3, 0), rare),
        ConcatDataset([dataset, target]),
    )

    def read(steps=range(6), workers=0, process=(0, 1), seed=(3, 0), style=given):
        return list(
            batches(joined, 4, steps, seed, FLIP, workers, process, sampler, style, len(dataset))
        )

    whole = read()
    assert_equal(read(range(4, 6)), whole[4:])
    assert_equal(read(range(2), workers=2), whole[:2])
    shares = [read(process=(rank, 2)) for rank in range(2)]
    joined_shares = [
        {
            key: [*one[key], *two[key]] if key == "name" else torch.cat([one[key], two[key]])
            for key in one
        }
        for one, two in zip(*shares, strict=True)
    ]
    assert_equal(joined_shares, whole)
    assert not torch.equal(read(range(1), seed=(4, 0))[0]["image"], whole[0]["image"])
    # labelled target images, at odd positions, keep their style
    for batch, plain in zip(whole, read(style=None), strict=True):
        assert torch.equal(batch["image"][1::2], plain["image"][1::2])
        assert torch.equal(batch["image"][::2], plain["image"][::2]) == (style is None)


def test_a_batch_that_cannot_be_shared_out_is_named(dataset):
    refuses(
        "--batch-size: 3 cannot be shared .* 2",
        next,
        batches(dataset, 3, range(1), (0, 0), [], process=(0, 2)),
    )


def test_images_of_several_sizes_need_a_size(source):
    for folder in ("images", "labels"):
        file = source / folder / "00002.png"
        Image.open(file).crop((0, 0, 40, 30)).save(file)
    mixed = SegmentationDataset(source, "gta5", "train", labelled=True)
    refuses(
        r"a batch needs images of one size, .*00002.png is 40x30",
        list,
        batches(mixed, 6, range(1), (0, 0), []),
    )
    same = SegmentationDataset(source, "gta5", "train", labelled=True, size=(32, 16))
    assert next(batches(same, 6, range(1), (0, 0), []))["image"].shape == (6, 3, 16, 32)


def test_augmentation_moves_image_and_label_together(dataset):
    plain, flipped = (
        {batch["name"][0]: batch for batch in batches(dataset, 1, range(6), (0, 0), steps)}
        for steps in ([], [{"HorizontalFlip": {"p": 1}}])
    )
    for name, batch in plain.items():
        assert torch.equal(flipped[name]["image"], batch["image"].flip(-1))
        assert torch.equal(flipped[name]["label"], batch["label"].flip(-1))


@cases(
    ([{"HorizontalFlp": {}}], "did you mean 'HorizontalFlip'"),
    ([{"Normalize": {"p": 0.01}}], r"'Normalize'"),
)
def test_a_wrong_augmentation_is_named(steps, message):
    refuses(message, build_augmentation, steps)


def test_an_augmentation_that_fails_is_one_sentence(dataset):
    crop = [{"RandomCrop": {"height": 500, "width": 500}}]
    refuses(
        r"^images/0000\d.png: augmentation failed: .*500",
        next,
        batches(dataset, 1, range(1), (0, 0), crop),
    )


#: Of transforms whose defaults bring nothing in from outside of the image, or that have none.
OUTSIDE = {
    "GridElasticDeform": {"num_grid_xy": [3, 3], "magnitude": 20},
    "Affine": {"rotate": 30},
    "CropAndPad": {"px": 9},
    "ElasticTransform": {"alpha": 300},
    "PadIfNeeded": {"min_height": 80, "min_width": 99, "border_mode": 0},
    "OpticalDistortion": {"distort_limit": 0.9},
}


def test_every_transform_of_albumentations_trains_or_is_one_sentence(source):
    """Whatever its defaults make of an image: a batch with the label that was there and none outside, or a sentence."""
    for label in (source / "labels").iterdir():
        Image.fromarray(np.full((48, 96), 8, np.uint8)).save(label)  # all of class 1
    dataset, trained, sentences = (
        SegmentationDataset(source, "gta5", "train", labelled=True),
        [],
        [],
    )
    for name in [name for name in dir(albumentations) if name[0].isupper()]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                (batch,) = batches(
                    dataset, 1, range(1), (0, 0), [{name: OUTSIDE.get(name, {}) | {"p": 1}}]
                )
        except InputError as error:
            sentences.append(str(error))
            continue
        assert (batch["image"].dtype, batch["image"].shape[1]) == (torch.float32, 3)
        assert batch["label"].shape == batch["image"].shape[:1] + batch["image"].shape[2:]
        assert {int(value) for value in batch["label"].unique()} <= {1, IGNORE_INDEX}, name
        trained.append(name)
    assert len(trained) > 70
    assert set(trained) >= OUTSIDE.keys()
    own = [{"Affine": {"rotate": [30, 30], "p": 1, "fill_mask": 0}}]
    assert 0 in next(batches(dataset, 1, range(1), (0, 0), own))["label"]
    assert not any("\n" in sentence for sentence in sentences)


# three images of 100 pixels; of class 2 there is too little everywhere, class 3 is nowhere; the last column is ignored
PIXELS = np.array([[90, 5, 1, 0, 4], [95, 0, 0, 0, 5], [50, 40, 2, 0, 8]])


def drawn(sampler, count=4000):
    return np.bincount([sampler(position) for position in range(count)], minlength=3) / count


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


def test_no_image_is_nearly_all_that_is_drawn():
    pixels = np.tile([1000, 0, 0], (50, 1))
    pixels[7] = [900, 100, 0]
    shares = drawn(RareClasses(pixels, 0.01, 0.005, (0, 7)))
    assert shares[7] == pytest.approx(10 / 50, abs=0.03)
    np.testing.assert_allclose(np.delete(shares, 7), 40 / 50 / 49, atol=0.015)


def test_passes_show_every_sample_once():
    sampler = Epochs(5, (3, 0))
    passes = [[sampler(number * 5 + place) for place in range(5)] for number in range(3)]
    assert all(sorted(order) == list(range(5)) for order in passes)
    assert len({tuple(order) for order in passes}) > 1


@pytest.mark.parametrize(("size", "workers"), [(None, 0), ((48, 24), 2)])
def test_class_pixels_are_those_of_the_labels_that_training_reads(tiny_pair, size, workers):
    dataset = SegmentationDataset(tiny_pair / "gta5", "gta5", "train", labelled=True, size=size)
    ids = [*range(len(dataset.classes)), IGNORE_INDEX]
    expected = [[(sample.label == train_id).sum() for train_id in ids] for sample in dataset]
    np.testing.assert_array_equal(class_pixels(dataset, workers), expected)


def test_class_pixels_are_counted_once(source, monkeypatch):
    monkeypatch.setenv("DEM_APPS_CACHE", str(source / "cache"))
    dataset = SegmentationDataset(source, "gta5", "train", labelled=True)
    first = class_pixels(dataset)
    monkeypatch.setattr(
        SegmentationDataset, "label", lambda self, index: pytest.fail("a label was read again")
    )
    np.testing.assert_array_equal(class_pixels(dataset), first)


def test_labels_that_cannot_be_read_or_are_all_ignored_are_named(source):
    dataset = SegmentationDataset(source, "gta5", "train", labelled=True)
    (source / "labels" / "00002.png").write_bytes(b"")
    refuses(r"00002.png: the image cannot be read", labelled_sampler, [dataset], (3, 0), 0.01)
    for label in (source / "labels").iterdir():
        Image.fromarray(np.zeros((48, 96), np.uint8)).save(label)
    words = r"--source.rare-class-temperature: every pixel of every label in .* is ignored"
    refuses(words, labelled_sampler, [dataset], (3, 0), 0.01)


def picture(seed, size, mean, contrast=20.0):
    """Smooth random blobs in all colours, far from black and white, so that nothing is clipped."""
    noise = np.random.default_rng(seed).normal(size=(*size, 3))
    blurred = cv2.GaussianBlur(noise, (0, 0), 2.0)
    return np.rint(blurred / blurred.std() * contrast + mean).clip(0, 255).astype(np.uint8)


def plain_fourier(image, reference, b):
    """Every coefficient of the full transform visited by itself, before rounding."""
    result = np.empty(image.shape)
    for channel in range(3):
        own, other = np.fft.fft2(image[..., channel]), np.fft.fft2(reference[..., channel])
        for row in range(-b, b + 1):
            for column in range(-b, b + 1):
                own[row, column] = abs(other[row, column]) * np.exp(1j * np.angle(own[row, column]))
        back = np.fft.ifft2(own)
        assert abs(back.imag).max() < 1e-9
        result[..., channel] = back.real
    return result


@pytest.mark.parametrize("size", [(48, 96), (49, 97)])
@pytest.mark.parametrize("b", [0, 1, 3])
def test_fourier_is_its_definition(size, b):
    image, reference = picture(0, size, 140), picture(1, size, 110)
    expected = plain_fourier(image, reference, b)
    assert expected.min() > 1
    assert expected.max() < 254
    styled = fourier(image, reference, (b + 0.5) / min(size))
    assert styled.dtype == np.uint8
    assert abs(styled - expected).max() < 0.501


@pytest.mark.parametrize("level", [0, 77])
def test_a_plain_image_stays_plain(level):
    reference = picture(1, (60, 80), 110)
    styled = fourier(np.full((48, 96, 3), level, np.uint8), reference, 0.2)
    assert styled.dtype == np.uint8
    assert (styled == styled[0, 0]).all()
    np.testing.assert_allclose(
        styled[0, 0], cv2.resize(reference, (96, 48), interpolation=3).mean((0, 1)), atol=1
    )


def test_every_target_image_is_drawn_as_often_as_the_probability_says():
    levels = [0, 40, 80, 120, 160]
    references = [Sample("", np.full((2, 2, 3), level, np.uint8), None) for level in levels]
    style, image = partial(target_style, references, 0.05, 0.5), np.full((4, 4, 3), 250, np.uint8)
    drawn = [
        int(style(image, np.random.default_rng([3, 0, 5, position]))[0, 0, 0])
        for position in range(1000)
    ]
    counts = {level: drawn.count(level) for level in (*levels, 250)}
    assert sum(counts.values()) == 1000
    assert 420 < counts.pop(250) < 580  # five standard deviations are 79
    assert 53 < min(counts.values()) <= max(counts.values()) < 147  # and 47


def test_a_style_is_described_in_the_protocol():
    assert SourceConfig(style="fourier").described_style() == "fourier, beta up to 0.05"
    assert (
        SourceConfig(style="fourier", style_probability=0.5)
        .described_style()
        .endswith(", probability 0.5")
    )
