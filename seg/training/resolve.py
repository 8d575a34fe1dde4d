"""Fill in defaults that depend on data and device, and find given settings that have no effect beside the others."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from dem_apps.errors import InputError
from dem_apps.runtime.arguments import fields_of, flag
from seg.config import TrainConfig
from seg.data.layouts import AUTO, fitting_layouts, named_layout
from seg.data.read_images import read_header
from seg.data.settings import DataConfig, SourceConfig, TargetDataConfig
from seg.methods import METHODS

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
    found = unused(config)
    owned = {owner: ", ".join(flag(key) for key in found if found[key] == owner) for owner in found.values()}
    config = replace(config.resolved(), source=source, target=target)
    lines = [line for line in (first, second) if line]
    return config, lines + [f"unused   {flags}: of {owner}" for owner, flags in owned.items()]


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


def _on_target(config: TrainConfig) -> bool:
    return METHODS[config.method].uses_target


def _objective(config: TrainConfig) -> bool:
    return _on_target(config) and config.loss != "none"


def _re_estimates(config: TrainConfig) -> bool:
    after = config.batch_norm_after
    return after == "target" or (after is None and _on_target(config) and config.model.batch_norm is None)


def _auxiliary(config: TrainConfig) -> bool:
    name = config.model.resolved().name
    return str(name).startswith("deeplabv2") or name == "pretrained"


#: How keys begin, what these settings belong to, and whether a training makes use of them.
_USES: tuple[tuple[tuple[str, ...], str, Callable[[TrainConfig], bool]], ...] = (
    (("target.augmentation",), "a method that reads target images", _on_target),
    (
        ("weights.back_off", "weights.relative", "weights.aux"), "a loss on target images",
        lambda config: _objective(config) or config.method not in ("source", "minent"),
    ),
    (("loss",), "a method that reads target images", lambda config: _on_target(config) or config.loss == "none"),
    (("reduction", "weights.target_"), "an objective on target images", _objective),
    (
        ("balance",), "an objective with --reduction balanced",
        lambda config: _objective(config) and config.reduction == "balanced",
    ),
    (
        ("weights.seg_aux", "weights.aux"), "a network with an auxiliary head, deeplabv2", _auxiliary,
    ),
    (("optimizer.momentum",), "--optimizer.name sgd", lambda config: config.optimizer.name == "sgd"),
    (("source.style_beta",), "--source.style fourier", lambda config: config.source.style == "fourier"),
    (("source.style_probability",), "a --source.style", lambda config: config.source.style != "none"),
    (
        ("source.rare_class_pixels",), "--source.rare-class-temperature",
        lambda config: config.source.rare_class_temperature is not None,
    ),
    (("bn_alpha",), "--batch-norm-after target", _re_estimates),
    (
        ("self_training.threshold",), "--self-training.weighting image or pixel",
        lambda config: config.self_training.weighting != "adaptive",
    ),
)  # fmt: skip


def unused(config: TrainConfig) -> dict[str, str]:
    """Return the keys of settings that differ from the default and change nothing, each with its owner."""
    found, default = dict[str, str](), TrainConfig()
    for key, _, hint in fields_of(TrainConfig):
        read = operator.attrgetter(key)
        if dataclasses.is_dataclass(hint) or read(config) == read(default):
            continue
        section = key.partition(".")[0]
        owners = [
            method for method, row in METHODS.items() if section == row.section or key == f"weights.{row.weight}_main"
        ]
        if owners and config.method not in owners:
            found[key] = f"--method {', '.join(owners)}"
        for begins, belong_to, used in _USES:
            if key.startswith(begins) and not used(config):
                found.setdefault(key, belong_to)
    return found
