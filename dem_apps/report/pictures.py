"""Pictures and videos of runs as data URIs, made smaller until they fit into a page."""

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
#: Scales that are tried where the files as they are do not fit.
_SCALES = (1.0, 0.7, 0.5, 0.35)


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


def gallery(pictures: Sequence[Picture], budget: int) -> tuple[Gallery, int, list[str]]:
    """Pictures by image and view, the bytes that they take, and a sentence where they had to be made smaller."""
    names = list(dict.fromkeys(picture.image for picture in pictures))
    notes: list[str] = []
    while names:
        kept = [picture for picture in pictures if picture.image in names]
        for scale in (None, *_SCALES):
            if scale is None and sum(picture.file.stat().st_size for picture in kept) * 4 // 3 > budget:
                continue
            uris = {picture: _uri(picture, scale) for picture in kept}
            used = sum(map(len, uris.values()))
            if used <= budget:
                if scale is not None:
                    how = "compressed" if scale == 1 else f"shown at {scale:.0%} of their size"
                    notes.append(f"Pictures are {how}, to keep the page small.")
                return _by_image(uris, names), used, notes
        notes = [f"{len(names) - len(names) // 2} images do not fit into the page; they are in the run folders."]
        names = names[: len(names) // 2]
    return [], 0, notes


def embed_videos(run: Run, budget: int) -> list[Shown]:
    """The recordings in ``videos/`` that fit."""
    folder, shown = run.path / "videos", []
    for file in sorted(folder.iterdir()) if folder.is_dir() else []:
        kind = _VIDEOS.get(file.suffix)
        if kind is not None and file.stat().st_size * 4 // 3 < budget:
            shown.append(Shown(file.name, _data(kind, file.read_bytes())))
            budget -= len(shown[-1].uri)
    return shown


def _by_image(uris: dict[Picture, str], names: Sequence[str]) -> Gallery:
    images: dict[str, dict[View, list[Shown]]] = {name: {} for name in names}
    for picture, uri in uris.items():
        alt = f"{picture.view.name} of {picture.image}, {picture.run}"
        images[picture.image].setdefault(picture.view, []).append(Shown(picture.run, uri, alt))
    return [(name, list(views.items())) for name, views in images.items()]


def _uri(picture: Picture, scale: float | None) -> str:
    if scale is None:
        return _data("image/png", picture.file.read_bytes())
    with Image.open(picture.file) as opened:
        image = opened.convert("RGB")
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    content = io.BytesIO()
    if picture.view.classes:  # between two classes there is no colour
        image.resize(size, Image.Resampling.NEAREST).quantize(256).save(content, "PNG", optimize=True)
        return _data("image/png", content.getvalue())
    image.resize(size, Image.Resampling.BOX).save(content, "JPEG", quality=85)
    return _data("image/jpeg", content.getvalue())


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
