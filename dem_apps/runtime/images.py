"""Image files by Pillow, in named formats: others, such as PostScript, would start programs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with _header_read(regular_file(file, inside), formats) as picture:
                if picture.width * picture.height > MOST_PIXELS:
                    raise InputError(
                        f"{file}: more than {MOST_PIXELS:,} pixels; make it smaller first"
                    )
                yield picture
                # it was decoded, which compares no checksums
                if picture.format == "PNG" and not picture.tile:
                    with _header_read(file, ("PNG",)) as again:
                        again.verify()
    except InputError:
        raise
    except Exception as error:  # decoders raise nearly anything for a damaged file
        raise InputError(
            f"{file}: the image cannot be read, it is damaged or cut short, or in none of {', '.join(formats)} "
            f"({first_words(error)})"
        ) from error


def _header_read(file: Path, formats: tuple[str, ...]) -> ImageFile.ImageFile:
    """The image, not decoded, without Pillow's own limit of pixels, which is a third of :data:`MOST_PIXELS`."""
    with _OPENING:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(file, formats=formats)
        finally:
            Image.MAX_IMAGE_PIXELS = limit
