"""The built-in demo pair on disk, street-world pictures in the real GTA5 and Cityscapes layouts."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock
from PIL import Image

from dem_apps.runtime.files import new_folder
from dem_apps.runtime.progress import track
from seg.data.files import Size
from seg.data.labels import LABELS
from seg.data.street.figures import SOURCE_LOOK, target_look
from seg.data.street.world import draw_street

CITY = "demostadt"
_PALETTE = [channel for label in LABELS for channel in label.color]


def write_demo_pair(
    root: Path | str,
    *,
    seed: int = 0,
    gap: float = 1.0,
    size: Size = (192, 96),
    source_train: int = 240,
    target_train: int = 240,
    target_val: int = 60,
) -> Path:
    """Draw the pair, ``gta5`` and ``cityscapes``, into ``root``.

    The folder appears only when the last picture is written. A pair that is there is kept, and a
    folder with anything else is an InputError. Of several processes one draws. ``size`` is (width,
    height); for the rest see :func:`target_look`.
    """
    root = Path(root)
    camera = target_look(seed, gap)
    parts = [
        (SOURCE_LOOK, "train", source_train),
        (camera, "train", target_train),
        (camera, "val", target_val),
    ]
    streets = [(look, split, index) for look, split, number in parts for index in range(number)]
    root.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(root.parent / f".{root.name}.lock"):
        if all((root / layout).is_dir() for layout in ("gta5", "cityscapes")):
            return root
        with new_folder(root, "demo pair") as draft:
            print(
                f"drawing the demo pair, {len(streets)} images, once, into {root.parent}",
                flush=True,
            )
            for look, split, index in track(streets, len(streets), "drawing the demo pair"):
                picture, ids = draw_street(look, split, index, seed=seed, size=size)
                image = Image.fromarray(picture)
                labels = Image.fromarray(ids)
                if look is SOURCE_LOOK:
                    # mode P as GTA5 has it, whose indices are the ids
                    labels.putpalette(_PALETTE)
                    _save(image, draft / f"gta5/images/{index + 1:05d}.png")
                    _save(labels, draft / f"gta5/labels/{index + 1:05d}.png")
                else:
                    frame = f"{split}/{CITY}/{CITY}_{index:06d}_000019"
                    _save(image, draft / f"cityscapes/leftImg8bit/{frame}_leftImg8bit.png")
                    _save(labels, draft / f"cityscapes/gtFine/{frame}_gtFine_labelIds.png")
    return root


def _save(picture: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, compress_level=1)
