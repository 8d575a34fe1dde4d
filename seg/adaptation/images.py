"""The images that a network is adapted to, their labels, and their files before and after.

Shapes: B images, C classes, H × W an image's own size, h × w the size that the network sees, or that of its logits.
"""

from __future__ import annotations

import copy
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dem_apps.errors import InputError
from seg.data.files import Size, evenly, find_images, output_names, refuse_long_name
from seg.data.labels import IGNORE_INDEX, ClassSet, Ids
from seg.data.layouts.layout import OWN_IDS, Layout
from seg.data.pixel_format import Counts, Floats, Mask, resized_ids, resized_mask
from seg.data.read_images import (
    ImagePixels,
    Scene,
    opened_picture,
    pixels_and_mask,
    read_image,
    whole_header,
)
from seg.data.read_labels import read_label
from seg.maps.entropy_maps import Part
from seg.maps.run_pictures import (
    MOST_SHOWN,
    output_path,
    save_panel,
    shown_prediction,
    write_maps,
)
from seg.models.network import finite, upsampled
from seg.scores.evidence import Forward, MaskedBatch
from seg.scores.segmentation_scores import Tables, confusion
from seg.trained.description import Description
from seg.trained.trained_network import TrainedNetwork

#: Most bytes of decoded pictures that are kept.
MOST_BYTES = 1 << 28
STAGES = ("before", "after")
#: Rows and columns of an image.
Window = tuple[slice, slice]
#: The images of each batch, or their windows, by number.
Batches = list[list[int]]


@dataclass(eq=False)
class ImageFolder:
    """A folder of images, or one image, in the order of names.

    Unreadable files are named on stderr and left out. Batches hold whole images, or with ``tile``
    windows of that side that hold data. The latest pictures are kept decoded.

    Raises:
        InputError: no image can be read.
    """

    source: Path  #: the folder or file
    description: Description  #: what the network expects
    #: width and height that the network sees, rounded to its multiple; None for each image's own
    size: Size | None
    device: torch.device  #: where batches go
    tile: int | None = None  #: side of the windows

    def __post_init__(self) -> None:
        self.skipped: dict[str, str] = {}  # why an image was left out, by its path below the folder
        self.files: list[Path] = []
        self.parts: list[tuple[int, Window]] = []  # what batches hold: an image's index, and where
        self.sizes: list[Size] = []  # of the parts
        self.relative: list[Path] = []  # the images' paths below the folder
        self._held: dict[int, ImagePixels] = {}
        self.root = self.source if self.source.is_dir() else self.source.parent
        for file in find_images(self.source):
            name = file.relative_to(self.root)
            try:
                windows = self._windows(file)
            except InputError as error:
                print(f"skipped: {error}", file=sys.stderr, flush=True)
                self.skipped[name.as_posix()] = str(error).removeprefix(f"{file}: ")
                continue
            for window in windows:
                self.parts.append((len(self.files), window))
                self.sizes.append(self._size_of(*window))
            self.files.append(file)
            self.relative.append(name)
        if not self.parts:
            reason = "holds data" if self.files else "can be read"
            raise InputError(f"--images: no image in {self.source} {reason}")
        self.names = output_names(self.relative)  # begin the names of what is written of each

    def __len__(self) -> int:
        return len(self.files)

    def _windows(self, file: Path) -> list[Window]:
        """Return rows and columns of an image's parts.

        Raises:
            InputError: the image cannot be read.
        """
        refuse_long_name(file)
        pixels = self.description.pixels
        if self.tile is None:
            width, height = whole_header(file, pixels).size
            return [(slice(0, height), slice(0, width))]
        with opened_picture(file, pixels) as picture:
            return _windows_with_data(picture, self.tile)

    def _size_of(self, rows: slice, columns: slice) -> Size:
        """Width and height at which the network sees a window."""
        sides = self.size or (columns.stop - columns.start, rows.stop - rows.start)
        grid = self.description.multiple
        width, height = (max(grid, round(side / grid) * grid) for side in sides)
        return width, height

    def seeing(self, description: Description) -> ImageFolder:
        """Return the same images, normalised as another description says."""
        folder = copy.copy(self)
        folder.description = description
        return folder

    def picture(self, index: int) -> ImagePixels:
        """A part as it was read; the latest ones are not read again."""
        if index not in self._held:
            self._held[index] = self._read(index)
            size = sum(picture.values.nbytes for picture in self._held.values())
            while len(self._held) > 1 and size > MOST_BYTES:
                size -= self._held.pop(next(iter(self._held))).values.nbytes
        return self._held[index]

    def _read(self, index: int) -> ImagePixels:
        image, window = self.parts[index]
        if self.tile is None:
            return read_image(self.files[image], self.description.pixels)
        with self.opened(image) as picture:
            return picture.window(*window)

    def opened(self, image: int) -> AbstractContextManager[ImagePixels | Scene]:
        """Open an image."""
        return opened_picture(self.files[image], self.description.pixels)

    def shown(self, image: int) -> ImagePixels:
        """An image for the page; a scene is reduced."""
        if self.tile is None:
            return self.picture(image)
        with self.opened(image) as picture:
            return picture.reduced(MOST_SHOWN)

    def seen(self, index: int) -> tuple[Tensor, Mask]:
        """Return a part as the network takes it.

        Returns:
            The image (3, h, w), and a mask of where it holds data; None for everywhere.
        """
        values, valid = pixels_and_mask(
            self.picture(index), self.description.pixels, self.sizes[index]
        )
        return self.description.normalised(values, valid).to(self.device), valid

    def batch(self, indices: Sequence[int]) -> MaskedBatch:
        """Return parts of one size as a batch.

        Returns:
            The images (B, 3, h, w), and (B, h, w) bool where they hold data; None for everywhere.
        """
        images, masks = zip(*map(self.seen, indices), strict=True)
        batch = torch.stack(images)
        if all(mask is None for mask in masks):
            return batch, None
        whole = torch.ones(batch.shape[2:], dtype=torch.bool)
        valid = torch.stack([whole if mask is None else torch.from_numpy(mask) for mask in masks])
        return batch, valid.to(self.device)

    def batches(self, batch_size: int, seed: tuple[int, int] | None = None) -> Batches:
        """Return batches of one size each that hold every part once.

        A batch holds neighbours; with a seed, parts and batches are shuffled.
        """
        order = list(range(len(self.parts)))
        if seed is None:
            return self._of_one_size(order, batch_size)
        generator = np.random.default_rng(seed)
        order = generator.permutation(len(order)).tolist()
        batches = self._by_size(order, batch_size)
        return [batches[place] for place in generator.permutation(len(batches))]

    def _by_size(self, parts: Iterable[int], batch_size: int) -> Batches:
        return self._of_one_size(sorted(parts, key=self.sizes.__getitem__), batch_size)

    def _spread(self, most: int) -> list[int]:
        """Return at most so many parts, evenly from the whole folder."""
        return evenly(range(len(self.parts)), most)

    def spread_batches(self, most: int, batch_size: int) -> list[Tensor]:
        """Return at most so many parts, evenly from the folder, as batches of one size each."""
        members = self._by_size(self._spread(most), batch_size)
        return [self.batch(each)[0] for each in members]

    def halves(self, most: int, batch_size: int) -> list[Batches]:
        """Split at most so many parts, evenly from the folder, into two interleaved halves.

        Each half is a list of batches of one size each. A single part is both halves.
        """
        chosen = self._spread(most)
        halves = chosen[0::2], chosen[1::2] or chosen
        return [self._by_size(half, batch_size) for half in halves]

    def _of_one_size(self, order: Iterable[int], batch_size: int) -> Batches:
        batches = Batches()
        for _, same in groupby(order, key=self.sizes.__getitem__):
            run = list(same)
            batches += [run[first : first + batch_size] for first in range(0, len(run), batch_size)]
            # statistics of one image are poor
            if len(run) > batch_size > 1 and len(batches[-1]) == 1:
                batches[-2:] = [batches[-2] + batches[-1]]
        return batches


def _windows_with_data(picture: ImagePixels | Scene, side: int) -> list[Window]:
    """Return rows and columns of the windows that hold data.

    The windows cover the image evenly. Their side is ``side``, or a smaller image's own.
    """
    ranges = []
    for length in picture.shape[:2]:
        last = max(0, length - side)
        number = -(-length // side)
        firsts = [place * last // max(1, number - 1) for place in range(number)]
        ranges.append([slice(first, min(first + side, length)) for first in firsts])
    windows = []
    for rows, columns in product(*ranges):
        valid = picture.window(rows, columns).valid
        if valid is None or valid.any():
            windows.append((rows, columns))
    return windows


def confusion_with(
    label_file: Path,
    image: Path,
    classes: ClassSet,
    predicted: Ids,
    valid: Mask,
    layout: Layout = OWN_IDS,
) -> Counts:
    """Count pixels by label and predicted train id at the label's size.

    Returns:
        (C, C) numbers of pixels.

    Raises:
        InputError: see ``read_label``.
    """
    label = read_label(label_file, classes, layout, image=image)
    size = label.shape[::-1]
    predicted = resized_ids(predicted, size)
    counted = label != IGNORE_INDEX
    with_data = resized_mask(valid, size)
    if with_data is not None:
        counted &= with_data
    rows, columns = (torch.from_numpy(ids[counted]).long() for ids in (label, predicted))
    return confusion(rows, columns, len(classes)).numpy()


@dataclass(frozen=True)
class ImageNumbers:
    """Numbers of one image."""

    pixels: Floats  #: (C,) predicted as each class
    entropy: float  #: mean over its pixels, / log C
    #: (C, C) pixels by label and prediction, of a labelled image
    confusion: Counts | None


#: The numbers of all images, by stage and image path.
Rows = dict[str, dict[str, ImageNumbers]]


@dataclass(frozen=True)
class Predictions:
    """The predictions of all images in ``out``, and their rows by stage and image path.

    ``out`` has one folder for each stage of ``STAGES``.
    """

    out: Path
    folder: ImageFolder
    classes: ClassSet
    labels: Mapping[Path, Path]  #: the label images, by their images' paths below the folder
    trained: TrainedNetwork  #: sees images as the folder does
    layout: Layout = OWN_IDS  #: the numbering of the labels
    rows: Rows = field(default_factory=lambda: {stage: {} for stage in STAGES})

    def write(self, stage: str, index: int, logits: Tensor) -> None:
        """Write or replace the files and the row of an image's logits (C, h, w)."""
        finite(logits, str(self.folder.relative[index]))
        picture = self.folder.picture(index)
        with torch.inference_mode():
            self._write(stage, index, picture, [(0, 0, self._at_image_size(logits[None], picture))])

    @torch.no_grad()
    def predict(self, stage: str, index: int, forward: Forward) -> None:
        """Predict an image by a network, and :meth:`write` the prediction.

        The network is called with images as it sees them.
        """
        folder = self.folder
        if folder.tile is None:
            self.write(stage, index, forward(folder.seen(index)[0][None])[0])
            return
        with folder.opened(index) as picture:
            self._write(stage, index, picture, self.trained.parts(picture, forward))

    def _write(
        self, stage: str, index: int, picture: ImagePixels | Scene, parts: Iterable[Part]
    ) -> None:
        """Write pictures, GeoTIFF and row of an image's prediction from its parts' logits."""
        relative = self.folder.relative[index]
        path = partial(self.file, stage, index)
        prediction, (pixels, entropy) = write_maps(path, parts, picture, self.classes)
        ids = self.classes.to_ids(prediction.classes, prediction.valid)
        for kind, tile in {**prediction.tiles(self.classes.colors), "pred_labelIds": ids}.items():
            save_panel(path(f"{kind}.png"), tile)
        table = None
        if relative in self.labels:
            if isinstance(picture, Scene):
                prediction = shown_prediction(path, None, self.classes)
            table = self._confusion(index, prediction.classes, prediction.valid)
        mean = float(entropy.sum() / max(pixels.sum(), 1))
        self.rows[stage][relative.as_posix()] = ImageNumbers(pixels, mean, table)

    def _confusion(self, index: int, predicted: Ids, valid: Mask) -> Counts:
        return confusion_with(
            self.labels[self.folder.relative[index]],
            self.folder.files[index],
            self.classes,
            predicted,
            valid,
            self.layout,
        )

    def keep_before(self) -> None:
        """Copy the files and rows of the stage ``before`` to the stage ``after``."""
        shutil.copytree(self.out / "before", self.out / "after", dirs_exist_ok=True)
        self.rows["after"] = self.rows["before"].copy()

    @torch.no_grad()
    def confusions(self, forward: Forward) -> Tables:
        """Return the confusion matrix (C, C) of each labelled image by a network.

        The network is called with images as it sees them. Images are read whole.
        """
        folder = self.folder
        tables = Tables()
        for index, relative in enumerate(folder.relative):
            if relative not in self.labels:
                continue
            if folder.tile is None:
                picture = folder.picture(index)
                logits = self._at_image_size(forward(folder.seen(index)[0][None]), picture)
                classes = logits[0].argmax(0).to(torch.uint8).cpu().numpy()
            else:
                picture = read_image(folder.files[index], folder.description.pixels)
                classes = self.trained.maps(picture, forward).classes
            tables.append(self._confusion(index, classes, picture.valid))
        return tables

    def file(self, stage: str, index: int, kind: str) -> Path:
        """Return the path of an image's file of a kind."""
        return output_path(self.out / stage, self.folder.names[index], kind)

    def _at_image_size(self, logits: Tensor, picture: ImagePixels) -> Tensor:
        """Upsample logits (1, C, h, w) to the size H × W of the image."""
        return upsampled(logits, picture.shape[:2], self.folder.description.align_corners)
