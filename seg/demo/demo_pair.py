"""The built-in demo pair on disk: street-world pictures in the real GTA5 and Cityscapes layouts.

Training, checks and exports read it with the same code as the downloaded data sets.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from dem_apps.runtime.progress import track
from seg.data.labels import LABEL_ID_PALETTE
from seg.demo.street.looks import target_look
from seg.demo.street.world import GAME_STREET, WORLD_VERSION, Domain, draw_street

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
    """Return the pair kept under ``cache_dir``, drawing it first where it is missing.

    The folder's name holds the world's version and every argument, so that different pairs live
    side by side. A pair whose manifest does not fit its name is drawn anew.
    Arguments and errors are those of ``write_demo_pair``.
    """
    counts = (source_train, target_train, target_val)
    world = f"seed{seed}" if (seed, gap) == (0, 1.0) else f"seed{seed}-gap{gap:g}"
    name = f"street-world-v{WORLD_VERSION}-{world}-{size[0]}x{size[1]}-{'-'.join(map(str, counts))}"
    root = Path(cache_dir) / name
    if not _is_whole(root, _manifest(seed, gap, size, counts), _jobs(counts, target_look(seed, gap))):
        print(f"drawing the demo pair, {sum(counts)} images, once, into {cache_dir}", flush=True)
        return write_demo_pair(
            root, seed=seed, gap=gap, size=size,
            source_train=source_train, target_train=target_train, target_val=target_val,
        )  # fmt: skip
    return _pair(root)


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

    Everything is drawn into a temporary folder beside ``root`` and renamed. When another process
    finished the same pair meanwhile, its folder is kept and this one is deleted. A pair of other
    arguments or of another world version in ``root`` is replaced.

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
    counts = (source_train, target_train, target_val)
    if seed < 0 or min(counts) < 1:
        raise ValueError(f"seed must be at least 0 and counts at least 1, got seed={seed} and counts={counts}")
    root = Path(root)
    manifest = _manifest(seed, gap, size, counts)
    camera = target_look(seed, gap)
    _refuse_foreign(root)
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
    try:
        draft.chmod(0o755)  # mkdtemp's 0700 would lock out other users of a shared cache.
        for job in track(_jobs(counts, camera), sum(counts), "drawing the demo pair"):
            _write(draft, job, seed, size)
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        _publish(draft, root, manifest, _jobs(counts, camera))
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return _pair(root)


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


def _jobs(counts: tuple[int, int, int], camera: Domain) -> Iterator[_Job]:
    source_train, target_train, target_val = counts
    for index in range(source_train):
        name = f"{index + 1:05d}.png"
        yield _Job(GAME_STREET, "train", index, f"gta5/images/{name}", f"gta5/labels/{name}")
    for split, count in (("train", target_train), ("val", target_val)):
        for index in range(count):
            frame = f"{split}/{CITY}/{CITY}_{index:06d}_000019"
            yield _Job(
                camera,
                split,
                index,
                f"cityscapes/leftImg8bit/{frame}_leftImg8bit.png",
                f"cityscapes/gtFine/{frame}_gtFine_labelIds.png",
            )


def _write(folder: Path, job: _Job, seed: int, size: tuple[int, int]) -> None:
    picture, labels = draw_street(job.domain, job.split, job.index, seed=seed, size=size)
    image_file, label_file = folder / job.image, folder / job.label
    for file in (image_file, label_file):
        file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(image_file, compress_level=1)
    _label_image(labels, with_palette=job.domain is GAME_STREET).save(label_file)


def _label_image(labels: np.ndarray, *, with_palette: bool) -> Image.Image:
    """Label ids as GTA5 (mode P, indices are the ids) or Cityscapes (mode L) stores them."""
    image = Image.fromarray(labels)
    if with_palette:
        image.putpalette(LABEL_ID_PALETTE)
    return image


def _publish(draft: Path, root: Path, manifest: dict[str, object], jobs: Iterable[_Job]) -> None:
    """Rename ``draft`` to ``root``, unless somebody else has published the same pair there."""
    with _alone_in(root.parent):
        if _is_whole(root, manifest, jobs):
            return
        _refuse_foreign(root)
        if _read_manifest(root) is not None:
            _discard(root)
        os.rename(draft, root)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One process at a time: of two that replace an outdated pair, the second must not take the first one's away."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        # some network file systems lock no folders; there the last one's pair stands
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _refuse_foreign(root: Path) -> None:
    """Raise when ``root`` holds anything but a demo pair: nothing of a user's is overwritten."""
    if root.exists() and "world_version" not in (_read_manifest(root) or {}) and not _is_empty_folder(root):
        raise FileExistsError(f"{root} exists and holds no demo pair: remove it or choose another folder")


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _discard(root: Path) -> None:
    """Move an outdated pair out of the way in one step, then delete it."""
    grave = Path(tempfile.mkdtemp(prefix=f".{root.name}-old-", dir=root.parent))
    os.rename(root, grave / "pair")
    shutil.rmtree(grave, ignore_errors=True)


def _manifest(seed: int, gap: float, size: tuple[int, int], counts: tuple[int, int, int]) -> dict[str, object]:
    names = ("source_train", "target_train", "target_val")
    return {
        "world_version": WORLD_VERSION,
        "seed": seed,
        # the demo's own world is as pairs that were drawn before there were others say it
        **({} if (seed, gap) == (0, 1.0) else {"gap": gap}),
        "size": list(size),
        "counts": dict(zip(names, counts, strict=True)),
    }


def _read_manifest(root: Path) -> dict[str, object] | None:
    """The manifest of a complete pair, or None where there is no readable one."""
    try:
        content = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _is_whole(root: Path, manifest: dict[str, object], jobs: Iterable[_Job]) -> bool:
    """Whether every picture of a pair is there: fewer would train on fewer images without a word."""
    if _read_manifest(root) != manifest:
        return False
    files = [root / name for job in jobs for name in (job.image, job.label)]
    return all(file.is_file() and file.stat().st_size for file in files)


def _pair(root: Path) -> DemoPair:
    return DemoPair(source_root=root / "gta5", target_root=root / "cityscapes")
