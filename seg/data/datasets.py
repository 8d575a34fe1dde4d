"""Images and labels of one split: which files belong to it, and how one sample is read.

Reading is the same for downloaded data sets and for the demo pair. Labels are read as indices, never through a
colour conversion, and mapped to train ids by one lookup table. Resized copies (:mod:`seg.data.cache`) are used where
they fit; a sample is the same with and without them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dem_apps.errors import InputError
from seg.data.cache import ResizedCopies
from seg.data.image_pixels import ImagePixels, read_header, read_pixels
from seg.data.label_colors import read_colored_ids
from seg.data.labels import CITYSCAPES_CLASSES, IGNORE_INDEX, ClassSet
from seg.data.layouts import LAYOUTS
from seg.data.pixel_format import RGB, PixelFormat, resized, resized_mask
from seg.data.split_files import check_labels_exist, split_files


@dataclass(frozen=True)
class Sample:
    """One image and, where labels are read, its train ids.

    Args:
        name: the image's path below the data set's root.
        image: (H, W, 3) uint8, RGB, or (H, W, B) float32 in the files' own units.
        label: (H, W) uint8 train ids with 255 where nothing counts, or None.
        valid: (H, W), False where the image holds no data; None where it does everywhere.
        pixels: how a network and people see the image.
    """

    name: str
    image: NDArray[Any]
    label: NDArray[np.uint8] | None
    valid: NDArray[np.bool_] | None = None
    pixels: PixelFormat = RGB

    def normalised(self) -> Tensor:
        """(B, H, W) float32 as the network takes it."""
        return self.pixels.normalised(self.image, self.valid)

    def preview(self) -> NDArray[np.uint8]:
        """(H, W, 3) for people."""
        return self.pixels.preview(self.image, self.valid)


class Samples(Protocol):
    """What a training stream is drawn from."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


class SegmentationDataset:
    """The files of one split.

    Args:
        root: the folder that the data set was unpacked to.
        layout: a key of :data:`LAYOUTS`.
        split: ``train`` or ``val``.
        labelled: whether labels are looked for and read at all. Target training data is opened without. None reads
            them if there are any, since scores can do without.
        size: (width, height) to which images (bicubic) and labels (nearest) are resized; None keeps theirs.
        resize_labels: False keeps labels at their own size, as evaluation wants them.
        classes: the classes that label ids are mapped to.
        exclude: images to leave out, each as its path below the root, its file name or its stem.
        part: share of the images, (from, to) of a fixed shuffle; (0, 0.2) and (0.2, 1) have no image in common.
        labels_must_exist: False leaves a missing label to be found when it is read.

    Attributes:
        files: (image, label or None) of every sample, in order.
        labelled: whether samples have labels.
        pixels: what a network sees of the images; 8-bit RGB until somebody who knows the images sets it.

    Raises:
        InputError: a folder that is missing or empty, an image without its label, a class that the layout lacks.
    """

    def __init__(
        self,
        root: Path,
        layout: str,
        split: str,
        labelled: bool | None,
        size: tuple[int, int] | None = None,
        resize_labels: bool = True,
        *,
        classes: ClassSet = CITYSCAPES_CLASSES,
        exclude: Sequence[str] = (),
        part: tuple[float, float] = (0.0, 1.0),
        labels_must_exist: bool = True,
    ) -> None:
        if not root.is_dir():
            raise InputError(f"{root}: no such folder; it should be the root of a data set in {layout} layout")
        self.root = root
        self.size = size
        self.resize_labels = resize_labels
        self.classes = classes
        self.layout = LAYOUTS[layout]
        if classes.by_color and self.layout.ids is not None:
            raise InputError(
                f"--classes: labels in colours are read in layout folders, and {layout} has ids of its own"
            )
        self.train_ids, self.known_ids = self.layout.train_ids(classes)
        self.copies = ResizedCopies(root, layout, size)
        pairs = split_files(root, layout, split, exclude, part)
        if labelled is None:
            labelled = any(label.is_file() for _, label in pairs)
        if labelled and labels_must_exist:
            check_labels_exist(pairs)
        self.labelled = labelled
        self.pixels = RGB
        self._warned = False
        self.files = [(image, label if labelled else None) for image, label in pairs]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Sample:
        """Read one sample.

        Raises:
            InputError: a file that cannot be decoded, a label id that the table does not know.
        """
        image_file, label_file = self.files[index]
        image, valid = self._image(image_file)
        label = None if label_file is None else self._label(label_file, image.shape[:2])
        if label is not None and valid is not None:
            here = resized_mask(valid, (label.shape[1], label.shape[0]))
            label = np.where(here, label, np.uint8(IGNORE_INDEX))
        return Sample(self.name(index), image, label, valid, self.pixels)

    def label(self, index: int) -> NDArray[np.uint8]:
        """The train ids of a labelled sample, (H, W), without reading the image's pixels.

        Raises:
            InputError: as reading the sample does.
            ValueError: samples have no labels.
        """
        image_file, label_file = self.files[index]
        if label_file is None:
            raise ValueError(f"{image_file} is read without its label")
        width, height = self.size or read_header(image_file).size
        return self._label(label_file, (height, width))

    def name(self, index: int) -> str:
        """The image's path below the root."""
        return self.files[index][0].relative_to(self.root).as_posix()

    def read_ids(self, file: Path) -> NDArray[np.uint8]:
        """(H, W) uint8 ids of a label image, as it lies on the disk.

        Raises:
            InputError: it cannot be read, or has colours that no class has.
        """
        return read_colored_ids(file, self.classes) if self.classes.by_color else self.layout.read_ids(file)

    def missing_copies(self, index: int) -> list[Path]:
        """The files of this sample whose copies :meth:`write_copies` would make; existing ones are not checked."""
        return [file for file in self._copied_files(index) if not self.copies.path(file).exists()]

    def write_copies(self, index: int) -> None:
        """Keep decoded, resized copies of this sample's files, where there are none that can be trusted.

        Raises:
            InputError: a file that cannot be decoded, a full disk.
        """
        image_file, label_file = self.files[index]
        image = self._copy(image_file)
        if image is None:
            made_from = image_file.stat()
            image, valid = self._decoded_image(image_file)
            if self.pixels.is_rgb and valid is None:  # a copy is bytes, and says nothing of nodata
                self.copies.write(image_file, image, made_from)
        if label_file not in self._copied_files(index) or label_file is None:
            return
        height, width = image.shape[:2]
        ids = self.copies.read(label_file)
        if ids is None or ids.shape != (height, width):
            made_from = label_file.stat()
            self.copies.write(label_file, _resized(self.read_ids(label_file), (width, height)), made_from)

    def _copied_files(self, index: int) -> list[Path]:
        image_file, label_file = self.files[index]
        images = [image_file] if self.pixels.is_rgb else []
        # a copy of a label is ids, which serve every class set; in colours they are those of one
        copied = label_file is not None and self.resize_labels and not self.classes.by_color
        return [*images, label_file] if copied and label_file is not None else images

    def _copy(self, file: Path) -> NDArray[np.uint8] | None:
        return self.copies.read(file) if self.pixels.is_rgb else None

    def _image(self, file: Path) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        copied = self._copy(file)
        return self._decoded_image(file) if copied is None else (copied, None)

    def _decoded_image(self, file: Path) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """At the training size: (H, W, 3) uint8 or (H, W, B) float32, and where it holds data."""
        decoded = read_pixels(file, self.pixels)
        if self.labelled and decoded.turned != 1 and not self._warned:
            self._warned = True
            warnings.warn(
                f"{file}: is turned upright as its EXIF says (orientation {decoded.turned}), and its label is "
                "read as it stands; `python -m seg.data check` names all such images (further ones are not named)",
                stacklevel=2,
            )
        return seen(decoded, self.pixels, self.size)

    def _label(self, file: Path, image_shape: tuple[int, ...]) -> NDArray[np.uint8]:
        ids = self.copies.read(file) if self.resize_labels and not self.classes.by_color else None
        if ids is None or ids.shape != image_shape:
            ids = self.read_ids(file)
            if self.resize_labels:
                ids = _resized(ids, (image_shape[1], image_shape[0]))
        if cv2.LUT(ids, self.known_ids.view(np.uint8)).min() == 0:
            unknown = int(ids[~self.known_ids[ids]].min())
            raise InputError(f"{file}: label id {unknown} is not in the table, which has {spans(self.known_ids)}")
        label: NDArray[np.uint8] = cv2.LUT(ids, self.train_ids)  # type: ignore[assignment]
        return label


def seen(
    image: ImagePixels, pixels: PixelFormat, size: tuple[int, int] | None
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """An image at the (width, height) that a network sees, None for its own, bicubic, and where it holds data.

    Bands come as float32, with their mean where they hold no data, so that nothing of it is spread by resizing.
    """
    values, valid = image.values, image.valid
    if not pixels.is_rgb:
        values = values.astype(np.float32)
        if valid is not None:
            values[~valid] = pixels.mean
    if size is None or size == (values.shape[1], values.shape[0]):
        return values, valid
    valid = None if valid is None else resized_mask(valid, size)
    if not pixels.is_rgb:
        return resized(values, size), valid
    return np.asarray(Image.fromarray(values).resize(size, Image.Resampling.BICUBIC)), valid


class JoinedDataset:
    """Several data sets as one: the samples of the first part, then those of the second, and so on."""

    def __init__(self, parts: Sequence[Samples]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __getitem__(self, index: int) -> Sample:
        """Read one sample.

        Raises:
            InputError: as its part does.
        """
        for part in self.parts:
            if index < len(part):
                return part[index]
            index -= len(part)
        raise IndexError(index)


def spans(known: NDArray[np.bool_]) -> str:
    """True positions for people: ``0 to 33 and 255``."""
    positions = np.flatnonzero(known)
    runs = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
    texts = [f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return " and ".join([*([", ".join(texts[:-1])] if texts[:-1] else []), texts[-1]])


def _resized(ids: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    picture = Image.fromarray(ids)
    return ids if picture.size == size else np.asarray(picture.resize(size, Image.Resampling.NEAREST))
