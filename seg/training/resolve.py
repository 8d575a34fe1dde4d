"""Fill in defaults that depend on data and device."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from dem_apps.errors import InputError
from seg.config import TrainConfig
from seg.data.layouts import AUTO, fitting_layouts, named_layout
from seg.data.read_images import read_header
from seg.data.settings import DataConfig, SourceConfig, TargetDataConfig

#: Most pixels of images that are not resized unasked, on a CPU and on a GPU: those of 256 × 192 and of 1024 × 512.
MOST_PIXELS = {"cpu": 256 * 192, "cuda": 1024 * 512}
#: A side after resizing is a multiple of it, as encoders halve images five times.
_MULTIPLE = 32
#: In the names of albumentations' transforms after which images have another size: crops may stand for a size.
_CHANGES_SIZE = ("Crop", "Resize", "RandomScale", "MaxSize", "Pad")
Data = TypeVar("Data", SourceConfig, TargetDataConfig)


def resolve(config: TrainConfig, device: str) -> tuple[TrainConfig, list[str]]:
    """The settings with every default filled in but those of the network's layers, and lines for the user."""
    source, first = (config.source, "") if config.target.replaces_source() else _sized(config.source, "source", device)
    target, second = _sized(config.target, "target", device)
    config = replace(config.resolved(), source=source, target=target)
    return config, [line for line in (first, second) if line]


def _sized(data: Data, domain: str, device: str) -> tuple[Data, str]:
    """The data with a size where images are large or of several sizes, and neither size nor augmentation sets one."""
    sizes = Counter[tuple[int, int]]()
    names = [name for step in data.augmentation if isinstance(step, dict) for name in step]
    own_size = any(part in name for name in names for part in _CHANGES_SIZE)
    if data.root is not None and data.size is None and not own_size:
        for file in _images(data):
            with suppress(InputError):
                sizes[read_header(file).size] += 1
    if not sizes:
        return data, ""
    width, height = sizes.most_common(1)[0][0]
    scale = math.sqrt(MOST_PIXELS[device] / (width * height))
    if scale >= 1 and len(sizes) == 1:
        return data, ""
    seen = [width, height]
    if scale < 1:
        seen = [max(_MULTIPLE, round(side * scale / _MULTIPLE) * _MULTIPLE) for side in seen]
    others = f" or of {len(sizes) - 1} other size{'s' * (len(sizes) > 2)}" if len(sizes) > 1 else ""
    return replace(data, size=seen), (
        f"size     {domain} images are {width}x{height}{others}, seen here at {seen[0]}x{seen[1]} to be quick on this "
        f"{'CPU' if device == 'cpu' else 'GPU'}; --{domain}.size {width},{height} keeps them"
    )


def _images(data: DataConfig) -> set[Path]:
    root, found = Path(str(data.root)), set[Path]()
    for split in ("train", "val"):
        for name in fitting_layouts(root, split) if data.layout == AUTO else [data.layout]:
            with suppress(InputError):
                found |= {image for image, _ in named_layout(name).pairs(root, split)}
    return found
