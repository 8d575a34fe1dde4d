"""Label images that are pictures: every class has a colour, as masks from drawing programs have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dem_apps.errors import InputError
from dem_apps.runtime.images import opened_image
from seg.data.image_io import LOSSLESS, orientation_of, turned
from seg.data.labels import IGNORE_INDEX, ClassSet

Color = tuple[int, int, int]


def read_colored_ids(file: Path, classes: ClassSet) -> NDArray[np.uint8]:
    """(H, W) uint8 ids of the class set from a picture in its colours; ``IGNORE_INDEX`` for ignored colours.

    Raises:
        InputError: a file that cannot be read, or a colour that no class has.
    """
    codes = _codes(file)
    table = {_code(color): label_id for color, label_id in zip(classes.colors, classes.ids, strict=True)}
    table |= {_code(color): IGNORE_INDEX for color in classes.ignored_colors if _code(color) not in table}
    known = np.array(sorted(table), np.uint32)
    places = np.searchsorted(known, codes).clip(max=len(known) - 1)
    unknown = known[places] != codes
    if unknown.any():
        code, pixels = int(codes[unknown].min()), int(unknown.sum())
        raise InputError(
            f"{file}: the colour {list(_color(code))} is no class's and not ignored ({pixels:,} pixels have such)"
        )
    ids: NDArray[np.uint8] = np.array([table[code] for code in known.tolist()], np.uint8)[places]
    return ids


def label_colors(file: Path, most: int) -> list[Color]:
    """The colours of a picture, in order; ``most`` and one more where there are more.

    Raises:
        InputError: a file that cannot be read.
    """
    return [_color(int(code)) for code in np.unique(_codes(file))[: most + 1]]


def _codes(file: Path) -> NDArray[np.uint32]:
    """(H, W) red, green and blue as one number, upright as EXIF says; transparency is dropped."""
    with opened_image(file, LOSSLESS) as picture:
        orientation = orientation_of(picture)
        picture.load()
    rgb: NDArray[Any] = np.asarray(picture.convert("RGB")).astype(np.uint32)
    codes: NDArray[np.uint32] = turned(rgb[..., 0] << 16 | rgb[..., 1] << 8 | rgb[..., 2], orientation)
    return codes


def _code(color: Color) -> int:
    return color[0] << 16 | color[1] << 8 | color[2]


def _color(code: int) -> Color:
    return code >> 16, code >> 8 & 255, code & 255
