"""Styles against their published definitions in numpy, and the draw of each sample."""

import dataclasses
import json

import cv2
import numpy as np
import pytest

from seg.data.datasets import Sample
from seg.data.settings import SourceConfig
from seg.data.style import TargetStyle, fourier, lab
from seg.train import train


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


def in_lab(image):
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


def styled_by(name, image, reference):
    return fourier(image, reference, 0.2) if name == "fourier" else lab(image, reference)


@pytest.mark.parametrize("name", ["fourier", "lab"])
@pytest.mark.parametrize("level", [0, 77])
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


def test_every_target_image_is_drawn_as_often_as_the_probability_says():
    levels = [0, 40, 80, 120, 160]
    references = [Sample("", np.full((2, 2, 3), level, np.uint8), None) for level in levels]
    style, image = TargetStyle("fourier", references, 0.05, 0.5), np.full((4, 4, 3), 250, np.uint8)
    drawn = [int(style(image, np.random.default_rng([3, 0, 5, position]))[0, 0, 0]) for position in range(1000)]
    counts = {level: drawn.count(level) for level in (*levels, 250)}
    assert sum(counts.values()) == 1000
    assert 420 < counts.pop(250) < 580  # five standard deviations are 79
    assert 53 < min(counts.values()) <= max(counts.values()) < 147  # and 47


def test_source_alone_learns_from_styled_images_and_says_so(tiny_config, tmp_path):
    losses, protocols = [], []
    for name in ("none", "fourier"):
        source = dataclasses.replace(tiny_config.source, style=name)
        run = train(dataclasses.replace(tiny_config, method="source", source=source, run_dir=str(tmp_path / name)))
        losses.append((run / "metrics.jsonl").read_text())
        protocols.append(json.loads((run / "eval.json").read_text())["protocol"])
    assert losses[0] != losses[1]
    assert [each["source_style"] for each in protocols] == ["none", "fourier, beta up to 0.05"]
    assert SourceConfig(style="lab", style_probability=0.5).described_style() == "lab, probability 0.5"
