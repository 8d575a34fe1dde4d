"""Pictures and videos of runs as data URIs, large pictures made smaller."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    images = sorted((run.path / "entropy_maps").glob("*/"))
    files = [(view, image / f"{view.name}.png") for image in images for view in run.info.views]
    return [Picture(file.parent.name, view, run.name, file) for view, file in files if file.is_file()]


def gallery(pictures: Sequence[Picture]) -> Gallery:
    """Pictures by image and view; one that is the same in every run stands once."""
    images: dict[str, dict[View, list[Shown]]] = {}
    for picture in pictures:
        alt = f"{picture.view.name} of {picture.image}, {picture.run}"
        shown = Shown(picture.run, _uri(picture), alt)
        images.setdefault(picture.image, {}).setdefault(picture.view, []).append(shown)
    for views in images.values():
        for view, shots in views.items():
            if len(shots) > 1 and len({shot.uri for shot in shots}) == 1:
                views[view] = [replace(shots[0], caption=", ".join(shot.caption for shot in shots))]
    return [(name, list(views.items())) for name, views in images.items()]


def embed_videos(run: Run) -> list[Shown]:
    """The recordings in ``videos/`` that are small enough."""
    files = [file for file in sorted((run.path / "videos").glob("*")) if file.suffix in _VIDEOS]
    small = [file for file in files if file.stat().st_size < _LARGEST_VIDEO]
    return [Shown(file.name, _data(_VIDEOS[file.suffix], file.read_bytes())) for file in small]


def _uri(picture: Picture) -> str:
    """The file as it is where it is small, else at most ``_WIDEST`` wide."""
    if picture.file.stat().st_size <= _SMALL:
        return _data("image/png", picture.file.read_bytes())
    with Image.open(picture.file) as opened:
        image = opened.convert("RGB")
    content = io.BytesIO()
    crisp = picture.view.classes  # between two classes there is no colour
    image.thumbnail((_WIDEST, _WIDEST), Image.Resampling.NEAREST if crisp else Image.Resampling.BOX)
    (image.quantize(256) if crisp else image).save(content, "PNG" if crisp else "JPEG", optimize=crisp, quality=85)
    return _data("image/png" if crisp else "image/jpeg", content.getvalue())


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
