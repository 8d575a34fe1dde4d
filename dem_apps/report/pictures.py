"""Pictures and videos of runs as data URIs, large pictures made smaller."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from dem_apps.report.runs import Run
from dem_apps.runtime.files import regular_file
from dem_apps.runtime.images import opened_image
from dem_apps.runtime.metrics_info import View

#: Pixels of a picture's longer side.
_WIDEST = 512
#: Bytes of a video that stands in a page.
_LARGEST_VIDEO = 5_000_000


@dataclass(frozen=True)
class Picture:
    """One view of an image, by a run, or a video, as it stands in the page."""

    caption: str  #: the run's name
    uri: str
    image: str = ""
    view: View = View("")


#: By image: each view with its pictures, one a run.
Gallery = list[tuple[str, list[tuple[View, list[Picture]]]]]


def find_pictures(run: Run) -> list[Picture]:
    """Return the pictures in ``entropy_maps/IMAGE/VIEW.png``; an InputError for one that is damaged."""
    pictures = []
    for image in sorted((run.path / "entropy_maps").glob("*/")):
        for view in run.info.views:
            file = image / f"{view.name}.png"
            if file.exists():
                uri = picture_uri(file, view.classes, run.path)
                pictures.append(Picture(run.name, uri, image.name, view))
    return pictures


def gallery(pictures: Sequence[Picture]) -> Gallery:
    """Sort pictures by image and view; one that is the same in every run stands once."""
    images: dict[str, dict[View, list[Picture]]] = {}
    for picture in pictures:
        images.setdefault(picture.image, {}).setdefault(picture.view, []).append(picture)
    for views in images.values():
        for view, shots in views.items():
            if len(shots) > 1 and len({shot.uri for shot in shots}) == 1:
                views[view] = [replace(shots[0], caption=f"the same in {len(shots)} runs")]
    return [(name, list(views.items())) for name, views in images.items()]


def embed_videos(run: Run) -> list[Picture]:
    """Return the recordings in ``videos/`` that are small enough for a page."""
    videos = []
    for file in sorted((run.path / "videos").glob("*.gif")):
        if regular_file(file, run.path).stat().st_size <= _LARGEST_VIDEO:
            videos.append(Picture(file.name, data_uri("image/gif", file.read_bytes())))
    return videos


def picture_uri(file: Path, crisp: bool, inside: Path | None = None) -> str:
    """Return a PNG as a data URI of at most 512 pixels a side.

    Args:
        file: the picture.
        crisp: its colours are classes, between which there is no colour.
        inside: the folder that links may not lead out of.

    Raises:
        InputError: the picture is damaged.
    """
    with opened_image(file, ("PNG",), inside) as opened:
        return image_uri(opened.convert("RGB"), crisp)


def image_uri(image: Image.Image, crisp: bool) -> str:
    """Return a picture, which becomes smaller in place, as :func:`picture_uri` does."""
    image.thumbnail((_WIDEST, _WIDEST), Image.Resampling.NEAREST if crisp else Image.Resampling.BOX)
    content = io.BytesIO()
    image.save(content, "WEBP", lossless=crisp, quality=90)
    return data_uri("image/webp", content.getvalue())


def data_uri(kind: str, content: bytes) -> str:
    """Return a file's content as a URI; ``kind`` is its media type."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
