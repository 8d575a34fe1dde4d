"""The images that are adapted to: which they are, how the network sees them, in which batches, and their labels.

Shapes: B images, C classes, H × W an image's own size, h × w the size that the network sees.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dem_apps.errors import InputError
from seg.data.files import find_images, find_labels, output_names
from seg.data.labels import IGNORE_INDEX, ClassSet
from seg.data.pixel_format import resized_mask
from seg.data.read import ImagePixels, read_header, read_image, read_label, refuse_other, seen
from seg.models.preprocessing import Preprocessing


class ImageFolder:
    """A folder of images, in the order of their names.

    A file that is no image that can be read is named on stderr and left out.

    Args:
        source: the folder, or one image.
        preprocessing: of the network.
        size: (width, height) that the network sees; None is each image's own. Both are rounded to the nearest multiple
            that the network takes.
        device: where batches go.

    Attributes:
        relative: the images' paths below the folder.
        names: beginnings of the names of what is written of them.
        skipped: why an image below the folder was left out, by its path there.

    Raises:
        InputError: no such folder, or no image in it that can be read.
    """

    def __init__(
        self, source: Path, preprocessing: Preprocessing, size: tuple[int, int] | None, device: torch.device
    ) -> None:
        self.preprocessing, self.device = preprocessing, device
        self.skipped: dict[str, str] = {}
        root = source if source.is_dir() else source.parent
        found: list[tuple[Path, tuple[int, int]]] = []
        for file in find_images(source):
            try:
                header = read_header(file)
                refuse_other(file, header, preprocessing.pixels)
                found.append((file, self._rounded(size or header.size)))
            except InputError as error:
                print(f"skipped: {error}", file=sys.stderr, flush=True)
                self.skipped[file.relative_to(root).as_posix()] = str(error).removeprefix(f"{file}: ")
        if not found:
            raise InputError(f"--images: no image in {source} can be read")
        self.files, self.sizes = [file for file, _ in found], [each for _, each in found]
        self.relative = [file.relative_to(root) for file in self.files]
        self.names = output_names(self.relative)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def counted(self) -> str:
        """How many images there are, for people."""
        found = len(self) + len(self.skipped)
        return f"{len(self)} of {found} images" if self.skipped else f"{found} images"

    def leave_out(self, broken: Mapping[int, str]) -> None:
        """Forget images whose pixels turned out to be damaged, as the sentence about each says."""
        for index, sentence in broken.items():
            print(f"skipped: {sentence}", file=sys.stderr, flush=True)
            self.skipped[self.relative[index].as_posix()] = sentence.removeprefix(f"{self.files[index]}: ")
        kept = [index for index in range(len(self)) if index not in broken]
        self.files, self.sizes = [self.files[index] for index in kept], [self.sizes[index] for index in kept]
        self.relative, self.names = [self.relative[index] for index in kept], [self.names[index] for index in kept]
        if not kept:
            raise InputError("--images: no image can be read")

    def picture(self, index: int) -> ImagePixels:
        """An image as it is.

        Raises:
            InputError: the file is damaged.
        """
        return read_image(self.files[index], self.preprocessing.pixels)

    def preview(self, index: int) -> NDArray[np.uint8]:
        """(H, W, 3) for people."""
        picture = self.picture(index)
        return self.preprocessing.pixels.preview(picture.values, picture.valid)

    def seen(self, index: int, picture: ImagePixels | None = None) -> tuple[Tensor, NDArray[np.bool_] | None]:
        """(3, h, w) as the network takes it, on the device, and where it holds data; None is everywhere.

        ``picture`` saves reading the image again.
        """
        picture = self.picture(index) if picture is None else picture
        values, valid = seen(picture, self.preprocessing.pixels, self.sizes[index])
        return self.preprocessing.normalised(values, valid).to(self.device), valid

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """(B, 3, h, w) of images that are seen at one size, and where they hold data.

        The mask is (B, h, w) bool, or None where all images hold data everywhere.
        """
        images, masks = zip(*map(self.seen, indices), strict=True)
        batch = torch.stack(images)
        if all(mask is None for mask in masks):
            return batch, None
        whole = torch.ones(batch.shape[2:], dtype=torch.bool)
        valid = torch.stack([whole if mask is None else torch.from_numpy(mask) for mask in masks])
        return batch, valid.to(self.device)

    def in_order(self, batch_size: int) -> list[list[int]]:
        """Batches of neighbours; one ends where the size changes."""
        return self._of_one_size(range(len(self)), batch_size)

    def shuffled(self, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
        """Batches of one size each, in an order that depends on seed and epoch alone; every image once."""
        generator = np.random.default_rng((seed, epoch))
        order = sorted(generator.permutation(len(self)).tolist(), key=lambda index: self.sizes[index])
        batches = self._of_one_size(order, batch_size)
        return [batches[place] for place in generator.permutation(len(batches))]

    def spread(self, most: int) -> list[int]:
        """At most so many images, evenly from the whole folder."""
        number = min(most, len(self))
        return [place * len(self) // number for place in range(number)]

    def spread_batches(self, most: int, batch_size: int) -> list[Tensor]:
        """The images of :meth:`spread` as batches of one size each."""
        order = sorted(self.spread(most), key=lambda index: (self.sizes[index], index))
        return [self.batch(members)[0] for members in self._of_one_size(order, batch_size)]

    def _of_one_size(self, order: Iterable[int], batch_size: int) -> list[list[int]]:
        runs = (list(same) for _, same in groupby(order, key=lambda index: self.sizes[index]))
        return [run[first : first + batch_size] for run in runs for first in range(0, len(run), batch_size)]

    def _rounded(self, size: tuple[int, int]) -> tuple[int, int]:
        multiple = self.preprocessing.multiple
        width, height = (max(multiple, round(side / multiple) * multiple) for side in size)
        return width, height


class Labels:
    """Label images of some of the images that are adapted to.

    Args:
        folder: holds ``a/b.png`` for the image ``a/b.jpg``, see :func:`seg.data.files.find_labels`.
        images: paths of the images below their folder.
        classes: whose ids the label images hold.

    Raises:
        InputError: no label of any image in it, or one that is of two images.
    """

    def __init__(self, folder: Path, images: Sequence[Path], classes: ClassSet) -> None:
        places = find_labels(folder, images)
        self.files = {image: file for image, file in places.items() if file.is_file()}
        if not self.files:
            raise InputError(
                f"--labels: {folder} has no label of any image; that of {images[0]} would be {places[images[0]]}"
            )
        self._classes = classes

    def confusion(
        self, image: Path, predicted: NDArray[np.uint8], valid: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64] | None:
        """Pixels by label and prediction, (C, C); None for an image without a label.

        Args:
            image: its path below the folder of images.
            predicted: train ids, of any size.
            valid: where the image holds data, of the same size; None is everywhere.

        Raises:
            InputError: a label image that cannot be read, or with an id that no class has.
        """
        if image not in self.files:
            return None
        label = read_label(self.files[image], self._classes)
        size = (label.shape[1], label.shape[0])
        if predicted.shape != label.shape:
            predicted = np.asarray(cv2.resize(predicted, size, interpolation=cv2.INTER_NEAREST), np.uint8)
        counted = label != IGNORE_INDEX
        if valid is not None:
            counted &= resized_mask(valid, size)
        number = len(self._classes)
        pairs = label[counted].astype(np.int64) * number + predicted[counted]
        return np.bincount(pairs, minlength=number**2).reshape(number, -1)
