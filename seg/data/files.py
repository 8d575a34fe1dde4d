"""Finds the images of a folder and their labels, and names what is written about an image."""

from __future__ import annotations

import itertools
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from dem_apps.errors import InputError
from dem_apps.runtime.files import refuse_used_folder

#: (width, height) in pixels.
Size = tuple[int, int]
Item = TypeVar("Item")
#: Largest side, in pixels, that an image may be resized to.
LARGEST_SIDE = 1 << 15
IMAGE_SUFFIXES = (
    ".png",
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
    ".webp",
    ".bmp",
    ".dib",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
    ".pnm",
    ".gif",
)
#: Largest number of bytes in a file's name, on most disks.
_LONGEST_NAME = 255
#: Formats that keep every number, in order of preference.
LABEL_SUFFIXES = (".png", ".tif", ".tiff", ".bmp", ".gif")
_JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")
#: Endings that a label's name has after its image's name, in lower case and in order of preference.
_LABEL_ENDINGS = (
    *("", "_mask", "_label", "_labels", "_masks", "_segmentation", "_seg", "_gt"),
    *("_gtfine_labelids", "_gtfine_labeltrainids", "_labelids", "_labeltrainids", "_train_id"),
)
#: Ending of Cityscapes' images, which its labels do not have.
_CITYSCAPES_IMAGE = "_leftImg8bit"
_CITYSCAPES_LABEL = re.compile(r"_gt(fine|coarse)_[a-z]+$")
#: Names of the folders of images and of labels, in any case and in order of preference.
IMAGE_FOLDERS = ("images", "image", "imgs", "img", "jpegimages", "image_2")
LABEL_FOLDERS = (
    *("labels", "label", "masks", "mask", "annotations", "segmentationclass", "semantic"),
    *("segmentationclasspng", "masks_machine"),
)
_LABEL_FOLDER = re.compile(rf"(^|/)(?:{'|'.join(LABEL_FOLDERS)})/")


def checked_size(size: Sequence[int] | str | None, flag: str) -> Size | None:
    """Return the size to resize images to, None for their own.

    Raises:
        InputError: not two sides from 1 to :data:`LARGEST_SIDE`; the error names the flag.
    """
    if size is None:
        return None
    if len(size) != 2 or not {*size} <= {*range(1, LARGEST_SIDE + 1)}:
        raise InputError(
            f"{flag}: expected W,H such as 1024,512, 1 to {LARGEST_SIDE:,} pixels, got {size}"
        )
    width, height = map(int, size)
    return width, height


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most ``most`` items, evenly spaced.

    >>> evenly(range(10), 4)
    [0, 2, 5, 7]
    """
    number = min(most, len(items))
    return [items[place * len(items) // number] for place in range(number)]


def _lies_among_labels(stem: str, stems: set[str]) -> bool:
    """Return whether a stem lies in a folder of labels, and its image in one beside it or in the folder above."""
    if not _LABEL_FOLDER.search(stem):
        return False
    places = ("", *(f"{name}/" for name in IMAGE_FOLDERS))
    return any(_labelled_by(_LABEL_FOLDER.sub(rf"\1{each}", stem)) & stems for each in places)


def check_out(out: Path, images: Path | None) -> None:
    """Raise an InputError where the folder ``out`` is used, or lies in the folder of images that it is made of."""
    refuse_used_folder(out, "--out")
    if images and images.is_dir() and out.resolve().is_relative_to(images.resolve()):
        raise InputError(f"--out: {out} lies in --images, where its pictures would count as images")


def find_images(source: Path) -> list[Path]:
    """Return the image files below a folder in sorted order, or the given file alone.

    :func:`image_files` finds them.

    Raises:
        InputError: neither a folder nor a file, or a folder without an image.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise InputError(f"--images: {source} is no folder and no image")
    files = image_files(source)
    if not files:
        suffixes = " ".join(IMAGE_SUFFIXES)
        raise InputError(
            f"--images: {source} and its subfolders hold no image ({suffixes}){left_out([source])}"
        )
    return files


def image_files(folder: Path) -> list[Path]:
    """Return the images below a folder and the folders that it links to, in sorted order.

    Images are told by their suffix, in any case. Hidden files do not count, as macOS writes
    ``._0.png`` beside 0.png. The label beside an image does not count either: ``a_mask.png``, a.png
    with a palette or in grey beside a.jpg, or labels/a.png beside images/a.png or a.png.
    """
    files = [file for file in visible_files(folder) if file.suffix.lower() in IMAGE_SUFFIXES]
    stem_of = {file: _stem(file, folder) for file in files}
    stems = set(stem_of.values())
    jpegs = {stem_of[file] for file in files if file.suffix.lower() in _JPEG}

    def is_image(file: Path) -> bool:
        stem = stem_of[file]
        if _labelled_by(stem) & (stems - {stem}) or _CITYSCAPES_LABEL.search(stem):
            return False
        if file.suffix.lower() not in LABEL_SUFFIXES:
            return True
        if _lies_among_labels(stem, stems):
            return False
        return stem not in jpegs or not _is_mask(file)

    return list(filter(is_image, files))


def left_out(folders: Iterable[Path], labels: Iterable[Path | None] = ()) -> str:
    """Count the files below folders that are no images, and none of the labels, by suffix.

    Returns:
        A text such as ``, left out: 2 .heic, 1 .png``; empty where there are none.
    """
    counts = Counter[str]()
    for folder in set(folders):
        others = set(visible_files(folder)) - {*image_files(folder), *labels}
        counts.update(file.suffix.lower() or "without suffix" for file in others)
    numbers = ", ".join(f"{number:,} {suffix}" for suffix, number in sorted(counts.items()))
    return numbers and f", left out: {numbers}"


def find_labels(folder: Path, images: Sequence[Path], root: Path) -> dict[Path, Path]:
    """Return the label image of each image, by the image's path below its own folder, ``root``.

    A label is lossless and has its image's path. Its stem is the image's, in any case, alone or
    with ``_mask``, ``_label`` and the like behind it, or the image's whole name (a.jpg.png). An
    image without one gets the path of a PNG that does not exist.

    Raises:
        InputError: two images with one label.
    """
    in_one_folder = root.resolve() == folder.resolve()
    others = {folder / image for image in images} if in_one_folder else set()
    present = _labels_by_stem(folder, others)
    labels: dict[Path, Path] = {}
    owners: dict[Path, Path] = {}
    for image in images:
        stem = os.path.splitext(image)[0]
        bases = dict.fromkeys((stem, stem.removesuffix(_CITYSCAPES_IMAGE)))
        names = [base + ending for base in bases for ending in _LABEL_ENDINGS]
        names.append(str(image))  # of a.jpg.png
        label = next(filter(None, map(present.get, map(_key, names))), None)
        labels[image] = label or folder / f"{stem}{'_mask' * in_one_folder}.png"
        if label and owners.setdefault(label, image) != image:
            raise InputError(
                f"{image}: shares the label {label} with {owners[label]}; give each its own name"
            )
    return labels


def _labels_by_stem(folder: Path, others: set[Path]) -> dict[str, Path]:
    """Return the label images below a folder by stem, without ``others``.

    Of several with one stem, the one in the preferred format counts.
    """
    labels: dict[str, Path] = {}
    files = [file for file in visible_files(folder) if file not in others]
    for suffix in LABEL_SUFFIXES:
        for file in files:
            if file.suffix.lower() == suffix:
                labels.setdefault(_stem(file, folder), file)
    return labels


def _labelled_by(stem: str) -> set[str]:
    """Return the stems of images that a label of this stem, in lower case, may belong to."""
    return {stem.removesuffix(ending) for ending in _LABEL_ENDINGS if stem.endswith(ending)}


def visible_files(folder: Path) -> list[Path]:
    """Return the files below a folder, sorted, without hidden ones.

    A folder that is reached twice counts once.
    """
    files: list[Path] = []
    visited: set[str] = set()
    for path, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(path)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if name[0] != ".")
        files += [Path(path, name) for name in names if name[0] != "."]
    return sorted(files)


def _is_mask(file: Path) -> bool:
    # imports Pillow, which the answer to a wrong flag does without
    from dem_apps.runtime.images import opened_image

    with suppress(InputError), opened_image(file) as picture:
        return picture.mode in ("1", "L", "P")
    return False


def _stem(file: Path, folder: Path) -> str:
    return _key(os.path.splitext(file.relative_to(folder))[0])


def _key(path: str) -> str:
    """Return the path without case, and with one form of each letter."""
    return unicodedata.normalize("NFC", path).lower()


def output_names(images: Sequence[Path]) -> list[Path]:
    """Return relative paths without suffix, no two alike even where case does not count.

    a.png and a.jpg keep their suffix.
    """
    plain = [str(image.with_suffix("")) for image in images]
    longer = [f"{name}_{image.suffix[1:]}" for name, image in zip(plain, images, strict=True)]
    return [Path(name) for name in distinct(_unshared(plain, longer))]


def _unshared(names: Sequence[str], longer: Sequence[str]) -> list[str]:
    """Return the names, and the longer one of each name that several have; case does not count."""
    numbers = Counter(name.lower() for name in names)
    return [
        long if numbers[name.lower()] > 1 else name
        for name, long in zip(names, longer, strict=True)
    ]


def refuse_long_name(image: Path) -> None:
    """Raise an InputError for an image with too long a name.

    The names of the files that are written of it are longer still.
    """
    most = _LONGEST_NAME - len("_pred_labelIds.png")
    if len(os.fsencode(image.name)) > most:
        raise InputError(
            f"{image}: the name is too long for the files that are written of it; at most {most} bytes fit"
        )


def flat_names(images: Sequence[str]) -> list[str]:
    """Return names for the images of a data set in one folder, none alike.

    Each image has a file ``NAME.png`` and a folder ``NAME`` there. A name is the stem, or the path
    where another image has the stem: ``val/a/0.png`` is ``val_a_0``.
    """
    # TensorBoard and tables take UTF-8
    paths = [Path(os.fsencode(image).decode(errors="replace")) for image in images]
    longer = [str(path.with_suffix("")).replace("/", "_") for path in paths]
    names = _unshared([path.stem for path in paths], longer)
    # the folder of 0.png.jpg would be the file of 0.jpg
    return distinct([re.sub(r"\.(png)$", r"_\1", name, flags=re.IGNORECASE) for name in names])


def distinct(names: Sequence[str]) -> list[str]:
    """Return the names, with ``_2``, ``_3``, … behind repeated ones; case does not count."""
    taken: set[str] = set()
    result = []
    for name in names:
        candidates = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        unused = next(each for each in candidates if each.lower() not in taken)
        taken.add(unused.lower())
        result.append(unused)
    return result
