"""The built-in demo pair on disk: street-world pictures in the real GTA5 and Cityscapes layouts.

Training, checks and exports read it with the same code as the downloaded data sets.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from PIL import Image

from dem_apps.runtime.progress import track
from seg.data.labels import LABEL_ID_PALETTE
from seg.demo.street.looks import GAME_STREET, Domain, target_look
from seg.demo.street.world import WORLD_VERSION, draw_street

CITY = "demostadt"
#: Width and height of the pair's pictures, and how many times finer they are drawn again for people to look at.
SIZE, FINER = (192, 96), 4
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class DemoPair:
    """Roots of the two data sets: ``source_root`` in GTA5's layout, ``target_root`` in Cityscapes'."""

    source_root: Path
    target_root: Path


@dataclass(frozen=True)
class _Job:
    """One picture to draw and the two files, relative to the pair's folder, that hold it."""

    domain: Domain
    split: str
    index: int
    image: str
    label: str


def ensure_demo_pair(
    cache_dir: Path | str,
    *,
    seed: int = 0,
    gap: float = 1.0,
    size: tuple[int, int] = SIZE,
    source_train: int = 240,
    target_train: int = 240,
    target_val: int = 60,
) -> DemoPair:
    """The pair kept under ``cache_dir``, drawn first where it is missing; see :func:`write_demo_pair`.

    The folder's name holds the world's version and every argument, so that different pairs live side by side.
    """
    world = f"seed{seed}" if (seed, gap) == (0, 1.0) else f"seed{seed}-gap{gap:g}"
    counts = f"{source_train}-{target_train}-{target_val}"
    root = Path(cache_dir) / f"street-world-v{WORLD_VERSION}-{world}-{size[0]}x{size[1]}-{counts}"
    return write_demo_pair(
        root, seed=seed, gap=gap, size=size,
        source_train=source_train, target_train=target_train, target_val=target_val,
    )  # fmt: skip


def write_demo_pair(
    root: Path | str,
    *,
    seed: int = 0,
    gap: float = 1.0,
    size: tuple[int, int] = SIZE,
    source_train: int = 240,
    target_train: int = 240,
    target_val: int = 60,
) -> DemoPair:
    """Draw the pair into ``root``, which appears only when the last picture is written.

    A pair that is there is kept; one of other arguments or of another world version, or with a picture missing, is
    replaced. Of several processes one draws.

    Args:
        root: folder to create; gets ``gta5``, ``cityscapes`` and ``manifest.json``.
        seed: of the world, from 0: of every picture, and of how the target looks.
        gap: how far the target's look is from the source's, see :func:`seg.demo.street.looks.target_look`.
        size: (width, height) of every picture in pixels.
        source_train: number of labelled source pictures.
        target_train: number of target training pictures (their labels serve oracles only).
        target_val: number of target validation pictures.

    Raises:
        ValueError: for a negative seed, a gap out of range, a count below 1 or a size too small for a street.
        FileExistsError: when ``root`` exists and is not a demo pair.
    """
    counts = {"source_train": source_train, "target_train": target_train, "target_val": target_val}
    if seed < 0 or min(counts.values()) < 1:
        raise ValueError(f"seed must be at least 0 and counts at least 1, got seed={seed} and counts={counts}")
    root = Path(root)
    manifest: dict[str, Any] = {"world_version": WORLD_VERSION, "seed": seed, "size": list(size), "counts": counts}
    if (seed, gap) != (0, 1.0):
        manifest["gap"] = gap
    jobs = list(_jobs(source_train, target_train, target_val, target_look(seed, gap)))
    root.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(root.parent / f".{root.name}.lock"):
        found = _manifest(root)
        files = [root / name for job in jobs for name in (job.image, job.label)]
        if found == manifest and all(file.is_file() and file.stat().st_size for file in files):
            return DemoPair(root / "gta5", root / "cityscapes")
        if root.exists() and "world_version" not in found and (root.is_file() or any(root.iterdir())):
            raise FileExistsError(f"{root} exists and holds no demo pair: remove it or choose another folder")
        print(f"drawing the demo pair, {len(jobs)} images, once, into {root.parent}", flush=True)
        with tempfile.TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as folder:
            draft = Path(folder) / "pair"
            for job in track(jobs, len(jobs), "drawing the demo pair"):
                _write(draft, job, seed, size)
            (draft / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
            if root.exists():
                shutil.rmtree(root)
            os.rename(draft, root)
    return DemoPair(root / "gta5", root / "cityscapes")


def finer_picture(image: Path, *, seed: int = 0, gap: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """A validation image of the target as :func:`seg.demo.street.world.draw_street` draws it with more pixels.

    Args:
        image: its file, of a pair of this seed and gap.
        seed: of the pair.
        gap: likewise.

    Returns:
        the picture, (384, 768, 3) RGB uint8, and its label ids, (384, 768) uint8.
    """
    index = int(image.name.split("_")[1])
    return draw_street(target_look(seed, gap), "val", index, seed=seed, size=SIZE, finer=FINER)


def _jobs(source_train: int, target_train: int, target_val: int, camera: Domain) -> Iterator[_Job]:
    for index in range(source_train):
        name = f"{index + 1:05d}.png"
        yield _Job(GAME_STREET, "train", index, f"gta5/images/{name}", f"gta5/labels/{name}")
    for split, count in (("train", target_train), ("val", target_val)):
        for index in range(count):
            frame = f"{split}/{CITY}/{CITY}_{index:06d}_000019"
            image, label = f"leftImg8bit/{frame}_leftImg8bit.png", f"gtFine/{frame}_gtFine_labelIds.png"
            yield _Job(camera, split, index, f"cityscapes/{image}", f"cityscapes/{label}")


def _write(folder: Path, job: _Job, seed: int, size: tuple[int, int]) -> None:
    picture, ids = draw_street(job.domain, job.split, job.index, seed=seed, size=size)
    image_file, label_file = folder / job.image, folder / job.label
    for file in (image_file, label_file):
        file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(image_file, compress_level=1)
    label = Image.fromarray(ids)
    if job.domain is GAME_STREET:  # mode P as GTA5 has it, whose indices are the ids; Cityscapes has mode L
        label.putpalette(LABEL_ID_PALETTE)
    label.save(label_file)


def _manifest(root: Path) -> dict[str, Any]:
    """Of a complete pair; empty where there is no readable one."""
    try:
        content = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
