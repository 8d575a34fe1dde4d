"""The images that are adapted to: which they are, how the network sees them, and in which batches.

Shapes: B images, H × W an image's own size, h × w the size that the network sees.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dem_apps.errors import InputError
from seg.data.datasets import seen
from seg.data.image_io import find_images, output_names
from seg.data.image_pixels import ImagePixels, read_header, read_pixels, refuse_other
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
        self._size = size
        self.skipped: dict[str, str] = {}
        root = source if source.is_dir() else source.parent
        found: list[tuple[Path, tuple[int, int]]] = []
        for file in find_images(source):
            try:
                header = read_header(file)
                refuse_other(file, header, preprocessing.pixels)
                found.append((file, self._seen(size or header.size)))
            except InputError as error:
                print(f"skipped: {error}", file=sys.stderr, flush=True)
                self.skipped[file.relative_to(root).as_posix()] = _reason(file, str(error))
        if not found:
            raise InputError(f"--images: no image in {source} can be read")
        self.files, self.sizes = [file for file, _ in found], [seen for _, seen in found]
        self.relative = [file.relative_to(root) for file in self.files]
        self.names = output_names(self.relative)

    def __len__(self) -> int:
        return len(self.files)

    def leave_out(self, broken: Mapping[int, str]) -> None:
        """Forget images whose pixels turned out to be damaged, as the sentence about each says."""
        for index in sorted(broken):
            self.skipped[self.relative[index].as_posix()] = _reason(self.files[index], broken[index])
        kept = sorted(set(range(len(self))) - set(broken))
        for name in ("files", "sizes", "relative", "names"):
            setattr(self, name, [getattr(self, name)[index] for index in kept])

    def picture(self, index: int) -> ImagePixels:
        """An image as it is.

        Raises:
            InputError: the file is damaged.
        """
        return read_pixels(self.files[index], self.preprocessing.pixels)

    def preview(self, index: int) -> NDArray[np.uint8]:
        """(H, W, 3) for people.

        Raises:
            InputError: the file is damaged.
        """
        picture = self.picture(index)
        return self.preprocessing.pixels.preview(picture.values, picture.valid)

    def seen(self, index: int, picture: ImagePixels | None = None) -> Tensor:
        """(3, h, w) as the network takes it, on the device; ``picture`` saves reading it again."""
        return self._seen_with_mask(index, picture)[0]

    def _seen_with_mask(
        self, index: int, picture: ImagePixels | None = None
    ) -> tuple[Tensor, NDArray[np.bool_] | None]:
        picture = self.picture(index) if picture is None else picture
        values, valid = seen(picture, self.preprocessing.pixels, self.sizes[index])
        return self.preprocessing.normalised(values, valid).to(self.device), valid

    def first(self) -> Tensor:
        """(3, h, w), the first image that can be read.

        Raises:
            InputError: none can.
        """
        for index in range(len(self)):
            try:
                return self.seen(index)
            except InputError:
                continue  # it is named when it is its turn
        raise InputError("--images: none of them can be read")

    def batch(self, indices: Sequence[int]) -> Tensor:
        """(B, 3, h, w) of images that are seen at one size."""
        return self.masked_batch(indices)[0]

    def masked_batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """The same, and (B, h, w) bool: False where an image holds no data; None where all of them do everywhere."""
        images, masks = zip(*(self._seen_with_mask(index) for index in indices), strict=True)
        batch = torch.stack(images)
        if all(mask is None for mask in masks):
            return batch, None
        whole = torch.ones(batch.shape[2:], dtype=torch.bool)
        valid = torch.stack([whole if mask is None else torch.from_numpy(mask) for mask in masks])
        return batch, valid.to(self.device)

    def of_one_size(self, order: Iterable[int], batch_size: int) -> list[list[int]]:
        """Batches in this order; one ends where the size changes."""
        runs = (list(same) for _, same in groupby(order, key=lambda index: self.sizes[index]))
        return [run[first : first + batch_size] for run in runs for first in range(0, len(run), batch_size)]

    def in_order(self, batch_size: int) -> list[list[int]]:
        """Batches of neighbours; one ends where the size changes."""
        return self.of_one_size(range(len(self)), batch_size)

    def shuffled(self, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
        """Batches of one size each, in an order that depends on seed and epoch alone; every image once."""
        generator = np.random.default_rng((seed, epoch))
        order = sorted(generator.permutation(len(self)).tolist(), key=lambda index: self.sizes[index])
        batches = self.of_one_size(order, batch_size)
        return [batches[place] for place in generator.permutation(len(batches))]

    def spread(self, most: int) -> list[int]:
        """At most so many images, evenly from the whole folder."""
        number = min(most, len(self))
        return [place * len(self) // number for place in range(number)]

    def _seen(self, size: tuple[int, int]) -> tuple[int, int]:
        multiple = self.preprocessing.multiple
        width, height = (max(multiple, round(side / multiple) * multiple) for side in size)
        return width, height


def _reason(file: Path, error: str) -> str:
    """What is wrong, without the file's name before it."""
    return error.removeprefix(f"{file}: ")


def same_size_batches(folder: ImageFolder, indices: Sequence[int], batch_size: int) -> list[Tensor]:
    """Some of the images as batches of one size each."""
    order = sorted(indices, key=lambda index: (folder.sizes[index], index))
    return [folder.batch(members) for members in folder.of_one_size(order, batch_size)]
