"""Images and labels of one split: which files belong to it, and how one sample is read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from dem_apps.errors import InputError, nearest
from seg.data.files import LABEL_SUFFIXES, Size, visible_files
from seg.data.label_faults import look_at_labels
from seg.data.labels import CITYSCAPES_CLASSES, ClassSet, Ids, id_tables
from seg.data.layouts import fitting_layouts, named_layout, near_root
from seg.data.layouts.folders import FOLDERS, about_splits
from seg.data.layouts.layout import Pairs, with_other_kinds
from seg.data.numbering import as_numbered
from seg.data.pixel_format import RGB, Mask, Numbers, PixelFormat, resized_mask
from seg.data.read_images import open_image, pixels_and_mask, read_header, read_image
from seg.data.read_labels import ignored_outside, read_label

#: Names of files in a line.
_SHOWN = 3
#: Most images of which PNG files are read whole at the start, in about a second.
_READ_WHOLE = 2000


@dataclass(frozen=True)
class Sample:
    """One image and, where labels are read, its train ids."""

    name: str  #: the image's path below the data set's root
    image: Numbers  #: (H, W, 3) uint8, RGB, or (H, W, B) float32 in the files' own units
    label: Ids | None  #: (H, W) uint8 train ids with 255 where nothing counts, or None
    #: (H, W), False where the image holds no data; None where it does everywhere.
    valid: Mask = None
    pixels: PixelFormat = RGB  #: how the image is normalised and displayed

    def normalised(self) -> Tensor:
        """Return the image as the network takes it, (B, H, W) float32."""
        return self.pixels.normalised(self.image, self.valid)

    def preview(self) -> NDArray[np.uint8]:
        """Return the image for display, (H, W, 3) uint8."""
        return self.pixels.preview(self.image, self.valid)


class SegmentationDataset(Dataset[Sample]):
    """Images and labels of one split.

    ``files`` holds (image, label or None) of every sample, in order. Damaged files are left out.
    Where labels are read, images without one are left out as well.
    Labels are read in the numbering that they hold, see :mod:`seg.data.numbering`.

    Args:
        labelled: whether labels are read; None reads them if there are any.
        size: (width, height) to resize images to; labels of validation images keep their own size.
        exclude: paths below the root, file names or stems.
        part: a share of a fixed shuffle.
    """

    def __init__(
        self,
        root: Path,
        layout: str,
        split: str,
        labelled: bool | None,
        size: Size | None = None,
        *,
        classes: ClassSet = CITYSCAPES_CLASSES,
        exclude: Sequence[str] = (),
        part: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        self.root = root
        self.size = size
        self.resize_labels = split != "val"
        self.classes = classes
        self.layout = named_layout(layout)
        self.layout_name = layout
        #: sentences about what was left out, or is not where it is looked for
        self.notes: list[str] = []
        self.left_out: list[str] = []  #: a sentence about each image that is left out
        self.pixels = RGB
        self.found_as = ""  #: how the layout was found, where it was not named
        pairs = _pairs_of(root, layout, split)
        _refuse_absent(exclude, root, layout)
        pairs = _chosen(pairs, exclude, part, root)
        if self.layout is FOLDERS and (note := about_splits(root, split)):
            self.notes.append(note)
        pairs = self._whole(pairs, labelled is not False)
        if labelled is not False:
            pairs, labelled = self._with_labels(pairs, labelled)
        self.labelled = labelled
        self.files = [(image, label if labelled else None) for image, label in pairs]
        if labelled:
            self.layout, notes = as_numbered([label for _, label in pairs], classes, self.layout)
            self.notes += notes
            # an InputError names a class that the data set lacks
            id_tables(classes, self.layout.ids)
        # the root itself where the images lie in no folder
        top = root.joinpath(*pairs[0][0].relative_to(root).parent.parts[:1])
        #: folder above all its images
        self.image_folder = next(filter(Path.is_dir, [top / split, top / "images"]), top)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Sample:
        """Read one sample.

        Raises:
            InputError: a file that cannot be read, or an id that is not in the table.
        """
        image_file, label_file = self.files[index]
        image, valid = pixels_and_mask(read_image(image_file, self.pixels), self.pixels, self.size)
        label = None
        if label_file is not None:
            label = self._label(label_file, image_file, image.shape[1::-1])
            label = ignored_outside(label, resized_mask(valid, label.shape[::-1]))
        return Sample(self.name(index), image, label, valid, self.pixels)

    def label(self, index: int) -> Ids:
        """Return the train ids of a labelled sample, (H, W), without reading the image's pixels."""
        image_file, label_file = self.files[index]
        assert label_file is not None, f"{image_file} is read without its label"
        return self._label(label_file, image_file, self.size or read_header(image_file).size)

    def look_at_labels(self, title: str) -> list[str]:
        """Return warnings and notes about the labels, if there are any.

        :func:`seg.data.label_faults.look_at_labels` finds them.
        """
        files = [(image, label) for image, label in self.files if label is not None]
        notes = [f"note: {title}: {note}" for note in self.notes]
        if not files:
            return notes
        try:
            return notes + look_at_labels(title, files, self.classes, self.layout)
        except InputError as error:
            raise InputError(f"{error}{self.found_as and f' ({self.found_as})'}") from error

    @property
    def images(self) -> list[Path]:
        """The image files, in order."""
        return [image for image, _ in self.files]

    def name(self, index: int) -> str:
        """Return the image's path below the root."""
        return self.files[index][0].relative_to(self.root).as_posix()

    def _whole(self, pairs: Pairs, labelled: bool) -> Pairs:
        """Return the pairs without a damaged file.

        Few enough PNG files are checked inside, others for being cut short.
        """
        whole = Pairs()
        damaged = list[str]()
        thoroughly = len(pairs) <= _READ_WHOLE
        for image, label in pairs:
            try:
                for file in (image, label) if labelled and label.is_file() else (image,):
                    with open_image(file) as opened:
                        opened.refuse_damaged(thoroughly)
                whole.append((image, label))
            except InputError as error:
                damaged.append(str(image))
                self.left_out.append(f"{error}; the image {image} is left out")
        if damaged:
            names = ", ".join(damaged[:_SHOWN]) + ", …" * (len(damaged) > _SHOWN)
            about = f"damaged or cut short, or with such a label: {names}"
            if not whole:
                raise InputError(f"{self.root}: every image is {about}")
            self.notes.append(f"{len(damaged)} of {len(pairs)} images left out, {about}")
        return whole

    def _with_labels(self, pairs: Pairs, labelled: bool | None) -> tuple[Pairs, bool]:
        """Return the pairs with an existing label, and True.

        Where no label exists and none is needed, all pairs and False are returned.
        """
        present = [pair for pair in pairs if pair[1].is_file()]
        without = sorted({*pairs} - {*present})
        missing = [f"{image}: its label {label} is missing" for image, label in without]
        if not missing:
            return pairs, True
        share = f"{len(missing)} of {len(pairs)}"
        if present:
            self.notes.append(
                f"{share} images have no label and are left out, such as {missing[0]}"
            )
            self.left_out += [f"{sentence}; the image is left out" for sentence in missing]
            return present, True
        if labelled:
            folder = next(filter(Path.is_dir, without[0][1].parents))
            others = set(visible_files(folder)) - {image for image, _ in pairs}
            held = min(others).relative_to(folder) if others else "no other file"
            raise InputError(
                f"{missing[0]} ({share} have none); {folder} holds {held}; labels are {', '.join(LABEL_SUFFIXES)} "
                "with one id per pixel"
            )
        self.notes.append(
            f"{self.root}: no labels, so training gives the unsupervised scores alone; {missing[0]}"
        )
        return pairs, False

    def _label(self, file: Path, image: Path, image_size: Size) -> Ids:
        size = image_size if self.resize_labels else None
        return read_label(file, self.classes, self.layout, size, image)


def _pairs_of(root: Path, layout: str, split: str) -> Pairs:
    """Return the files of the layout.

    Raises:
        InputError: the layout finds none; the error names the layouts that do.
    """
    try:
        return with_other_kinds(named_layout(layout).pairs(root, split))
    except InputError as error:
        hint = ""
        if near := near_root(root, split, [layout]):
            hint = f"; did you mean {near}?"
        elif fitting := fitting_layouts(root, split):  # this one is not among them
            hint = (
                f"; it looks like layout {' or '.join(fitting)}: give --source.layout or --target.layout, or exchange "
                "--source.root and --target.root where they are swapped"
            )
        raise InputError(f"{error} (layout {layout}){hint}") from error


def _refuse_absent(exclude: Sequence[str], root: Path, layout: str) -> None:
    """Raise an InputError where ``exclude`` names an image that no split of the data set has."""
    known = set[str]()
    for split in ("train", "val") if exclude else ():
        with suppress(InputError):  # the data set may lack this split
            for image, _ in named_layout(layout).pairs(root, split):
                known.update(_names(image, root))
    for name in exclude:
        if name not in known:
            raise InputError(
                f"{root}: 'exclude' names '{name}', and no image has that path, name or stem"
                f"{nearest(name, known)}"
            )


def _names(image: Path, root: Path) -> tuple[str, str, str]:
    """Return the names of an image for ``exclude``: its path below the root, file name and stem."""
    return image.relative_to(root).as_posix(), image.name, image.stem


def _chosen(pairs: Pairs, exclude: Sequence[str], part: tuple[float, float], root: Path) -> Pairs:
    """Return a share of the images that are not excluded, in file order.

    The share is a part of a shuffled order that depends on the images' names alone.
    """
    wanted = [pair for pair in pairs if set(exclude).isdisjoint(_names(pair[0], root))]
    if not wanted:
        raise InputError(f"{root}: every image is excluded; take some names out of 'exclude'")

    def place(pair: tuple[Path, Path]) -> bytes:
        # a hash and no random generator, whose stream may change with its library
        return hashlib.sha256(os.fsencode(_names(pair[0], root)[0])).digest()

    first, last = (round(share * len(wanted)) for share in part)
    if first == last:
        raise InputError(
            f"{root}: the part {part[0]:g} to {part[1]:g} of {len(wanted)} images is none at all"
        )
    return sorted(sorted(wanted, key=place)[first:last])
