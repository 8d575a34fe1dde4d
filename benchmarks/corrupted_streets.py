"""Corrupted images of the demo world and scores on them, for the benchmarks of test-time adaptation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import albumentations as A
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from seg.data.labels import IGNORE_INDEX
from seg.models.predictor import upsampled
from seg.scores.metrics import confusion as pixels_by_class

#: Width and height; half of the demo's.
SIZE = (96, 48)
#: Images from here on are in no training.
FIRST_IMAGE = 1000
#: Name → transform at strength 1, 2, 3.
CORRUPTIONS: dict[str, Any] = {
    "fog": lambda s: A.RandomFog(fog_coef_range=([0.3, 0.6, 0.9][s - 1],) * 2, alpha_coef=0.1, p=1),
    "rain": lambda s: A.RandomRain(
        drop_length=6, drop_width=1, blur_value=[1, 3, 5][s - 1], brightness_coefficient=[0.8, 0.65, 0.5][s - 1], p=1
    ),
    "snow": lambda s: A.RandomSnow(
        snow_point_range=([0.15, 0.3, 0.5][s - 1],) * 2, brightness_coeff=[1.5, 2.0, 2.5][s - 1], method="bleach", p=1
    ),
    "night": lambda s: A.RandomGamma(gamma_limit=([170, 250, 400][s - 1],) * 2, p=1),
    "gaussian blur": lambda s: A.GaussianBlur(blur_limit=0, sigma_limit=([0.7, 1.4, 2.5][s - 1],) * 2, p=1),
    "motion blur": lambda s: A.MotionBlur(blur_limit=([3, 5, 9][s - 1],) * 2, p=1),
    "gaussian noise": lambda s: A.GaussNoise(std_range=([0.04, 0.1, 0.2][s - 1],) * 2, p=1),
    "sensor noise": lambda s: A.ISONoise(
        color_shift=([0.03, 0.08, 0.2][s - 1],) * 2, intensity=([0.3, 0.7, 1.5][s - 1],) * 2, p=1
    ),
    "low contrast": lambda s: A.RandomBrightnessContrast(
        brightness_limit=(0, 0), contrast_limit=([-0.4, -0.6, -0.8][s - 1],) * 2, p=1
    ),
    "brightness": lambda s: A.RandomBrightnessContrast(
        brightness_limit=([0.2, 0.35, 0.5][s - 1],) * 2, contrast_limit=(0, 0), p=1
    ),
    "colour": lambda s: A.HueSaturationValue(
        hue_shift_limit=([10, 25, 60][s - 1],) * 2, sat_shift_limit=([-20, -60, -100][s - 1],) * 2,
        val_shift_limit=(0, 0), p=1,
    ),
    "compression": lambda s: A.ImageCompression(quality_range=([30, 12, 5][s - 1],) * 2, p=1),
}  # fmt: skip
#: Stronger ones, under which a network predicts few classes or one.
EXTREMES: dict[str, Any] = {
    "flat": lambda s: A.RandomBrightnessContrast((0, 0), ([-0.9, -0.95, -0.98][s - 1],) * 2, p=1),
    "dark": lambda s: _levels(lambda x: x * [0.1, 0.05, 0.02][s - 1]),
    "bright": lambda s: _levels(lambda x: 255 - (255 - x) * [0.2, 0.1, 0.04][s - 1]),
    "out of focus": lambda s: A.GaussianBlur(blur_limit=0, sigma_limit=([5.0, 8.0, 14.0][s - 1],) * 2, p=1),
    "negative": lambda s: _levels(lambda x: 255 - x * [1.0, 0.5, 0.2][s - 1]),
    "one channel": lambda s: _levels(lambda x: x * np.array([[1, 0.2, 0.2], [1, 0.05, 0.05], [0.2, 1, 0.02]][s - 1])),
    "strong noise": lambda s: A.GaussNoise(std_range=([0.4, 0.6, 0.9][s - 1],) * 2, p=1),
}


def _levels(change: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Any:
    return A.Lambda(image=lambda image, **_: np.clip(change(image.astype(float)), 0, 255).astype(np.uint8), p=1)


def corrupted(image: NDArray[np.uint8], corruption: str, strength: int, seed: int) -> NDArray[np.uint8]:
    """(H, W, 3) uint8, a function of its arguments."""
    if corruption == "clean":
        return image
    transform = A.Compose([(CORRUPTIONS | EXTREMES)[corruption](strength)], seed=seed)
    result: NDArray[np.uint8] = transform(image=image)["image"]
    return result


def confusion(logits: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(C, C) pixels by label (rows) and prediction.

    Args:
        logits: (B, C, h, w).
        labels: (B, H, W).
        classes: C.
    """
    predicted = upsampled(logits, (labels.shape[1], labels.shape[2])).argmax(1)
    counted = labels != IGNORE_INDEX
    return pixels_by_class(labels[counted], predicted[counted], classes)


def mean_iou(table: Tensor) -> float:
    """Over the classes that are in the labels or predicted."""
    hits, union = table.diag(), table.sum(0) + table.sum(1) - table.diag()
    return float((hits / union.clamp_min(1))[union > 0].mean())
