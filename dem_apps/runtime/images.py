"""Image files from anywhere: only formats that are pixels are opened, and none that unpacks into gigabytes.

Pillow goes by a file's content and not by its name. Among what it knows are PostScript, for which it starts
Ghostscript, and dozens of old formats that nobody has looked at for years; a PNG of a few bytes may claim billions of
pixels. So the formats are named, and an image beyond Pillow's own limit is refused before a pixel is unpacked.
"""

from __future__ import annotations

import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from dem_apps.errors import InputError
from dem_apps.runtime.safe_io import first_words

#: What photos, labels and our own pictures come in.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "PPM", "GIF")


@contextmanager
def opened_image(file: Path, formats: tuple[str, ...] = FORMATS) -> Iterator[Image.Image]:
    """The image of a file, whose pixels are decoded where the caller asks for them, within this context.

    Args:
        file: to open.
        formats: Pillow's names of those that it may have.

    Raises:
        InputError: no regular file, another format, damaged, cut short, or with more pixels than
            ``PIL.Image.MAX_IMAGE_PIXELS``.
    """
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a pipe would block
            raise InputError(f"{file}: is no file, so no image either")
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=formats) as picture:
                yield picture
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{file}: no such file") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"{file}: more than {Image.MAX_IMAGE_PIXELS:,} pixels; make it smaller first") from error
    except UnidentifiedImageError as error:
        raise InputError(
            f"{file}: the image cannot be read, it is damaged or cut short, or in none of {', '.join(formats)}"
        ) from error
    except MemoryError as error:
        raise InputError(f"{file}: the image does not fit into memory") from error
    except Exception as error:  # decoders raise nearly anything on a damaged file: struct.error, EOFError, KeyError, …
        raise InputError(
            f"{file}: the image cannot be read, it is damaged or cut short ({first_words(error)})"
        ) from error
