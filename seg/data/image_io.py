"""Pictures as people have them, of any format, size and mode, and label images, whose pixels are ids."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dem_apps.errors import InputError
from dem_apps.runtime.images import opened_image
from seg.data import rasters

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".gif")
#: Pixels of a side that an image may be resized to.
LARGEST_SIDE = 1 << 15
#: Bytes; a file system takes 255, and ``_pred_labelIds.png.tmp`` and a number may come behind it.
_LONGEST_NAME = 220
#: Key of an image's ``info``, see :func:`decode`.
TURNED = "dem_apps_turned"
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip
_SIDEWAYS = (5, 6, 7, 8)
_EXIF_OF_PNG = {"exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"}
#: What labels come in: a format that rounds numbers, as JPEG does, makes other classes of them.
LOSSLESS = ("PNG", "TIFF")


def find_images(source: Path) -> list[Path]:
    """Image files below a folder in sorted order, hidden ones left out; of a file, itself.

    Raises:
        InputError: no such folder, or no image in it.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise InputError(f"--images: {source} is no folder and no image")
    files = sorted(
        file
        for file in source.rglob("*")
        if file.suffix.lower() in IMAGE_SUFFIXES
        and not any(part.startswith(".") for part in file.relative_to(source).parts)
        and not file.is_dir()
    )
    if not files:
        raise InputError(f"--images: {source} and its subfolders hold no image ({' '.join(IMAGE_SUFFIXES)})")
    return files


def output_names(images: Sequence[Path]) -> list[Path]:
    """Relative paths without suffix, no two alike even where case does not count: a.png and a.jpg keep their suffix.

    Names too long to have something added are cut.
    """
    shared = Counter(str(image.with_suffix("")).lower() for image in images)
    names = []
    for image in images:
        name = image.with_suffix("")
        if shared[str(name).lower()] > 1:
            name = image.with_name(f"{image.stem}_{image.suffix[1:]}")
        names.append(str(name.with_name(cut(name.name))))
    return [Path(name) for name in distinct(names)]


def flat_names(images: Sequence[str]) -> list[str]:
    """A name for each image of a data set, for one folder with a file ``NAME.png`` and a folder ``NAME`` of each.

    It is the stem where no other image has it, else the path: ``val/a/0.png`` beside ``val/b/0.png`` is ``val_a_0``.
    No two are alike, even where case does not count.
    """
    stems = [Path(image).stem for image in images]
    shared = Counter(stem.lower() for stem in stems)
    paths = [str(Path(image).with_suffix("")).replace("/", "_") for image in images]
    chosen = [path if shared[stem.lower()] > 1 else stem for path, stem in zip(paths, stems, strict=True)]
    # the folder of 0.png.jpg would be the file of 0.jpg
    chosen = [f"{name[:-4]}_png" if name.lower().endswith(".png") else name for name in chosen]
    return distinct([cut(name) for name in chosen])


def cut(name: str) -> str:
    """With room behind it for what is added to a name; names that were told apart by their ends still are."""
    if len(os.fsencode(name)) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:8]
    return f"{os.fsencode(name)[: _LONGEST_NAME - 9].decode(errors='ignore')}_{digest}"


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with ``_2``, ``_3``, … behind one that came before, in whatever case."""
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


def decode(file: Path) -> Image.Image:
    """An image file's pixels, upright as its EXIF says; of several frames the first.

    What was turned has ``info[TURNED]``: its orientation, 2 to 8.

    Raises:
        InputError: it is missing, damaged, cut short or too large, or has more than 8 bits, which would be cut.
    """
    with opened_image(file) as picture:
        deep = deep_type(picture)
        if deep is not None:
            raise InputError(f"{file}: {_deep(deep)}")
        orientation = orientation_of(picture)
        picture.load()
        if orientation not in _TURNS:
            return picture
        turned = picture.transpose(_TURNS[orientation])
        turned.info[TURNED] = orientation
        return turned


def upright_size(file: Path) -> tuple[int, int]:
    """(width, height) of what :func:`decode` returns, without decoding the pixels.

    Raises:
        InputError: it is missing, no image or too large.
    """
    with opened_image(file) as picture:
        orientation = orientation_of(picture)
        return (picture.height, picture.width) if orientation in _SIDEWAYS else picture.size


def orientation_of(picture: Image.Image) -> int:
    """The EXIF orientation of an image that is not decoded yet; 1 is upright."""
    if picture.format == "PNG" and not _EXIF_OF_PNG & picture.info.keys():
        return 1  # Pillow would decode the pixels to look for one behind them
    if picture.format == "TIFF":
        picture.load()  # Pillow may turn it, and then says that it is upright
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return int(picture.getexif().get(_ORIENTATION, 1))
    except Exception:  # as many kinds of broken EXIF as of decoders; the pixels may be good all the same
        return 1


def read_index_image(file: Path) -> NDArray[np.uint8]:
    """Ids of a PNG or TIFF with a palette (P) or with 8-bit grey (L), (H, W) uint8, upright as its EXIF says.

    A TIFF may have numbers of more bits that are ids all the same; where it holds no data the id is 255.

    Raises:
        InputError: a file that cannot be read, is in colours, or whose format does not keep every number.
    """
    if rasters.is_tiff(file) and rasters.available():
        return rasters.read_ids(file)
    with opened_image(file, LOSSLESS) as picture:
        if picture.info.get("compression") in ("jpeg", "tiff_jpeg", "webp"):
            raise InputError(f"{file}: {picture.info['compression']} rounds ids to other ids; save the label without")
        tiles = getattr(picture, "tile", [])
        stored = tiles[0][3] if tiles else None  # .args from Pillow 11 on
        orientation = orientation_of(picture)
        picture.load()
    if picture.mode not in ("P", "L"):
        raise InputError(f"{file}: a label image holds one id per pixel (mode P or L), this one is {picture.mode}")
    if stored in ("L;2", "L;4"):
        # decoders spread the 4 or 16 shades over 0 to 255, and nobody knows whether ids or shades were meant
        raise InputError(f"{file}: a label image in grey has 8 bits per pixel, this one has {stored[2:]}; save 8")
    return np.asarray(picture.transpose(_TURNS[orientation]) if orientation in _TURNS else picture)


def as_rgb(picture: Image.Image, file: Path) -> NDArray[np.uint8]:
    """A decoded 8-bit image of any mode as (H, W, 3) uint8; ``file`` names it in errors.

    An alpha channel, in which renderers keep anything, is dropped.

    Raises:
        InputError: an image with more than 8 bits, whose scale nobody knows.
    """
    if picture.mode.startswith("I") or picture.mode == "F":
        raise InputError(f"{file}: {_deep('float32' if picture.mode == 'F' else 'uint16')}")
    return np.asarray(picture.convert("RGB"))


def deep_type(picture: Image.Image) -> str | None:
    """numpy's name of an image's numbers where they have more than 8 bits, before it is decoded; None for 8."""
    if picture.mode == "F":
        return "float32"
    if picture.mode.startswith("I"):
        return "int32" if picture.mode == "I" and picture.format not in ("PNG", "PPM") else "uint16"
    tiles = getattr(picture, "tile", [])
    stored = tiles[0][3] if tiles else None  # .args from Pillow 11 on
    # 16-bit colours would be cut where they are decoded: PNG and TIFF say it in a name, PPM by its largest number
    parts = stored if isinstance(stored, tuple) else (stored,)
    if isinstance(parts[0], str) and ";16" in parts[0]:
        return "uint16"
    return "uint16" if picture.format == "PPM" and len(parts) > 1 and _is_beyond_a_byte(parts[1]) else None


def turned(values: NDArray[Any], orientation: int) -> NDArray[Any]:
    """(H, W, …) pixels as they are stored, upright as the EXIF orientation says."""
    if orientation in _SIDEWAYS:
        values = values.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        values = values[::-1]
    return values[:, ::-1] if orientation in (2, 3, 6, 7) else values


def _is_beyond_a_byte(largest: Any) -> bool:
    return isinstance(largest, int) and largest > 255


def _deep(dtype: str) -> str:
    return (
        f"holds {dtype}, and the network sees 8-bit RGB; make 8-bit copies, with the range of the data from black to "
        "white, or train on such images"
    )
