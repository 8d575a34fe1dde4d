"""The built-in demo pair on disk: street-world pictures in the real GTA5 and Cityscapes layouts."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from PIL import Image

from dem_apps.runtime.files import write_json
from dem_apps.runtime.progress import track
from seg.data.labels import LABELS
from seg.data.street.looks import GAME_STREET, Domain, target_look
from seg.data.street.world import WORLD_VERSION, draw_street

CITY = "demostadt"
MANIFEST = "manifest.json"


def write_demo_pair(
    root: Path | str,
    *,
    seed: int = 0,
    gap: float = 1.0,
    size: tuple[int, int] = (192, 96),
    source_train: int = 240,
    target_train: int = 240,
    target_val: int = 60,
) -> Path:
    """Draw the pair, ``gta5`` and ``cityscapes``, into ``root``, which appears only when the last picture is written.

    A pair that is there is kept; one of other arguments or incomplete is replaced, and a folder with anything else is a
    FileExistsError. Of several processes one draws. ``size`` is (width, height); for the rest :func:`target_look`.
    """
    counts = {"source_train": source_train, "target_train": target_train, "target_val": target_val}
    root = Path(root)
    manifest = {"world_version": WORLD_VERSION, "seed": seed, "gap": gap, "size": list(size), "counts": counts}
    pictures = list(_pictures(counts, target_look(seed, gap)))
    root.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(root.parent / f".{root.name}.lock"):
        found = _manifest(root)
        files = [root / name for *_, image, label in pictures for name in (image, label)]
        if found == manifest and all(file.is_file() and file.stat().st_size for file in files):
            return root
        if root.exists() and "world_version" not in found and (root.is_file() or any(root.iterdir())):
            raise FileExistsError(f"{root} exists and holds no demo pair: remove it or choose another folder")
        print(f"drawing the demo pair, {len(pictures)} images, once, into {root.parent}", flush=True)
        with tempfile.TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as folder:
            draft = Path(folder) / "pair"
            for domain, split, index, image, label in track(pictures, len(pictures), "drawing the demo pair"):
                drawn, ids = draw_street(domain, split, index, seed=seed, size=size)
                _write(drawn, ids, draft / image, draft / label, palette=domain is GAME_STREET)
            write_json(draft / MANIFEST, manifest)
            if root.exists():
                shutil.rmtree(root)
            os.rename(draft, root)
    return root


def _pictures(counts: dict[str, int], camera: Domain) -> Iterator[tuple[Domain, str, int, str, str]]:
    """Look, split, index, and the files of image and label below the pair's folder."""
    for index in range(counts["source_train"]):
        name = f"{index + 1:05d}.png"
        yield GAME_STREET, "train", index, f"gta5/images/{name}", f"gta5/labels/{name}"
    for split in ("train", "val"):
        for index in range(counts[f"target_{split}"]):
            frame = f"{split}/{CITY}/{CITY}_{index:06d}_000019"
            image, label = f"leftImg8bit/{frame}_leftImg8bit.png", f"gtFine/{frame}_gtFine_labelIds.png"
            yield camera, split, index, f"cityscapes/{image}", f"cityscapes/{label}"


def _write(picture: np.ndarray, ids: np.ndarray, image_file: Path, label_file: Path, palette: bool) -> None:
    for file in (image_file, label_file):
        file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(image_file, compress_level=1)
    label = Image.fromarray(ids)
    if palette:  # mode P as GTA5 has it, whose indices are the ids; Cityscapes has mode L
        label.putpalette([channel for each in LABELS for channel in each.color])
    label.save(label_file)


def _manifest(root: Path) -> dict[str, Any]:
    """Of a complete pair; empty where there is no readable one."""
    try:
        content = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
