"""Style transfer from target to source images; labels stay.

A style takes its statistics from one target training image, drawn anew for every source sample.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import scipy.fft
from numpy.typing import NDArray

from seg.data.datasets import SegmentationDataset

#: Grey levels: amplitudes below it are rounding errors of 32-bit arithmetic (1.4e-5 at most).
_NO_AMPLITUDE = 1e-4


def fourier(image: NDArray[Any], reference: NDArray[Any], beta: float) -> NDArray[Any]:
    """The image with the amplitudes of the reference's low frequencies; all phases stay its own.

    FDA (Yang and Soatto, CVPR 2020, arXiv 2004.05498), Eq. (3), as its authors' numpy code counts frequencies: those
    from −b to b on both axes, b = ⌊β · the shorter side⌋; albumentations' window (2.0.8) is one off the centre where a
    side is even. Images are (H, W, 3) uint8 RGB or (H, W, B) float32, the reference of any size.
    """
    height, width = image.shape[:2]
    if reference.shape != image.shape:
        # OpenCV takes four bands at a time
        parts = [reference[..., first : first + 3] for first in range(0, reference.shape[2], 3)]
        parts = [cv2.resize(part, (width, height), interpolation=cv2.INTER_AREA) for part in parts]
        reference = np.concatenate([part.reshape(height, width, -1) for part in parts], axis=2)
    spectrum, other = (scipy.fft.rfft2(each.astype(np.float32), axes=(0, 1)) for each in (image, reference))
    b = int(beta * min(height, width))
    # the frequencies of the second axis below 0 are the complex conjugates, and rfft2 does without
    window = np.ix_(np.arange(-b, b + 1), np.arange(b + 1))
    low = spectrum[window]
    # a frequency that an image such as a plain one lacks has no phase; the mean always has
    exchanged = np.abs(low) > _NO_AMPLITUDE * height * width
    exchanged[b, 0] = True
    spectrum[window] = np.where(exchanged, np.abs(other[window]) * np.exp(1j * np.angle(low)), low)
    result = scipy.fft.irfft2(spectrum, s=(height, width), axes=(0, 1))
    return np.asarray(np.rint(result).clip(0, 255) if image.dtype == np.uint8 else result, image.dtype)


def target_style(
    references: SegmentationDataset, beta: float, probability: float, image: NDArray[Any], random: np.random.Generator
) -> NDArray[Any]:
    """A source image, (H, W, 3) uint8 RGB or (H, W, B) float32, with this probability in a random target style.

    β is uniform from 0 to ``beta``.
    """
    if random.random() >= probability:
        return image
    reference = references[int(random.integers(len(references)))].image
    return fourier(image, reference, random.uniform(0.0, beta))
