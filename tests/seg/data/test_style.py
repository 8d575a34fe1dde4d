"""Styles against their published definitions in numpy, and the draw of each sample."""

from functools import partial

import cv2
import numpy as np
import pytest

from seg.data.datasets import Sample
from seg.data.settings import SourceConfig
from seg.data.style import fourier, target_style


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
    np.testing.assert_allclose(styled[0, 0], cv2.resize(reference, (96, 48), interpolation=3).mean((0, 1)), atol=1)


def test_every_target_image_is_drawn_as_often_as_the_probability_says():
    levels = [0, 40, 80, 120, 160]
    references = [Sample("", np.full((2, 2, 3), level, np.uint8), None) for level in levels]
    style, image = partial(target_style, references, 0.05, 0.5), np.full((4, 4, 3), 250, np.uint8)
    drawn = [int(style(image, np.random.default_rng([3, 0, 5, position]))[0, 0, 0]) for position in range(1000)]
    counts = {level: drawn.count(level) for level in (*levels, 250)}
    assert sum(counts.values()) == 1000
    assert 420 < counts.pop(250) < 580  # five standard deviations are 79
    assert 53 < min(counts.values()) <= max(counts.values()) < 147  # and 47


def test_a_style_is_described_in_the_protocol():
    assert SourceConfig(style="fourier").described_style() == "fourier, beta up to 0.05"
    assert SourceConfig(style="fourier", style_probability=0.5).described_style().endswith(", probability 0.5")
