"""Pictures and videos of runs as data URIs, made smaller until the page stays below its limit.

A run describes its pictures (:class:`dem_apps.runtime.metrics_info.Pictures`) and shows them in one of two ways.
``FOLDER/NAME/VIEW.png`` is one picture a file. ``FOLDER/NAME.png`` alone, as of older runs, is a panel of the first
three views side by side with white gaps between them and a colour bar behind them, which is cut along those gaps.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dem_apps.errors import InputError
from dem_apps.runtime.images import opened_image
from dem_apps.runtime.metrics_info import Pictures, View
from dem_apps.runtime.run_reader import Run

#: Of a file that could not be cut.
PANEL = View("panel", "pictures of {image} by {run} side by side")
_VIDEOS = {".gif": "image/gif", ".mp4": "video/mp4", ".webm": "video/webm"}
#: Scale and JPEG quality (None: PNG, without loss), from the best to the smallest.
_LEVELS = ((1.0, None), (1.0, 88), (0.7, 82), (0.5, 75), (0.35, 65))

#: Files this many times larger than the room for them do not fit as PNG, however well they are packed again.
_HOPELESS = 2

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Picture:
    """One view of one image by one run.

    Args:
        run: the run's name.
        name: the image's.
        view: which of the run's views, or :data:`PANEL`.
        file: what it is read from.
        box: left, upper, right, lower of the part of the file, or None for all of it.
    """

    run: str
    name: str
    view: View
    file: Path
    box: Box | None = None


@dataclass(frozen=True)
class Embedded:
    """A picture as it stands in the page.

    Args:
        picture: what it shows.
        uri: the data URI.
        width: pixels.
        height: pixels.
    """

    picture: Picture
    uri: str
    width: int
    height: int


@dataclass(frozen=True)
class Video:
    """A recorded episode: its file's name, its data URI, and whether it is a moving image and no film."""

    name: str
    uri: str
    is_image: bool


def find_pictures(run: Run, about: Pictures) -> tuple[list[Picture], list[str]]:
    """All pictures of a run by image and view, and a sentence for what is missing or cannot be read."""
    folder = run.path / about.folder
    tiles = [
        Picture(run.name, entry.name, view, entry / f"{view.name}.png")
        for entry in _entries(folder)
        for view in about.views
        if (entry / f"{view.name}.png").is_file()
    ]
    pictures, broken = [], []
    for tile in tiles:
        if _readable(tile.file):
            pictures.append(tile)
        else:
            broken.append(tile.file)
    whole = {picture.name for picture in pictures}
    for entry in _entries(folder):
        if entry.suffix != ".png" or entry.stem in whole or not entry.is_file():
            continue
        if _readable(entry):
            pictures += _of_panel(run.name, entry, about.views)
        else:
            broken.append(entry)
    sentences = [f"{file.relative_to(run.path)} is no picture that can be read." for file in broken]
    pictures.sort(key=lambda picture: picture.name)
    absent = _absent_views(pictures, about.views, {file.stem for file in broken})
    return pictures, [*sentences, *(f"{about.folder}/ has no {sentence}" for sentence in absent)]


def embed(pictures: Sequence[Picture], budget: int) -> tuple[list[Embedded], str | None]:
    """Pictures as data URIs that have ``budget`` bytes together, and a sentence if that cost anything.

    They are PNG if that fits. Otherwise all get smaller, and at the smallest the last images are left out.
    """
    if not pictures:
        return [], None
    for scale, quality in _LEVELS:
        if quality is None and _bytes_on_disk(pictures) > _HOPELESS * budget:
            continue
        encoded = _encoded(pictures, scale, quality, budget)
        if encoded is not None:
            return encoded, _smaller(scale, quality)
    names = list(dict.fromkeys(picture.name for picture in pictures))
    while len(names) > 1:
        names = names[: len(names) // 2]
        kept = [picture for picture in pictures if picture.name in names]
        encoded = _encoded(kept, *_LEVELS[-1], budget)
        if encoded is not None:
            left_out = len({picture.name for picture in pictures}) - len(names)
            return (
                encoded,
                f"{_smaller(*_LEVELS[-1])} {left_out} further images did not fit and are in the run folders.",
            )
    return [], "The pictures do not fit into the page; they are in the run folders."


def embed_videos(run: Run, budget: int) -> tuple[list[Video], int, list[str]]:
    """The recorded episodes of a run, how many bytes they take, and a sentence for each that does not fit."""
    videos, used, left_out = [], 0, []
    for file in _entries(run.path / "videos"):
        kind = _VIDEOS.get(file.suffix.lower())
        if kind is None or not file.is_file():
            continue
        if not _starts_right(file, kind):
            left_out.append(f"videos/{file.name} is no {file.suffix[1:].upper()} file that can be read.")
        elif used + file.stat().st_size * 4 // 3 > budget:
            left_out.append(f"videos/{file.name} does not fit into the page; it is in the run folder.")
        else:
            uri = _uri(kind, file.read_bytes())
            used += len(uri)
            videos.append(Video(file.name, uri, kind.startswith("image/")))
    return videos, used, left_out


def panel_boxes(pixels: NDArray[np.uint8]) -> list[Box] | None:
    """Where image, prediction and entropy lie in a panel, or None if it is none.

    Three parts of equal width between columns that are white from top to bottom, then the colour bar. The bar has no
    title above it, so its rows are those of the pictures.

    Args:
        pixels: (H, W, 3) uint8.
    """
    ink: NDArray[np.bool_] = np.any(pixels < 250, axis=2)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], ink.any(axis=0), [False]]).astype(np.int8)))
    parts = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    if len(parts) < 4 or len({right - left for left, right in parts[:3]}) != 1:
        return None
    rows = np.flatnonzero(ink[:, slice(*parts[3])].any(axis=1))
    upper, lower = int(rows[0]), int(rows[-1]) + 1
    if parts[0][1] - parts[0][0] < 16 or lower - upper < 16:
        return None
    return [(left, upper, right, lower) for left, right in parts[:3]]


def _entries(folder: Path) -> Iterable[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else ()


def _readable(file: Path) -> bool:
    try:
        _open(file)
    except InputError:
        return False
    return True


def _absent_views(pictures: Sequence[Picture], views: Sequence[View], broken: set[str]) -> list[str]:
    """What is said of each view that images lack; those of ``broken`` files have a sentence already."""
    by_image: dict[str, set[str]] = {}
    for picture in pictures:
        by_image.setdefault(picture.name, set()).add(picture.view.name)
    sentences = []
    for view in (view.name for view in views if not view.optional):
        lacking = [name for name, found in by_image.items() if view not in found and PANEL.name not in found]
        if lacking and view not in broken:
            which = "any image" if len(lacking) == len(by_image) else ", ".join(lacking[:3])
            more = f" and {len(lacking) - 3} more" if which != "any image" and len(lacking) > 3 else ""
            sentences.append(f"{view} of {which}{more}.")
    return sentences


def _bytes_on_disk(pictures: Sequence[Picture]) -> int:
    return sum(file.stat().st_size for file in {picture.file for picture in pictures})


def _of_panel(run: str, file: Path, views: Sequence[View]) -> list[Picture]:
    boxes = panel_boxes(np.asarray(_open(file)))
    if boxes is None:
        return [Picture(run, file.stem, PANEL, file)]
    return [Picture(run, file.stem, view, file, box) for view, box in zip(views, boxes, strict=False)]


def _open(file: Path) -> Image.Image:
    with opened_image(file, ("PNG",)) as picture:
        return picture.convert("RGB")


def _encoded(pictures: Sequence[Picture], scale: float, quality: int | None, budget: int) -> list[Embedded] | None:
    """None as soon as they need more than ``budget``; the same content counts once, as the page holds it once."""
    embedded, seen, used = [], set(), 0
    for picture in pictures:
        content, kind, size = _one(picture, scale, quality)
        if content not in seen:
            seen.add(content)
            used += len(content) * 4 // 3 + 100
        if used > budget:
            return None
        embedded.append(Embedded(picture, _uri(kind, content), *size))
    return embedded


def _one(picture: Picture, scale: float, quality: int | None) -> tuple[bytes, str, tuple[int, int]]:
    image = _open(picture.file).crop(picture.box)
    classes = picture.view.classes
    if scale != 1.0:
        size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
        # a class has no colour between two others
        image = image.resize(size, Image.Resampling.NEAREST if classes else Image.Resampling.BOX)
    content = io.BytesIO()
    if classes and image.getcolors(256) is not None:
        image.convert("P", palette=Image.Palette.ADAPTIVE, colors=256).save(content, "PNG", optimize=True)
        return content.getvalue(), "image/png", image.size
    if quality is None:
        image.save(content, "PNG", optimize=True)
        return content.getvalue(), "image/png", image.size
    image.save(content, "JPEG", quality=quality, optimize=True)
    return content.getvalue(), "image/jpeg", image.size


def _smaller(scale: float, quality: int | None) -> str | None:
    if quality is None:
        return None
    size = f"{scale:.0%} of their size, " if scale != 1.0 else ""
    return f"To keep the page small, pictures are shown at {size}JPEG quality {quality}."


def _starts_right(file: Path, kind: str) -> bool:
    with open(file, "rb") as opened:
        start = opened.read(12)
    if kind == "image/gif":
        return start[:6] in (b"GIF87a", b"GIF89a")
    return start[4:8] == b"ftyp" if kind == "video/mp4" else start[:4] == b"\x1a\x45\xdf\xa3"


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
