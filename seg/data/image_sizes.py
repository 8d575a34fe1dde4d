"""Chooses a training size for images that are large, or of several sizes."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError
from seg.data.files import Size
from seg.data.layouts import AUTO, LAYOUTS, named_layout
from seg.data.read_images import read_header

#: Most pixels of images that are not resized unasked: 256 × 192 on a CPU, 1024 × 512 on a GPU.
MOST_PIXELS = {"cpu": 256 * 192, "cuda": 1024 * 512}
#: A side after resizing is a multiple of it, as encoders halve images five times.
_MULTIPLE = 32
#: Parts of the names of albumentations' transforms that change an image's size.
#: Crops are among them: a crop may set the size in place of a resize.
_CHANGES_SIZE = ("Crop", "Resize", "RandomScale", "MaxSize", "Pad")


def quick_size(
    domain: str, root: Path, layout: str, augmentation: list[dict[str, Any]], device: str
) -> tuple[list[int], str] | None:
    """Choose a size of at most about :data:`MOST_PIXELS` for a domain's images.

    Args:
        domain: ``source`` or ``target``, for the sentence.
        root: folder of the data set.
        layout: name of its layout, or ``auto``.
        augmentation: albumentations' steps; one that sets the size leaves the images as they are.
        device: type of the device; all but ``cpu`` are as ``cuda``.

    Returns:
        Width and height, and a sentence about them; None where the images keep their size.
    """
    if _sets_size(augmentation) or not (sizes := _sizes(root, layout)):
        return None
    (width, height), _ = sizes.most_common(1)[0]
    scale = math.sqrt(MOST_PIXELS.get(device, MOST_PIXELS["cuda"]) / (width * height))
    if scale >= 1 and len(sizes) == 1:
        return None
    size = [width, height]
    if scale < 1:
        size = [max(_MULTIPLE, round(side * scale / _MULTIPLE) * _MULTIPLE) for side in size]
    others, another = "", f"{width},{height} keeps them"
    if len(sizes) > 1:
        others, another = f" or of {len(sizes) - 1} other sizes", "W,H sets another"
    quick = " to be quick" if scale < 1 else ""
    return size, (
        f"size     {domain} images are {width}x{height}{others}, seen here at {size[0]}x{size[1]}{quick}; "
        f"--{domain}.size {another}"
    )


def _sets_size(augmentation: list[dict[str, Any]]) -> bool:
    steps = [step for step in augmentation if isinstance(step, dict)]  # others are refused later
    return any(part in name for step in steps for name in step for part in _CHANGES_SIZE)


def _sizes(root: Path, layout: str) -> Counter[Size]:
    """Count each size among the images that can be read."""
    images, sizes = set[Path](), Counter[Size]()
    for name in LAYOUTS if layout == AUTO else [layout]:
        for split in ("train", "val"):
            with suppress(InputError):
                images |= {image for image, _ in named_layout(name).pairs(root, split)}
    for file in images:
        with suppress(InputError):
            sizes[read_header(file).size] += 1
    return sizes
