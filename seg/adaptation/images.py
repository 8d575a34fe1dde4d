"""The folder of images that a network is adapted to, their labels, and what is written of each before and after.

Shapes: B images, C classes, H × W an image's own size, h × w the size that the network sees, or that of its logits.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from dem_apps.errors import InputError, NotFiniteError
from dem_apps.test_time_methods.network import takes
from seg.data.files import find_images, find_labels, output_names
from seg.data.label_faults import look_at_labels
from seg.data.labels import IGNORE_INDEX, ClassSet
from seg.data.pixel_format import resized_mask
from seg.data.read import read_label
from seg.data.read_images import ImagePixels, read_image, seen, whole_header
from seg.maps import entropy_maps, panels
from seg.maps.run_pictures import output_path, write_geotiffs
from seg.models.network import upsampled
from seg.scores.evidence import Forward
from seg.scores.metrics import confusion
from seg.trained.description import Description

#: Of an image in pixels; smaller ones are no photographs, and have no statistics.
LEAST_SIDE = 8
STAGES = ("before", "after")
#: Where the predictions of an adaptation that was not accepted are kept.
REFUSED = "refused/after"


class ImageFolder:
    """A folder of images, or one image, in the order of names; unreadable files are named on stderr and left out.

    The network sees images at ``size``, (width, height), None for each image's own, rounded to the nearest multiple
    that it takes. An InputError where no image can be read.
    """

    def __init__(
        self, source: Path, description: Description, size: tuple[int, int] | None, device: torch.device
    ) -> None:
        self.description, self.device = description, device
        self.most: int | None = None  # images that the network takes at a time
        self.notes: tuple[str, ...] = ()
        self.skipped: dict[str, str] = {}  # why an image was left out, by its path below the folder
        self.files: list[Path] = []
        self.sizes: list[tuple[int, int]] = []
        self._held: dict[int, ImagePixels] = {}  # of the latest batch
        self.root = root = source if source.is_dir() else source.parent
        for file in find_images(source):
            try:
                width, height = whole_header(file, description.pixels).size
                if min(height, width) < LEAST_SIDE:
                    raise InputError(f"{file}: {width} × {height} pixels; a side has at least {LEAST_SIDE}")
                self.sizes.append(self._rounded(size or (width, height)))
                self.files.append(file)
            except InputError as error:
                print(f"skipped: {error}", file=sys.stderr, flush=True)
                self.skipped[file.relative_to(root).as_posix()] = str(error).removeprefix(f"{file}: ")
        if not self.files:
            raise InputError(f"--images: no image in {source} can be read")
        self.relative = [file.relative_to(root) for file in self.files]
        self.names = output_names(self.relative)  # where what is written of each begins

    def __len__(self) -> int:
        return len(self.files)

    def limit_batches(self, network: nn.Module) -> None:
        """Batches of one image where a network takes no more at a time."""
        image = self.seen(0)[0][None]
        if len(self) > 1 and not takes(network, torch.cat([image, image])) and takes(network, image):
            self.most, self.notes = 1, ("the network takes one image at a time, and so do batches",)

    def picture(self, index: int) -> ImagePixels:
        """An image as it is; those of the latest batch are not read again."""
        held = self._held.get(index)
        return read_image(self.files[index], self.description.pixels) if held is None else held

    def seen(self, index: int, picture: ImagePixels | None = None) -> tuple[Tensor, NDArray[np.bool_] | None]:
        """(3, h, w) as the network takes it, and where it holds data, None for everywhere; ``picture`` saves a read."""
        picture = self.picture(index) if picture is None else picture
        values, valid = seen(picture, self.description.pixels, self.sizes[index])
        return self.description.normalised(values, valid).to(self.device), valid

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """(B, 3, h, w) of images of one size, and (B, h, w) bool where they hold data; None for everywhere."""
        self._held = {index: self.picture(index) for index in indices}
        images, masks = zip(*map(self.seen, indices), strict=True)
        batch = torch.stack(images)
        if all(mask is None for mask in masks):
            return batch, None
        whole = torch.ones(batch.shape[2:], dtype=torch.bool)
        valid = torch.stack([whole if mask is None else torch.from_numpy(mask) for mask in masks])
        return batch, valid.to(self.device)

    def batches(self, batch_size: int, seed: tuple[int, int] | None = None) -> list[list[int]]:
        """Batches of one size each, every image once: of neighbours, or shuffled by a seed."""
        if seed is None:
            return self._of_one_size(range(len(self)), batch_size)
        generator = np.random.default_rng(seed)
        order = sorted(generator.permutation(len(self)).tolist(), key=lambda index: self.sizes[index])
        batches = self._of_one_size(order, batch_size)
        return [batches[place] for place in generator.permutation(len(batches))]

    def spread(self, most: int) -> list[int]:
        """At most so many images, evenly from the whole folder."""
        number = min(most, len(self))
        return [place * len(self) // number for place in range(number)]

    def spread_batches(self, most: int, batch_size: int) -> list[Tensor]:
        """The images of :meth:`spread` as batches of one size each."""
        return [self.batch(members)[0] for members in self._sorted_batches(self.spread(most), batch_size)]

    def halves(self, most: int, batch_size: int) -> list[list[list[int]]]:
        """The images of :meth:`spread` in two interleaved halves, as batches of one size each; a single one is both."""
        chosen = self.spread(most)
        return [self._sorted_batches(half or chosen, batch_size) for half in (chosen[0::2], chosen[1::2])]

    def _sorted_batches(self, indices: list[int], batch_size: int) -> list[list[int]]:
        return self._of_one_size(sorted(indices, key=lambda index: (self.sizes[index], index)), batch_size)

    def _of_one_size(self, order: Iterable[int], batch_size: int) -> list[list[int]]:
        batches: list[list[int]] = []
        batch_size = min(batch_size, self.most or batch_size)
        for _, same in groupby(order, key=lambda index: self.sizes[index]):
            run = list(same)
            batches += [run[first : first + batch_size] for first in range(0, len(run), batch_size)]
            if len(run) > batch_size > 1 and len(batches[-1]) == 1:  # statistics of one image are poor
                batches[-2:] = [batches[-2] + batches[-1]]
        return batches

    def _rounded(self, size: tuple[int, int]) -> tuple[int, int]:
        multiple = self.description.multiple
        width, height = (max(multiple, round(side / multiple) * multiple) for side in size)
        return width, height


class Labels:
    """The label images in ``folder`` of some of ``images``, paths below ``root``; ``notes`` are warnings about them.

    Raises InputError: no label of any image, or labels of which no score can be computed.
    """

    def __init__(self, folder: Path, images: Sequence[Path], classes: ClassSet, root: Path) -> None:
        places = find_labels(folder, images, root)
        self.files = {image: file for image, file in places.items() if file.is_file()}
        if not self.files:
            raise InputError(
                f"--labels: {folder} has no label of any image; that of {images[0]} would be {places[images[0]]}"
            )
        self._classes, self._root = classes, root
        self.notes = look_at_labels("--labels", [(root / image, file) for image, file in self.files.items()], classes)

    def confusion(
        self, image: Path, predicted: NDArray[np.uint8], valid: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64] | None:
        """(C, C) pixels by label and predicted train id, at the label's size; None for an image without a label.

        Raises InputError: an unreadable label image, or an id that no class has.
        """
        if image not in self.files:
            return None
        label = read_label(self.files[image], self._classes, image=self._root / image)
        size = (label.shape[1], label.shape[0])
        predicted = np.asarray(cv2.resize(predicted, size, interpolation=cv2.INTER_NEAREST_EXACT), np.uint8)
        counted = label != IGNORE_INDEX
        if valid is not None:
            counted &= resized_mask(valid, size)
        rows, columns = (torch.from_numpy(ids[counted]).long() for ids in (label, predicted))
        return confusion(rows, columns, len(self._classes)).numpy()


@dataclass(frozen=True)
class ImageNumbers:
    """Numbers of one image."""

    pixels: NDArray[np.int64]  #: (C,) predicted as each class
    entropy: float  #: mean over its pixels, / log C
    confusion: NDArray[np.int64] | None  #: (C, C) pixels by label and prediction, of a labelled image


@dataclass(frozen=True)
class Predictions:
    """The predictions of all images in ``out``, one folder per stage, and their rows by stage and image path.

    The stages are those of ``STAGES``, and ``REFUSED``.
    """

    out: Path
    folder: ImageFolder
    classes: ClassSet
    labels: Labels | None
    align_corners: bool
    rows: dict[str, dict[str, ImageNumbers]] = field(
        default_factory=lambda: {stage: {} for stage in (*STAGES, REFUSED)}
    )

    def write(self, stage: str, index: int, logits: Tensor, picture: ImagePixels | None = None) -> None:
        """Write, or replace, files and row of an image's logits (C, h, w); ``picture`` saves reading it again.

        Raises NotFiniteError: logits that are NaN or infinite, which would look like class 0 everywhere.
        """
        relative = self.folder.relative[index]
        if not bool(logits.isfinite().all()):
            raise NotFiniteError(f"{relative}: the network's output is not finite; its weights are no use")
        picture = self.folder.picture(index) if picture is None else picture
        with torch.inference_mode():
            prediction = entropy_maps.Prediction.of(self._at_image_size(logits[None], picture), picture.valid)
        tiles = {**prediction.tiles(self.classes.colors), "pred_labelIds": prediction.ids(self.classes)}
        for kind, tile in tiles.items():
            panels.save_panel(self.file(stage, index, f"{kind}.png"), Image.fromarray(tile))
        if picture.place is not None:
            write_geotiffs(lambda kind: self.file(stage, index, kind), prediction, self.classes, picture.place)
        pixels, entropy = prediction.sums(len(self.classes))
        self.rows[stage][relative.as_posix()] = ImageNumbers(
            pixels,
            float(entropy.sum() / max(pixels.sum(), 1)),
            None if self.labels is None else self.labels.confusion(relative, prediction.classes, picture.valid),
        )

    def keep_before(self) -> None:
        """Files and rows of before become those of after."""
        before, after = (self.out / stage for stage in STAGES)
        shutil.rmtree(after, ignore_errors=True)
        shutil.copytree(before, after)
        self.rows["after"].clear()
        self.rows["after"].update(self.rows["before"])

    def labelled(self, most: int | None = None) -> list[int]:
        """The labelled images, in order; with ``most`` so many, evenly."""
        files = {} if self.labels is None else self.labels.files
        found = [index for index, relative in enumerate(self.folder.relative) if relative in files]
        number = min(most or len(found), len(found))
        return [found[place * len(found) // number] for place in range(number)]

    def confusion(self, index: int, picture: ImagePixels, logits: Tensor) -> NDArray[np.int64] | None:
        """That of an image by its logits (1, C, h, w)."""
        predicted = self._at_image_size(logits, picture).argmax(0).to(torch.uint8).cpu().numpy()
        relative = self.folder.relative[index]
        return None if self.labels is None else self.labels.confusion(relative, predicted, picture.valid)

    @torch.no_grad()
    def confusions_of(self, forward: Forward) -> list[NDArray[np.int64]]:
        """Those of the labelled images, in order, by a network that is called with images as it sees them."""
        found = []
        for index in self.labelled():
            picture = self.folder.picture(index)
            found.append(self.confusion(index, picture, forward(self.folder.seen(index, picture)[0][None])))
        return [table for table in found if table is not None]

    def file(self, stage: str, index: int, kind: str) -> Path:
        """Where an image's file of a kind is written to."""
        return output_path(self.out / stage, self.folder.names[index], kind)

    def _at_image_size(self, logits: Tensor, picture: ImagePixels) -> Tensor:
        """(1, C, h, w) → (C, H, W)."""
        size = (picture.values.shape[0], picture.values.shape[1])
        return upsampled(logits, size, self.align_corners)[0]
