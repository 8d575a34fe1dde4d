"""Label maps of CVAT's format "Segmentation mask 1.1": masks in colours, beside a ``labelmap.txt`` that names these."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from seg.data.labels import ClassSet, Color, Ids, chosen_color
from seg.data.pixel_format import Mask

LABEL_MAP = "labelmap.txt"
MASKS = "SegmentationClass"
#: The label of pixels that no brush painted.
BACKGROUND = "background"
#: Folders above a label image in which its label map is looked for.
_ABOVE = 3


def label_map_of(label: Path) -> Path | None:
    """Return the label map in the folder of a label image, or in one of the next folders above."""
    places = (folder / LABEL_MAP for folder in list(label.parents)[:_ABOVE])
    return next(filter(Path.is_file, places), None)


def write_label_map(folder: Path, classes: ClassSet) -> None:
    """Write the label map with the colours of :func:`write_mask`."""
    rows = {BACKGROUND: (0, 0, 0)} | dict(zip(classes.names, _colors(classes), strict=True))
    lines = [f"{name}:{red},{green},{blue}::" for name, (red, green, blue) in rows.items()]
    text = "\n".join(["# label:color_rgb:parts:actions", *lines, ""])
    (folder / LABEL_MAP).write_text(text, encoding="utf-8")


def write_mask(folder: Path, image: Path, predicted: Ids, valid: Mask, classes: ClassSet) -> None:
    """Write the prediction of an image as a mask in colours, which CVAT finds by the image's path.

    Args:
        folder: where the label map is.
        image: the image's path below its own folder.
        predicted: train ids, (H, W).
        valid: where the image holds data; elsewhere the mask is black.
        classes: the classes of the train ids.
    """
    mask = np.asarray(_colors(classes), np.uint8)[predicted]
    if valid is not None:
        mask[~valid] = 0
    file = (folder / MASKS / image).with_suffix(".png")
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(mask).save(file)


def _colors(classes: ClassSet) -> list[Color]:
    """Return one colour for each class, none alike; black is for the background alone."""
    return [
        (0, 0, 0) if name == BACKGROUND else chosen_color(index + 1)
        for index, name in enumerate(classes.names)
    ]
