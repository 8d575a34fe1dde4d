"""Image files by Pillow, in named formats: others, such as PostScript, would start programs."""

from __future__ import annotations

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
Image.MAX_IMAGE_PIXELS = MOST_PIXELS  # Pillow's own limit is a third of that


@contextmanager
def opened_image(
    file: Path, formats: tuple[str, ...] = FORMATS, inside: Path | None = None
) -> Iterator[Image.Image]:
    """Open an image file, within which errors about it become one sentence.

    Args:
        file: the file.
        formats: those that it may have, by Pillow's names.
        inside: the folder that it has to lie in, with links followed.

    Yields:
        The image, not decoded yet.

    Raises:
        InputError: it is missing, damaged, too large, or of another format.
    """
    with damage_named(file, formats), regular_file(file, inside).open("rb") as stream:
        yield picture_in(stream, formats)


@contextmanager
def damage_named(file: Path, formats: tuple[str, ...] = FORMATS) -> Iterator[None]:
    """Turn every error of a decoder, raised inside, into an InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # decoders raise nearly anything for a damaged file
        raise InputError(
            f"{file}: the image cannot be read; it is damaged, cut short, or in none of the formats "
            f"{', '.join(formats)} ({first_words(error)})"
        ) from error


def picture_in(stream: BinaryIO, formats: tuple[str, ...] = FORMATS) -> ImageFile.ImageFile:
    """Return the image in an open file, not decoded yet.

    Raises:
        InputError: the image has more than :data:`MOST_PIXELS`.
    """
    stream.seek(0)
    picture = Image.open(stream, formats=formats)
    # Pillow itself warns of these, and raises from twice as many
    if picture.width * picture.height > MOST_PIXELS:
        raise InputError(
            f"{stream.name}: the image has more than {MOST_PIXELS:,} pixels; make it smaller first"
        )
    return picture


def refuse_wrong_checksums(picture: Image.Image, stream: BinaryIO) -> None:
    """Raise Pillow's error for a PNG whose checksums are wrong, which decoding does not compare."""
    if picture.format == "PNG":
        picture_in(stream, ("PNG",)).verify()
