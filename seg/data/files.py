"""Finds the images of a folder and their labels, and names what is written about an image."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from dem_apps.errors import InputError

#: (width, height) in pixels.
Size = tuple[int, int]
Item = TypeVar("Item")
#: Most pixels of a side that an image may be resized to.
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
#: Bytes of a file's name, on most disks.
_LONGEST_NAME = 255
#: Formats that keep every number, in order of preference.
LABEL_SUFFIXES = (".png", ".tif", ".tiff", ".bmp", ".gif")
_JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")
#: Endings of a label's name behind its image's, in order of preference.
_LABEL_ENDINGS = ("", "_mask", "_label", "_labels", "_masks", "_segmentation", "_seg", "_gt")
#: Of labels, beside a folder images.
_LABEL_FOLDERS = re.compile(r"(^|/)(?:labels?|masks?|annotations)(?=/)")


def checked_size(size: Sequence[int] | str | None, flag: str) -> Size | None:
    """The size to resize images to, None for their own; else an InputError that names the flag."""
    if size is None:
        return None
    whole = all(hasattr(side, "__index__") for side in size)  # a character is not
    if (
        isinstance(size, str)
        or not whole
        or len(size) != 2
        or min(size) < 1
        or max(size) > LARGEST_SIDE
    ):
        raise InputError(
            f"{flag}: expected W,H such as 1024,512, 1 to {LARGEST_SIDE:,} pixels, got {size}"
        )
    return size[0], size[1]


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many of them, evenly spaced.

    >>> evenly(range(10), 4)
    [0, 2, 5, 7]
    """
    number = min(most, len(items))
    return [items[place * len(items) // number] for place in range(number)]


def find_images(source: Path) -> list[Path]:
    """Image files below a folder in sorted order, see :func:`image_files`; of a file, itself."""
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
    """The images below a folder and the folders that it links to, by suffix in any case, in sorted order.

    Hidden files do not count (macOS writes ``._0.png`` beside 0.png), nor does the label beside an image:
    ``a_mask.png``, a.png with a palette or in grey beside a.jpg, or labels/a.png beside images/a.png.
    """
    return _divided(folder)[0]


def left_out(folders: Iterable[Path]) -> str:
    """``, left out: 2 .heic, 1 label``: the files below folders that are no images, counted; or an empty text."""
    counts = sum((_divided(folder)[1] for folder in set(folders)), Counter[str]())
    said = ", ".join(f"{number:,} {kind}" for kind, number in sorted(counts.items()))
    return said and f", left out: {said}"


def find_labels(folder: Path, images: Sequence[Path], root: Path | None = None) -> dict[Path, Path]:
    """The label image of each image, by the image's path below its own folder, ``root``.

    A label is lossless and has its image's path and stem, in any case, or with ``_mask``, ``_label`` and the like
    behind it, or its whole name (a.jpg.png). Where there is none, it is a PNG that does not exist. Two images with one
    label are an error.
    """
    beside = root is not None and root.exists() and folder.exists() and root.samefile(folder)
    images_here = {folder / image for image in images} if beside else set()
    files = [
        file
        for file in _visible_files(folder)
        if file.suffix.lower() in LABEL_SUFFIXES and file not in images_here
    ]
    files.sort(key=lambda file: LABEL_SUFFIXES.index(file.suffix.lower()))
    stems = [os.path.splitext(file.relative_to(folder))[0] for file in files]
    present: dict[str, Path] = {}
    for name, file in [*zip(stems, files, strict=True), *zip(map(_key, stems), files, strict=True)]:
        present.setdefault(name, file)  # one in its own case comes first
    labels: dict[Path, Path] = {}
    owners: dict[Path, Path] = {}
    for image in images:
        stem = os.path.splitext(image)[0]
        names = [*(stem + ending for ending in _LABEL_ENDINGS), str(image)]  # the last of a.jpg.png
        found = next(
            (present[key] for name in names for key in (name, _key(name)) if key in present), None
        )
        labels[image] = found or folder / f"{stem}{'_mask' * beside}.png"
        if found and owners.setdefault(found, image) != image:
            raise InputError(
                f"{image}: shares the label {found} with {owners[found]}; give each its own name"
            )
    return labels


def missing_label(image: Path, label: Path) -> str:
    """A sentence about an image without its label, and a file by the label's name that is none."""
    others = (
        label.with_suffix(suffix) for suffix in IMAGE_SUFFIXES if suffix not in LABEL_SUFFIXES
    )
    other = next(filter(Path.is_file, others), None)
    hint = f"; {other} is none of {' '.join(LABEL_SUFFIXES)}" if other else ""
    return f"{image}: its label {label} is missing{hint}"


def _divided(folder: Path) -> tuple[list[Path], Counter[str]]:
    """The images below a folder, and the number of other files by suffix or as labels beside their images."""
    images, others = [], Counter[str]()
    files = [
        (file, file.suffix.lower(), _key(os.path.splitext(file.relative_to(folder))[0]))
        for file in _visible_files(folder)
    ]
    stems = {stem for _, suffix, stem in files if suffix in IMAGE_SUFFIXES}
    jpegs = {stem for _, suffix, stem in files if suffix in _JPEG}
    for file, suffix, stem in files:
        there = _LABEL_FOLDERS.sub(r"\1images", stem)
        if suffix not in IMAGE_SUFFIXES:
            others[suffix or "without suffix"] += 1
        elif (
            _labelled_by(stem) & (stems - {stem})
            or (suffix in LABEL_SUFFIXES and stem in jpegs and _is_mask(file))
            or (suffix in LABEL_SUFFIXES and there != stem and _labelled_by(there) & stems)
        ):
            others["label beside its image"] += 1
        else:
            images.append(file)
    return images, others


def _labelled_by(stem: str) -> set[str]:
    """The stems of images that a label of this stem may belong to."""
    return {stem.removesuffix(ending) for ending in _LABEL_ENDINGS if stem.endswith(ending)}


def _visible_files(folder: Path) -> list[Path]:
    """The files below a folder, sorted; a folder that is reached twice counts once."""
    found: list[Path] = []
    visited: set[str] = set()
    for path, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(path)
        folders[:] = [] if real in visited else sorted(name for name in folders if name[0] != ".")
        if real not in visited:
            found += [Path(path, name) for name in names if name[0] != "."]
        visited.add(real)
    return sorted(found)


def _is_mask(file: Path) -> bool:
    # Pillow, which answering a wrong flag does without
    from dem_apps.runtime.images import opened_image

    with suppress(InputError), opened_image(file) as picture:
        return picture.mode in ("1", "L", "P")
    return False


def _key(path: str) -> str:
    """The path without case, and with one form of each letter."""
    return unicodedata.normalize("NFC", path).lower()


def output_names(images: Sequence[Path]) -> list[Path]:
    """Relative paths without suffix, no two alike even where case does not count: a.png and a.jpg keep their suffix."""
    shared = Counter(str(image.with_suffix("")).lower() for image in images)
    names = []
    for image in images:
        alone = shared[str(image.with_suffix("")).lower()] == 1
        names.append(
            str(image.with_name(image.stem if alone else f"{image.stem}_{image.suffix[1:]}"))
        )
    return [Path(name) for name in distinct(names)]


def refuse_long_name(image: Path) -> None:
    """Raise an InputError for an image whose name has no room for what is written of it."""
    most = _LONGEST_NAME - len("_pred_labelIds.png")
    if len(os.fsencode(image.name)) > most:
        raise InputError(
            f"{image}: the name is too long for the files that are written of it; at most {most} bytes fit"
        )


def flat_names(images: Sequence[str]) -> list[str]:
    """Names for one folder with a file ``NAME.png`` and a folder ``NAME`` of each image of a data set, none alike.

    A name is the stem, or the path where another image has the stem: ``val/a/0.png`` is ``val_a_0``.
    """
    # TensorBoard and tables take UTF-8
    images = [os.fsencode(image).decode(errors="replace") for image in images]
    shared = Counter(Path(image).stem.lower() for image in images)
    chosen = []
    for image in images:
        stem, path = Path(image).stem, str(Path(image).with_suffix("")).replace("/", "_")
        chosen.append(path if shared[stem.lower()] > 1 else stem)
    # the folder of 0.png.jpg would be the file of 0.jpg
    chosen = [f"{name[:-4]}_png" if name.lower().endswith(".png") else name for name in chosen]
    return distinct(chosen)


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with ``_2``, ``_3``, … behind repeated ones; case does not count."""
    taken: set[str] = set()
    result = []
    for name in names:
        candidate, number = name, 1
        while candidate.lower() in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate.lower())
        result.append(candidate)
    return result
