"""Network and images for ``seg.adapt`` without data: a small network of the street world, and its target in fog.

Both are made once and kept in the cache.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import albumentations

from dem_apps.runtime.files import cache_dir, new_folder
from dem_apps.runtime.progress import track
from seg.config import TrainConfig
from seg.data.settings import SourceConfig, TargetDataConfig
from seg.data.street.figures import target_look
from seg.data.street.world import WORLD_VERSION, draw_street
from seg.maps.run_pictures import save_panel
from seg.training.loop import train

#: Training steps, on source images alone, and the images' width and height: about a minute.
STEPS, SEEN = 300, (96, 48)
#: Pictures in fog, and their width and height.
IMAGES, SIZE = 40, (192, 96)
_FOG = (0.7, 0.7)


def demo_network() -> Path:
    """Return the run folder of a network that has seen the source alone.

    Where there is none, the network is trained, or trained on.
    """
    config = TrainConfig(
        method="source",
        max_steps=STEPS,
        batch_size=4,
        eval_every=STEPS,
        maps=0,
        device="cpu",
        source=SourceConfig(size=list(SEEN)),
        target=TargetDataConfig(size=list(SEEN)),
    ).resolved()
    # by all settings, so that a run of a version with others is not opened
    settings = hashlib.sha256(
        json.dumps(dataclasses.asdict(config), sort_keys=True).encode()
    ).hexdigest()[:8]
    run = cache_dir() / "adapt" / f"source-v{WORLD_VERSION}-{settings}" / "run"
    if not (run / "eval.json").is_file():
        print(
            f"training the demo's network on source images, {STEPS} steps, once: about a minute",
            flush=True,
        )
        train(dataclasses.replace(config, run_dir=str(run), resume=(run / "config.yaml").is_file()))
    return run


def foggy_target() -> tuple[Path, Path]:
    """Folders of images and of their labels: pictures of the target's world that no training saw, in fog."""
    place = cache_dir() / "adapt" / f"foggy-v{WORLD_VERSION}-{IMAGES}-{_FOG[0]:g}"
    if not place.is_dir():
        with new_folder(place, "cache") as folder:
            for index in track(range(IMAGES), IMAGES, "drawing the foggy target"):
                picture, label = draw_street(
                    target_look(0, 1.0), "val", 1000 + index, seed=0, size=SIZE
                )
                fog = albumentations.RandomFog(fog_coef_range=_FOG, alpha_coef=0.1, p=1)
                foggy = albumentations.Compose([fog], seed=index)(image=picture)["image"]
                save_panel(folder / "images" / f"{index:03d}.png", foggy)
                save_panel(folder / "labels" / f"{index:03d}.png", label)
    return place / "images", place / "labels"
