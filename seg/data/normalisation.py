"""Images as the networks take them: ImageNet's mean becomes 0, its standard deviation 1."""

from __future__ import annotations

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Mean and standard deviation of ImageNet in RGB, 0 to 1: what the encoders' published weights expect.
MEAN, STD = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)

_NORMALISED = (np.arange(256, dtype=np.float32)[None, :, None] / 255.0 - MEAN) / STD


def normalised(image_hwc: NDArray[np.uint8]) -> Tensor:
    """(H, W, 3) uint8 RGB → (3, H, W) float32 with ImageNet's mean 0 and deviation 1."""
    # a table of the 256 values gives the same numbers as the arithmetic, in a fifth of its time
    return torch.from_numpy(np.ascontiguousarray(cv2.LUT(image_hwc, _NORMALISED).transpose(2, 0, 1)))
