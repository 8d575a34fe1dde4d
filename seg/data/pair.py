"""Opens the two domains that a configuration names; without names, the built-in demo pair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dem_apps.cache import cache_dir
from dem_apps.errors import InputError
from seg.config import DataConfig, TrainConfig
from seg.data.datasets import SegmentationDataset
from seg.data.demo import DemoPair, ensure_demo_pair


@dataclass(frozen=True)
class DomainPair:
    """Labelled source, unlabelled target for training, labelled target for scores."""

    source_train: SegmentationDataset
    target_train: SegmentationDataset
    target_val: SegmentationDataset


def open_pair(config: TrainConfig) -> DomainPair:
    """The data sets of a training run; the demo pair is drawn into the cache when it is missing.

    Raises:
        InputError: one root without the other, a folder that is missing or empty.
    """
    if (config.source.root is None) != (config.target.root is None):
        given, missing = ("source", "target") if config.source.root else ("target", "source")
        raise InputError(f"--{missing}.root is missing: --{given}.root is given, and a pair needs both (or none: demo)")
    source_root, target_root = _roots(config)
    source, target = config.source, config.target
    return DomainPair(
        SegmentationDataset(source_root, source.layout, "train", labelled=True, size=_size(source, "source")),
        # the target's training labels are never opened
        SegmentationDataset(target_root, target.layout, "train", labelled=False, size=_size(target, "target")),
        open_validation(target, target_root),
    )


def open_validation(target: DataConfig, root: Path | None = None) -> SegmentationDataset:
    """The target's validation set: images at the training size, labels at their own, as scores want them."""
    if root is None:
        root = Path(target.root) if target.root is not None else _demo_pair().target_root
    return SegmentationDataset(
        root, target.layout, "val", labelled=True, size=_size(target, "target"), resize_labels=False
    )


def _roots(config: TrainConfig) -> tuple[Path, Path]:
    if config.source.root is None or config.target.root is None:
        pair = _demo_pair()
        return pair.source_root, pair.target_root
    return Path(config.source.root), Path(config.target.root)


def _demo_pair() -> DemoPair:
    folder = cache_dir() / "demo"
    try:
        return ensure_demo_pair(folder, progress=_report)
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise InputError(
            f"{folder}: the demo pair cannot be written there ({error}); name another cache folder in DEM_APPS_CACHE"
        ) from error


def _report(done: int, total: int) -> None:
    if done == 1:
        print(f"drawing the demo pair, {total} images, once, into {cache_dir() / 'demo'}", flush=True)


def _size(data: DataConfig, domain: str) -> tuple[int, int] | None:
    if data.size is None:
        return None
    if len(data.size) != 2 or min(data.size) < 1:
        raise InputError(f"--{domain}.size: expected [width, height] in pixels, got {data.size}")
    return data.size[0], data.size[1]
