"""The built-in demo pair on disk: street-world pictures in the real GTA5 and Cityscapes layouts."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock
from PIL import Image

from dem_apps.runtime.files import new_folder
from dem_apps.runtime.progress import track
from seg.data.labels import LABELS
from seg.data.street.figures import SOURCE_LOOK, target_look
from seg.data.street.world import draw_street

CITY = "demostadt"


def write_demo_pair(
    root: Path | str, *, seed: int = 0, gap: float = 1.0, size: tuple[int, int] = (192, 96), source_train: int = 240,
    target_train: int = 240, target_val: int = 60,
) -> Path:  # fmt: skip
    """Draw the pair, ``gta5`` and ``cityscapes``, into ``root``, which appears only when the last picture is written.

    A pair that is there is kept, and a folder with anything else is an InputError. Of several processes one draws.
    ``size`` is (width, height); for the rest :func:`target_look`.
    """
    root, camera = Path(root), target_look(seed, gap)
    pictures = [
        (SOURCE_LOOK, "train", index, f"gta5/images/{index + 1:05d}.png", f"gta5/labels/{index + 1:05d}.png")
        for index in range(source_train)
    ]
    for split, count in (("train", target_train), ("val", target_val)):
        for index in range(count):
            frame = f"{split}/{CITY}/{CITY}_{index:06d}_000019"
            image, label = f"leftImg8bit/{frame}_leftImg8bit.png", f"gtFine/{frame}_gtFine_labelIds.png"
            pictures.append((camera, split, index, f"cityscapes/{image}", f"cityscapes/{label}"))
    root.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(root.parent / f".{root.name}.lock"):
        if all((root / layout).is_dir() for layout in ("gta5", "cityscapes")):
            return root
        with new_folder(root, "demo pair") as draft:
            print(f"drawing the demo pair, {len(pictures)} images, once, into {root.parent}", flush=True)
            for look, split, index, *names in track(pictures, len(pictures), "drawing the demo pair"):
                drawn, labels = map(Image.fromarray, draw_street(look, split, index, seed=seed, size=size))
                if look is SOURCE_LOOK:  # mode P as GTA5 has it, whose indices are the ids; Cityscapes has mode L
                    labels.putpalette([channel for each in LABELS for channel in each.color])
                for picture, name in zip((drawn, labels), names, strict=True):
                    (draft / name).parent.mkdir(parents=True, exist_ok=True)
                    picture.save(draft / name, compress_level=1)
    return root
