"""Images and labels on disk: where each known data set keeps them, and how one sample is read.

Reading is the same for downloaded data sets and for the demo pair. Labels are read as indices, never through a
colour conversion, and mapped to train ids by one lookup table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from dem_apps.errors import InputError
from seg.data.labels import LABELS, UNKNOWN, id_to_train_id


@dataclass(frozen=True)
class Sample:
    """One image and, where labels are read, its train ids.

    Args:
        name: the image's path below the data set's root.
        image: (H, W, 3) uint8, RGB.
        label: (H, W) uint8 train ids with 255 where nothing counts, or None.
    """

    name: str
    image: NDArray[np.uint8]
    label: NDArray[np.uint8] | None


class SegmentationDataset:
    """The files of one split.

    Args:
        root: the folder that the data set was unpacked to.
        layout: a key of :data:`LAYOUTS`.
        split: ``train`` or ``val``.
        labelled: whether labels are looked for and read at all. Target training data is opened without.
        size: (width, height) to which images (bicubic) and labels (nearest) are resized; None keeps theirs.
        resize_labels: False keeps labels at their own size, as evaluation wants them.

    Raises:
        InputError: a folder that is missing or empty, an image without its label.
    """

    def __init__(
        self,
        root: Path,
        layout: str,
        split: str,
        labelled: bool,
        size: tuple[int, int] | None = None,
        resize_labels: bool = True,
    ) -> None:
        if not root.is_dir():
            raise InputError(f"{root}: no such folder; it should be the root of a data set in {layout} layout")
        self.root = root
        self.size = size
        self.resize_labels = resize_labels
        self._train_ids = id_to_train_id()
        pairs = LAYOUTS[layout](root, split)
        if labelled:
            missing = [(image, label) for image, label in pairs if not label.is_file()]
            if missing:
                image, label = missing[0]
                raise InputError(f"{image}: its label {label} is missing ({len(missing)} of {len(pairs)} have none)")
        self._files = [(image, label if labelled else None) for image, label in pairs]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Sample:
        """Read one sample.

        Raises:
            InputError: a file that cannot be decoded, a label id that the table does not know.
        """
        image_file, label_file = self._files[index]
        image = _decode(image_file).convert("RGB")
        if self.size is not None and image.size != self.size:
            image = image.resize(self.size, Image.Resampling.BICUBIC)
        label = None if label_file is None else self._read_label(label_file, image.size)
        return Sample(str(image_file.relative_to(self.root)), np.asarray(image), label)

    def _read_label(self, file: Path, image_size: tuple[int, int]) -> NDArray[np.uint8]:
        picture = _decode(file)
        if picture.mode not in ("P", "L"):
            raise InputError(f"{file}: a label image holds one id per pixel (mode P or L), this one is {picture.mode}")
        if self.resize_labels and picture.size != image_size:
            # of a palette image this moves indices, not colours
            picture = picture.resize(image_size, Image.Resampling.NEAREST)
        ids = np.asarray(picture)
        label: NDArray[np.uint8] = self._train_ids[ids]
        if (label == UNKNOWN).any():
            unknown = sorted({int(i) for i in np.unique(ids[label == UNKNOWN])})
            raise InputError(
                f"{file}: label id {unknown[0]} is not in the table, which has 0 to {len(LABELS) - 1} and 255"
            )
        return label


def _decode(file: Path) -> Image.Image:
    try:
        picture = Image.open(file)
        picture.load()
    except FileNotFoundError as error:
        raise InputError(f"{file}: no such file") from error
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError) as error:
        raise InputError(f"{file}: the image cannot be read, it is damaged or cut short ({error})") from error
    return picture


def _gta5(root: Path, split: str) -> list[tuple[Path, Path]]:
    """GTA5 (Richter et al., ECCV 2016): ``images/NNNNN.png`` and ``labels/NNNNN.png``; all of it is for training."""
    images = _listed(root / "images", "*.png", root, "gta5")
    return [(image, root / "labels" / image.name) for image in images]


def _cityscapes(root: Path, split: str) -> list[tuple[Path, Path]]:
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


def _listed(folder: Path, pattern: str, root: Path, layout: str) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"{root}: has no folder {folder.relative_to(root)}, as a data set in {layout} layout would")
    files = sorted(folder.glob(pattern))
    if not files:
        raise InputError(f"{folder}: holds no images that match {pattern}")
    return files


LAYOUTS: dict[str, Callable[[Path, str], list[tuple[Path, Path]]]] = {"gta5": _gta5, "cityscapes": _cityscapes}
