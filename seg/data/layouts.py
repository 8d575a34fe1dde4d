"""How known data sets lie on disk: where images and labels are, and what the numbers in their labels mean.

A label image holds one id per pixel in the numbering of its data set. It is read as indices, never through a colour
conversion: GTA5's labels are palette images, and their colours are for people.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dem_apps.errors import InputError, nearest
from dem_apps.runtime.images import opened_image
from seg.data.labels import IGNORE_INDEX, LABELS, ClassSet

Pairs = list[tuple[Path, Path]]
IMAGE_TYPES = (".png", ".jpg", ".jpeg")
#: What labels come in: a format that rounds numbers, as JPEG does, makes other classes of them.
_LOSSLESS = ("PNG",)

#: Name of each id of SYNTHIA-RAND-CITYSCAPES (Ros et al., CVPR 2016, its README), with Cityscapes' name where there
#: is such a class. Lane markings are no class of Cityscapes; ADVENT and its successors ignore them.
SYNTHIA_IDS = dict(
    enumerate(
        (
            "unlabeled", "sky", "building", "road", "sidewalk", "fence", "vegetation", "pole", "car", "traffic sign",
            "person", "bicycle", "motorcycle", "parking", "road work", "traffic light", "terrain", "rider", "truck",
            "bus", "train", "wall", "lane marking",
        )
    )
)  # fmt: skip
CITYSCAPES_IDS = {label.id: label.name for label in LABELS}


@dataclass(frozen=True)
class Layout:
    """One way of keeping a data set.

    Args:
        pairs: (root, split) → (image, label) files in order; the labels need not exist.
        ids: the data set's own numbering, id → class name; None where labels use the class set's ids.
        read_ids: label file → (H, W) uint8 ids.
        known_bad: stems of images that the data set was published with although they are bad.
    """

    pairs: Callable[[Path, str], Pairs]
    ids: dict[int, str] | None
    read_ids: Callable[[Path], NDArray[np.uint8]]
    known_bad: tuple[str, ...] = ()

    def train_ids(self, classes: ClassSet) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Look-up tables, (256,) each: id → train id, and whether the id is known at all.

        What the data set has and the class set does not is ignored; 255 always is.

        Raises:
            InputError: a class that the data set does not have, which would never be learnt or scored.
        """
        table = np.full(256, IGNORE_INDEX, np.uint8)
        known = np.zeros(256, np.bool_)
        known[IGNORE_INDEX] = True
        if self.ids is None:
            known[[*classes.ids, *classes.ignored]] = True
            table[list(classes.ids)] = np.arange(len(classes), dtype=np.uint8)
            return table, known
        known[list(self.ids)] = True
        id_of = {name: label_id for label_id, name in self.ids.items()}
        for train_id, name in enumerate(classes.names):
            if name not in id_of:
                raise InputError(
                    f"--classes: '{name}' is no class of this layout{nearest(name, id_of)} "
                    f"(its classes: {', '.join(id_of)})"
                )
            table[id_of[name]] = train_id
        return table, known


def decode(file: Path) -> Image.Image:
    """An image file's pixels as they are stored.

    Raises:
        InputError: it is missing, damaged, cut short or too large.
    """
    with opened_image(file) as picture:
        picture.load()
    return picture


def read_index_image(file: Path) -> NDArray[np.uint8]:
    """Ids of a PNG with a palette (P) or with 8-bit grey (L), (H, W) uint8.

    Raises:
        InputError: a file that cannot be read, is in colours, or whose format does not keep every number.
    """
    with opened_image(file, _LOSSLESS) as picture:
        tiles = getattr(picture, "tile", [])
        stored = tiles[0][3] if tiles else None  # .args from Pillow 11 on
        picture.load()
    if picture.mode not in ("P", "L"):
        raise InputError(f"{file}: a label image holds one id per pixel (mode P or L), this one is {picture.mode}")
    if stored in ("L;2", "L;4"):
        # decoders spread the 4 or 16 shades over 0 to 255, and nobody knows whether ids or shades were meant
        raise InputError(f"{file}: a label image in grey has 8 bits per pixel, this one has {stored[2:]}; save 8")
    return np.asarray(picture)


def read_synthia_label(file: Path) -> NDArray[np.uint8]:
    """Ids of a SYNTHIA label, (H, W) uint8: the first channel of a 16-bit PNG; the second counts instances.

    Raises:
        InputError: an image that cannot be read, has one channel or a first channel beyond 255.
    """
    # OpenCV gives no reason for a damaged file; Pillow finds one without decoding
    with opened_image(file, _LOSSLESS) as picture:
        mode = picture.mode
        picture.verify()
    if mode not in ("RGB", "RGBA"):
        # with a palette OpenCV would hand out the red of a colour as the class
        raise InputError(
            f"{file}: a SYNTHIA label has its class in the first of several channels, this one is of mode {mode}"
        )
    try:
        # Pillow keeps the upper 8 bits of 16-bit colours, where every class would be 0
        pixels = cv2.imread(str(file), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise InputError(f"{file}: the image cannot be read ({' '.join(str(error).split())[:120]})") from error
    if pixels is None or pixels.ndim != 3:
        raise InputError(f"{file}: the image cannot be read, it is damaged or cut short")
    ids = pixels[..., 2]  # OpenCV's order is blue, green, red
    if ids.max() > 255:
        raise InputError(f"{file}: label id {ids.max()} is not in the table, which has 0 to {max(SYNTHIA_IDS)}")
    return ids.astype(np.uint8)


def _gta5(root: Path, split: str) -> Pairs:
    """GTA5 (Richter et al., ECCV 2016): ``images/NNNNN.png`` and ``labels/NNNNN.png``; all of it is for training."""
    images = _listed(root / "images", "*.png", root, "gta5")
    return [(image, root / "labels" / image.name) for image in images]


def _cityscapes(root: Path, split: str) -> Pairs:
    """Cityscapes (Cordts et al., CVPR 2016): ``leftImg8bit/SPLIT/CITY/…`` and ``gtFine/SPLIT/CITY/…_labelIds.png``."""
    images = _listed(root / "leftImg8bit" / split, "*/*_leftImg8bit.png", root, "cityscapes")
    return [
        (
            image,
            root / "gtFine" / split / image.parent.name
            / image.name.replace("_leftImg8bit.png", "_gtFine_labelIds.png"),
        )
        for image in images
    ]  # fmt: skip


def _synthia(root: Path, split: str) -> Pairs:
    """SYNTHIA-RAND-CITYSCAPES (Ros et al., CVPR 2016): ``RGB/N.png`` and ``GT/LABELS/N.png``; all for training."""
    images = _listed(root / "RGB", "*.png", root, "synthia")
    return [(image, root / "GT" / "LABELS" / image.name) for image in images]


def _folders(root: Path, split: str) -> Pairs:
    """``images/train/…`` and ``labels/train/…`` (or ``val``); without these two, ``images`` and ``labels`` are both.

    Folders within are followed. A label is a PNG with its image's path and stem.
    """
    images, labels = root / "images", root / "labels"
    if any((images / name).is_dir() for name in ("train", "val")):
        images, labels = images / split, labels / split
    files = [file for file in _listed(images, "**/*", root, "folders") if file.suffix.lower() in IMAGE_TYPES]
    if not files:
        raise InputError(f"{images}: holds no images ({', '.join(IMAGE_TYPES)})")
    pairs = [(file, (labels / file.relative_to(images)).with_suffix(".png")) for file in files]
    owners: dict[Path, Path] = {}
    for image, label in pairs:
        if label in owners:
            raise InputError(f"{image}: shares the label {label} with {owners[label].name}; give each its own name")
        owners[label] = image
    return pairs


def _listed(folder: Path, pattern: str, root: Path, layout: str) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"{root}: has no folder {folder.relative_to(root)}, as a data set in {layout} layout would")
    files = sorted(folder.glob(pattern))
    if not files:
        raise InputError(f"{folder}: holds no images that match {pattern}")
    return files


LAYOUTS: dict[str, Layout] = {
    "gta5": Layout(_gta5, CITYSCAPES_IDS, read_index_image, known_bad=("15188", "17705")),
    "cityscapes": Layout(_cityscapes, CITYSCAPES_IDS, read_index_image),
    "synthia": Layout(_synthia, SYNTHIA_IDS, read_synthia_label),
    "folders": Layout(_folders, None, read_index_image),
}
