"""Pictures and videos of runs as data URIs, large pictures made smaller."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dem_apps.report.runs import Run, named_in
from dem_apps.runtime.files import regular_file
from dem_apps.runtime.images import opened_image
from dem_apps.runtime.metrics_info import View

#: Bytes of a picture that stands in a page as it is, and pixels of the longer side of any other.
_SMALL, _WIDEST = 30_000, 512
#: Bytes of a video that stands in a page.
_LARGEST_VIDEO = 5_000_000


@dataclass(frozen=True)
class Picture:
    """One view of an image, by a run, or a video, as it stands in the page."""

    caption: str  #: the run's name
    uri: str
    image: str = ""
    view: View = View("")


@dataclass(frozen=True)
class Comparison:
    """One image by several runs: views that all runs share, then a line of pictures for each view that differs."""

    image: str  #: its name
    shared: list[Picture]
    lines: list[tuple[View, list[Picture]]]


#: By image: each view with its pictures, one a run.
Gallery = list[tuple[str, list[tuple[View, list[Picture]]]]]


def find_pictures(run: Run) -> list[Picture]:
    """The pictures in ``entropy_maps/IMAGE/VIEW.png``; one that is damaged is named as missing."""
    found = []
    for image in sorted((run.path / "entropy_maps").glob("*/")):
        for view in run.info.views:
            file = image / f"{view.name}.png"
            if os.path.lexists(file):
                with named_in(run.missing):
                    found.append(
                        Picture(
                            run.name, picture_uri(file, view.classes, run.path), image.name, view
                        )
                    )
    return found


def gallery(pictures: Sequence[Picture]) -> Gallery:
    """Pictures by image and view; one that is the same in every run stands once."""
    images: dict[str, dict[View, list[Picture]]] = {}
    for picture in pictures:
        images.setdefault(picture.image, {}).setdefault(picture.view, []).append(picture)
    for views in images.values():
        for view, shots in views.items():
            if len(shots) > 1 and len({shot.uri for shot in shots}) == 1:
                views[view] = [replace(shots[0], caption=", ".join(shot.caption for shot in shots))]
    return [(name, list(views.items())) for name, views in images.items()]


def compared_pictures(pictures: Sequence[Picture]) -> Comparison | None:
    """The first image that several runs have, in the views that a page shows unfolded, and its label."""
    for image, views in gallery(pictures):
        shared = [
            shots[0]
            for view, shots in views
            if len(shots) == 1 and (view.main or view.name == "label")
        ]
        lines = [(view, shots) for view, shots in views if len(shots) > 1 and view.main]
        if lines:
            return Comparison(image, shared, lines)
    return None


def embed_videos(run: Run) -> list[Picture]:
    """The recordings in ``videos/`` that are small enough; another one is named as missing."""
    found = []
    for file in sorted((run.path / "videos").glob("*.gif")):
        with named_in(run.missing):
            content = regular_file(file, run.path, _LARGEST_VIDEO).read_bytes()
            found.append(Picture(file.name, _data("image/gif", content)))
    return found


def picture_uri(file: Path, crisp: bool, inside: Path | None = None) -> str:
    """A PNG as a data URI, reduced where it is large; ``crisp`` is of classes, between which there is no colour."""
    with opened_image(file, ("PNG",), inside) as opened:
        opened.load()
        if file.stat().st_size <= _SMALL:
            return _data("image/png", file.read_bytes())
        image, content = opened.convert("RGB"), io.BytesIO()
        image.thumbnail(
            (_WIDEST, _WIDEST), Image.Resampling.NEAREST if crisp else Image.Resampling.BOX
        )
        (image.quantize(256) if crisp else image).save(
            content, "PNG" if crisp else "JPEG", optimize=crisp, quality=85
        )
        return _data("image/png" if crisp else "image/jpeg", content.getvalue())


def class_map_uri(classes: NDArray[np.uint8], colours: Sequence[tuple[int, int, int]]) -> str:
    """(H, W) ids as a PNG of their colours."""
    image, content = Image.fromarray(classes).convert("P"), io.BytesIO()
    image.putpalette([value for colour in colours for value in colour])
    image.save(content, "PNG", optimize=True)
    return _data("image/png", content.getvalue())


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
