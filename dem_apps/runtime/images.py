"""Image files by Pillow, in named formats: others, such as PostScript, would start programs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from PIL import Image, ImageFile

from dem_apps.errors import InputError, first_words
from dem_apps.runtime.files import regular_file

#: The formats of photos, labels and our own pictures.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "PPM", "GIF")
#: Most pixels of an image, in every format.
MOST_PIXELS = 1 << 28
_OPENING = threading.Lock()


@contextmanager
def opened_image(
    file: Path, formats: tuple[str, ...] = FORMATS, inside: Path | None = None
) -> Iterator[Image.Image]:
    """The image of a :func:`regular_file` of one of Pillow's ``formats``, not decoded yet; an InputError if damaged."""
    with damage_named(file, formats), regular_file(file, inside).open("rb") as stream:
        picture = picture_in(stream, formats)
        yield picture
        if not picture.tile:  # it was decoded
            refuse_wrong_checksums(picture, stream)


@contextmanager
def damage_named(file: Path, formats: tuple[str, ...] = FORMATS) -> Iterator[None]:
    """Within, every error of a decoder is an InputError that names the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            yield
    except InputError:
        raise
    except Exception as error:  # decoders raise nearly anything for a damaged file
        raise InputError(
            f"{file}: the image cannot be read, it is damaged or cut short, or in none of {', '.join(formats)} "
            f"({first_words(error)})"
        ) from error


def picture_in(stream: BinaryIO, formats: tuple[str, ...] = FORMATS) -> ImageFile.ImageFile:
    """The image in an open file, not decoded yet, of :data:`MOST_PIXELS` at most."""
    stream.seek(0)
    with _OPENING:
        # Pillow's own limit is a third of ours
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            picture = Image.open(stream, formats=formats)
        finally:
            Image.MAX_IMAGE_PIXELS = limit
    if picture.width * picture.height > MOST_PIXELS:
        raise InputError(f"{stream.name}: more than {MOST_PIXELS:,} pixels; make it smaller first")
    return picture


def refuse_wrong_checksums(picture: Image.Image, stream: BinaryIO) -> None:
    """Raise Pillow's error for a PNG whose checksums are wrong, which decoding does not compare."""
    if picture.format == "PNG":
        picture_in(stream, ("PNG",)).verify()
