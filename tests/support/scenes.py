"""Small GeoTIFF scenes with six bands and pixels without data."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

rasterio = pytest.importorskip("rasterio")
#: Coordinate reference system and transform of every scene.
SCENE = ("EPSG:32632", (10.0, 0.0, 500_000.0, 0.0, -10.0, 5_400_000.0))
_SPECTRA = np.array(
    [
        [300, 800, 1500],
        [900, 400, 2500],
        [1200, 1100, 600],
        [3000, 700, 900],
        [500, 2500, 1500],
        [700, 600, 3000],
    ]
)


def write_scene(file: Path, values: NDArray[np.generic], nodata: float | None = None) -> None:
    """Write (H, W, B) numbers as a GeoTIFF."""
    file.parent.mkdir(parents=True, exist_ok=True)
    height, width, bands = values.shape
    with rasterio.open(
        file,
        "w",
        driver="GTiff",
        height=height,
        width=width,
        count=bands,
        dtype=values.dtype.name,
        crs=SCENE[0],
        transform=rasterio.Affine(*SCENE[1]),
        nodata=nodata,
        photometric="minisblack",
    ) as target:
        target.write(np.moveaxis(values, -1, 0))


def draw_scene(file: Path, seed: int, brighter: int = 0, label: Path | None = None) -> None:
    """32 × 24 pixels in six bands of uint16, three classes in blocks, nodata (0) in the upper quarter."""
    rows, columns = np.mgrid[:24, :32]
    ids = ((rows // 8 + columns // 8 + seed) % 3).astype(np.uint8)
    values = (
        np.moveaxis(_SPECTRA[:, ids], 0, -1)
        + brighter
        + np.random.default_rng(seed).normal(0, 50, (24, 32, 6))
    )
    values = values.clip(100, 4095).astype(np.uint16)
    values[:6] = 0
    write_scene(file, values, nodata=0)
    if label is not None:
        label.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(ids).save(label)


def draw_pair(root: Path) -> Path:
    """``mine`` with labels and ``theirs`` with labels of its validation images, in layout ``folders``; returns root."""
    for index in range(3):
        name = f"{index}.tif"
        draw_scene(
            root / "mine" / "images" / name, index, label=root / "mine" / "labels" / f"{index}.png"
        )
        draw_scene(root / "theirs" / "images" / "train" / name, 10 + index, 200)
    for index in range(2):
        label = root / "theirs" / "labels" / "val" / f"{index}.png"
        draw_scene(root / "theirs" / "images" / "val" / f"{index}.tif", 20 + index, 200, label)
    return root
