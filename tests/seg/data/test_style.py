"""Styles against their published definitions, written once more in numpy, and what is drawn for which sample."""

from __future__ import annotations

import json
from typing import Any

import albumentations
import cv2
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset

from dem_apps.errors import InputError
from dem_apps.runtime.settings import parse_config
from seg.config import SourceConfig, TargetDataConfig, TrainConfig
from seg.data.datasets import Sample, SegmentationDataset
from seg.data.loader import batches
from seg.data.sampling import labelled_sampler
from seg.data.style import TargetStyle, fourier, histogram, lab
from seg.train import train

FLIP = [{"HorizontalFlip": {"p": 0.5}}, {"RandomBrightnessContrast": {"p": 1.0}}]
SIZES = [(48, 96), (49, 97), (48, 97), (50, 40)]


def picture(seed: int, size: tuple[int, int], mean: float, contrast: float = 20.0) -> np.ndarray:
    """Smooth random blobs in all colours, far from black and white, so that nothing is clipped."""
    noise = np.random.default_rng(seed).normal(size=(*size, 3))
    blurred = cv2.GaussianBlur(noise, (0, 0), 2.0)
    return np.rint(blurred / blurred.std() * contrast + mean).clip(0, 255).astype(np.uint8)


def plain_fourier(image: np.ndarray, reference: np.ndarray, b: int) -> np.ndarray:
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


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("b", [0, 1, 3])
def test_fourier_is_its_definition(size, b):
    image, reference = picture(0, size, 140), picture(1, size, 110)
    expected = plain_fourier(image, reference, b)
    assert expected.min() > 1
    assert expected.max() < 254
    styled = fourier(image, reference, (b + 0.5) / min(size))
    assert styled.dtype == np.uint8
    assert abs(styled - expected).max() < 0.501


def test_albumentations_leaves_the_mean_out_at_even_sides():
    """Why fourier is not theirs; when this fails, it can be."""
    image, reference = picture(0, (96, 192), 140), picture(1, (96, 192), 110)
    beta = 1.5 / 96
    theirs = albumentations.FDA(beta_limit=(beta, beta), p=1.0)(image=image, fda_metadata=[reference])["image"]
    assert abs(theirs.mean() - image.mean()) < 1
    assert abs(fourier(image, reference, beta).mean() - reference.mean()) < 0.1


def in_lab(image: np.ndarray) -> np.ndarray:
    """CIE Lab under D65 of an sRGB image, from the definitions of IEC 61966-2-1 and CIE 15; (H · W, 3)."""
    value = image.reshape(-1, 3) / 255
    linear = np.where(value > 0.04045, ((value + 0.055) / 1.055) ** 2.4, value / 12.92)
    matrix = [[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]]
    xyz = linear @ np.array(matrix).T / [0.950456, 1.0, 1.088754]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


@pytest.mark.parametrize("size", [(48, 96), (60, 33)])
def test_lab_has_the_mean_and_deviation_of_the_reference(size):
    image, reference = picture(0, (48, 96), 140, 15), picture(1, size, 110, 10)
    reference[..., 2] -= 20
    own, other, result = in_lab(image), in_lab(reference), in_lab(lab(image, reference))
    # OpenCV's own Lab is up to 0.15 from the definition
    np.testing.assert_allclose(result.mean(0), other.mean(0), atol=0.25)
    np.testing.assert_allclose(result.std(0), other.std(0), atol=0.25)
    assert abs(own.mean(0) - other.mean(0)).min() > 1
    # the same picture: each channel is a linear function of its own
    for channel in range(3):
        assert np.corrcoef(own[:, channel], result[:, channel])[0, 1] > 0.99


def cumulative(image: np.ndarray, channel: int) -> np.ndarray:
    return np.cumsum(np.bincount(image[..., channel].ravel(), minlength=256)) / image[..., channel].size


@pytest.mark.parametrize("size", [(48, 96), (96, 192)])
def test_histogram_has_the_cumulative_histogram_of_the_reference(size):
    image, reference = picture(0, (48, 96), 140), picture(1, size, 90, 30)
    styled = histogram(image, reference)
    for channel in range(3):
        own, other, result = (cumulative(each, channel) for each in (image, reference, styled))
        # a grey level of the image goes to one grey level as a whole, and the library cuts decimals off
        step = np.bincount(image[..., channel].ravel()).max() / image[..., channel].size
        inside = np.maximum(other[:-1] - result[:-1], result[:-1] - other[1:])
        assert inside.max() < 1.5 * step
        assert abs(own - other).max() > 10 * step


def styled_by(name: str, image: np.ndarray, reference: np.ndarray) -> np.ndarray:
    return {"fourier": lambda: fourier(image, reference, 0.2), "lab": lambda: lab(image, reference),
            "histogram": lambda: histogram(image, reference)}[name]()  # fmt: skip


@pytest.mark.parametrize("name", ["fourier", "lab", "histogram"])
@pytest.mark.parametrize("level", [0, 77, 255])
def test_a_plain_image_stays_plain(name, level):
    reference = picture(1, (60, 80), 110)
    plain = np.full((48, 96, 3), level, np.uint8)
    styled = styled_by(name, plain, reference)
    assert styled.dtype == np.uint8
    assert (styled == styled[0, 0]).all()
    if name == "fourier":
        np.testing.assert_allclose(styled[0, 0], cv2.resize(reference, (96, 48), interpolation=3).mean((0, 1)), atol=1)
    if name == "lab":
        np.testing.assert_allclose(in_lab(styled)[0], in_lab(reference).mean(0), atol=0.5)


@pytest.mark.parametrize("name", ["fourier", "lab", "histogram"])
def test_a_grey_image_gets_no_coloured_noise(name):
    grey = np.repeat(picture(0, (48, 96), 140)[..., :1], 3, axis=2)
    grey_reference = np.repeat(picture(1, (48, 96), 110)[..., :1], 3, axis=2)
    assert np.ptp(styled_by(name, grey, grey_reference).astype(int), axis=2).max() <= 1
    if name == "lab":  # no contrast in a and b: a tint
        tinted = in_lab(lab(grey, picture(1, (48, 96), 110)))
        assert tinted[:, 1:].std(0).max() < 0.5


@pytest.fixture(scope="module")
def source(tiny_pair):
    return SegmentationDataset(tiny_pair.source_root, "gta5", "train", labelled=True)


@pytest.fixture(scope="module")
def target(tiny_pair):
    return SegmentationDataset(tiny_pair.target_root, "cityscapes", "train", labelled=False)


def read(source, style, steps=range(6), seed=(3, 0), augmentation=FLIP, **options):
    return list(batches(source, 2, steps, seed, augmentation, style=style, **options))


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert one["name"] == other["name"]
        assert torch.equal(one["image"], other["image"])
        assert torch.equal(one["label"], other["label"])


@pytest.mark.parametrize("name", ["fourier", "lab", "histogram"])
def test_a_styled_stream_is_a_function_of_seed_and_position(source, target, name):
    style = TargetStyle(name, target, 0.2, 0.8)
    whole = read(source, style)
    assert_equal(read(source, style, range(4, 6)), whole[4:])
    assert_equal(read(source, style, range(2), workers=2), whole[:2])
    parts = [read(source, style, process=(rank, 2)) for rank in range(2)]
    for batch, shares in zip(whole, zip(*parts, strict=True), strict=True):
        assert torch.equal(torch.cat([share["image"] for share in shares]), batch["image"])
    other_seed = read(source, style, seed=(4, 0), augmentation=[])
    assert not torch.equal(other_seed[0]["image"], read(source, style, augmentation=[])[0]["image"])


def test_every_target_image_is_drawn_as_often_as_the_probability_says():
    levels = [0, 40, 80, 120, 160]
    references: Any = [Sample("", np.full((2, 2, 3), level, np.uint8), None) for level in levels]
    style, image = TargetStyle("fourier", references, 0.05, 0.5), np.full((4, 4, 3), 250, np.uint8)
    drawn = [int(style(image, np.random.default_rng([3, 0, 5, position]))[0, 0, 0]) for position in range(1000)]
    counts = {level: drawn.count(level) for level in (*levels, 250)}
    assert sum(counts.values()) == 1000
    assert 420 < counts.pop(250) < 580  # five standard deviations are 79
    assert 53 < min(counts.values()) <= max(counts.values()) < 147  # and 47


def test_labelled_target_images_keep_their_style(source, target, tiny_pair):
    """And the source's images look as they do with nothing beside them at that position."""
    labelled = SegmentationDataset(tiny_pair.target_root, "cityscapes", "train", labelled=True)
    sampler = labelled_sampler([source, labelled], (3, 0))
    joined, style = ConcatDataset([source, labelled]), TargetStyle("lab", target, 0.05, 1.0)
    plain = read(joined, None, sampler=sampler)
    styled = read(joined, style, sampler=sampler, styled=len(source))
    everywhere = read(joined, style, sampler=sampler)
    for one, other, changed in zip(plain, styled, everywhere, strict=True):
        assert one["name"] == other["name"]
        assert torch.equal(one["image"][1], other["image"][1])
        assert not torch.equal(one["image"][0], other["image"][0])
        assert not torch.equal(one["image"][1], changed["image"][1])
        assert torch.equal(other["image"][0], changed["image"][0])


def test_the_style_comes_before_the_augmentation(source, target):
    """Of the whole image, and what the augmentation does to colours stays."""
    inverted = [{"InvertImg": {"p": 1.0}}]
    style = TargetStyle("lab", target, 0.05, 1.0)
    plain, after = (read(source, style, range(1), augmentation=steps)[0]["image"] for steps in ([], inverted))
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    assert torch.allclose(1 - (plain * std + mean), after * std + mean, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--source.style", "furier"], r"^--source.style: 'furier' is not one of none, fourier, lab, histogram; did"),
        (["--source.style-beta", "0.6"], r"^--source.style-beta: expected 0.5 at most, got 0.6$"),
        (["--source.style-probability", "-1"], r"^--source.style-probability: expected 0.0 or more, got -1"),
        (["--target.style", "lab"], r"^unknown argument '--target.style'"),
    ],
)
def test_a_wrong_setting_is_one_sentence(flags, message):
    with pytest.raises(InputError, match=message):
        parse_config(TrainConfig, "train", "train", flags)


def test_without_a_source_there_is_nothing_to_give_a_style():
    flags = ["--source.style", "lab", "--target.labelled-part", "0.5", "--target.labelled-use"]
    parse_config(TrainConfig, "train", "train", [*flags, "beside"]).check()
    with pytest.raises(InputError, match=r"^--source.style: .* --target.labelled-use instead there are none; leave it"):
        parse_config(TrainConfig, "train", "train", [*flags, "instead"]).check()


def test_source_alone_learns_from_styled_images_and_says_so(tiny_pair, tmp_path):
    settings = {
        "method": "source", "max_steps": 2, "eval_every": 2, "log_every": 1, "maps": 0,
        "target": TargetDataConfig(str(tiny_pair.target_root)),
    }  # fmt: skip
    losses, protocols = [], []
    for name in ("none", "fourier"):
        root = str(tiny_pair.source_root)
        run = train(TrainConfig(source=SourceConfig(root, style=name), run_dir=str(tmp_path / name), **settings))
        losses.append((run / "metrics.jsonl").read_text())
        protocols.append(json.loads((run / "eval.json").read_text())["protocol"])
    assert losses[0] != losses[1]
    assert [each["source_style"] for each in protocols] == ["none", "fourier, beta up to 0.05"]
    assert SourceConfig(style="lab", style_probability=0.5).described_style() == "lab, probability 0.5"
