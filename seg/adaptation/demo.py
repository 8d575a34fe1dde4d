"""Without data of one's own: a small network of the built-in street world, and its target in fog.

Both are made once and kept in the cache.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import albumentations
import numpy as np
from PIL import Image

from dem_apps.runtime.cache import cache_dir
from dem_apps.runtime.progress import track
from seg.config import SourceConfig, TargetDataConfig, TrainConfig
from seg.demo.street.looks import target_look
from seg.demo.street.world import WORLD_VERSION, draw_street
from seg.train import train

#: Of the network's training on source images alone, which it sees at this width and height: about a minute.
STEPS, SEEN = 300, (96, 48)
#: Pictures in fog, and their width and height.
IMAGES, SIZE = 40, (192, 96)
_FOG = (0.7, 0.7)


def demo_network() -> Path:
    """The run folder of a network that has seen the source alone, trained where there is none yet."""

    def make(folder: Path) -> None:
        print(f"training the demo's network on source images, {STEPS} steps, once: about a minute", flush=True)
        config = TrainConfig(
            method="source", max_steps=STEPS, batch_size=4, eval_every=STEPS, maps=0, device="cpu",
            source=SourceConfig(size=list(SEEN)), target=TargetDataConfig(size=list(SEEN)),
            run_dir=str(folder / "run"),
        )  # fmt: skip
        # its own lines would name a folder that is about to be renamed
        with open(folder / "training.log", "w", encoding="utf-8") as log, redirect_stdout(log):
            train(config)

    return _kept(f"source-v{WORLD_VERSION}-{STEPS}-{SEEN[0]}", make, _has_its_end) / "run"


def _has_its_end(folder: Path) -> bool:
    """What it read before that, the checkpoint, has checksums of its own."""
    return (folder / "run" / "eval.json").is_file()


def foggy_target() -> tuple[Path, Path]:
    """Folders of images and of their labels: pictures of the target's world that no training saw, in fog."""

    def make(folder: Path) -> None:
        for name in ("images", "labels"):
            (folder / name).mkdir()
        for index in track(range(IMAGES), IMAGES, "drawing the foggy target"):
            picture, label = draw_street(target_look(0, 1.0), "val", 1000 + index, seed=0, size=SIZE)
            fog = albumentations.Compose(
                [albumentations.RandomFog(fog_coef_range=_FOG, alpha_coef=0.1, p=1)], seed=index
            )
            Image.fromarray(fog(image=picture)["image"]).save(folder / "images" / f"{index:03d}.png")
            Image.fromarray(label.astype(np.uint8)).save(folder / "labels" / f"{index:03d}.png")

    folder = _kept(f"foggy-v{WORLD_VERSION}-{IMAGES}-{_FOG[0]:g}", make, _has_all_pictures)
    return folder / "images", folder / "labels"


def _has_all_pictures(folder: Path) -> bool:
    """With one missing or emptied the command would adapt to fewer without a word."""
    files = (folder / part / f"{index:03d}.png" for part in ("images", "labels") for index in range(IMAGES))
    return all(file.is_file() and file.stat().st_size > 0 for file in files)


def _kept(name: str, make: Callable[[Path], None], whole: Callable[[Path], bool]) -> Path:
    """A folder of the cache; ``make`` fills it where it is missing or not whole, and it appears when it is."""
    place = cache_dir() / "adapt" / name
    if whole(place):
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=place.parent))
    try:
        make(draft)
        draft.chmod(0o755)  # mkdtemp's own would lock out others of a shared cache
        if place.is_dir() and not whole(place):
            os.rename(place, draft.with_name(f"{draft.name}-old"))
        try:
            os.rename(draft, place)
        except OSError:
            if not place.is_dir():  # else another process was a moment faster
                raise
    finally:
        for rest in (draft, draft.with_name(f"{draft.name}-old")):
            shutil.rmtree(rest, ignore_errors=True)
    return place
