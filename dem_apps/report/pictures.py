"""Pictures and videos of runs as data URIs, large pictures made smaller."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from dem_apps.report.runs import Run
from dem_apps.runtime.metrics_info import View

_VIDEOS = {".gif": "image/gif", ".mp4": "video/mp4"}
#: Bytes of a picture that stands in a page as it is, and pixels of the longer side of any other.
_SMALL, _WIDEST = 30_000, 512
#: Bytes of a video that stands in a page.
_LARGEST_VIDEO = 5_000_000


@dataclass(frozen=True)
class Picture:
    """One view of an image, by a run: what it is read from."""

    image: str
    view: View
    run: str
    file: Path


@dataclass(frozen=True)
class Shown:
    """A picture, or a video, as it stands in the page."""

    caption: str
    uri: str
    alt: str = ""


#: By image: each view with its pictures, one a run.
Gallery = list[tuple[str, list[tuple[View, list[Shown]]]]]


def find_pictures(run: Run) -> list[Picture]:
    """The pictures in ``entropy_maps/IMAGE/VIEW.png``."""
    folder = run.path / "entropy_maps"
    images = sorted(entry for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    found = [
        Picture(image.name, view, run.name, image / f"{view.name}.png") for image in images for view in run.info.views
    ]
    return [picture for picture in found if picture.file.is_file()]


def gallery(pictures: Sequence[Picture]) -> Gallery:
    """Pictures by image and view."""
    images: dict[str, dict[View, list[Shown]]] = {}
    for picture in pictures:
        alt = f"{picture.view.name} of {picture.image}, {picture.run}"
        shown = Shown(picture.run, _uri(picture), alt)
        images.setdefault(picture.image, {}).setdefault(picture.view, []).append(shown)
    return [(name, list(views.items())) for name, views in images.items()]


def embed_videos(run: Run) -> list[Shown]:
    """The recordings in ``videos/`` that are small enough."""
    folder = run.path / "videos"
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [
        Shown(file.name, _data(_VIDEOS[file.suffix], file.read_bytes()))
        for file in files
        if file.suffix in _VIDEOS and file.stat().st_size < _LARGEST_VIDEO
    ]


def _uri(picture: Picture) -> str:
    """The file as it is where it is small, else at most ``_WIDEST`` wide."""
    if picture.file.stat().st_size <= _SMALL:
        return _data("image/png", picture.file.read_bytes())
    with Image.open(picture.file) as opened:
        image = opened.convert("RGB")
    content = io.BytesIO()
    if picture.view.classes:  # between two classes there is no colour
        image.thumbnail((_WIDEST, _WIDEST), Image.Resampling.NEAREST)
        image.quantize(256).save(content, "PNG", optimize=True)
        return _data("image/png", content.getvalue())
    image.thumbnail((_WIDEST, _WIDEST), Image.Resampling.BOX)
    image.save(content, "JPEG", quality=85)
    return _data("image/jpeg", content.getvalue())


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
