"""Small image files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def noise(seed: int, width: int, height: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save(file: Path, pixels: NDArray[np.uint8]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)
    return file
