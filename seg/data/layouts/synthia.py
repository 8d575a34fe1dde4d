"""SYNTHIA-RAND-CITYSCAPES (Ros et al., CVPR 2016), with ``RGB/N.png`` and ``GT/LABELS/N.png``.

All of it is for training.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dem_apps.errors import InputError
from seg.data.layouts.layout import Layout, Pairs, listed

if TYPE_CHECKING:
    from seg.data.labels import Ids

#: Names in the data set's README, with Cityscapes' name where there is such a class.
#: Lane markings are no class of Cityscapes; ADVENT and its successors ignore them.
_NAMES = (
    "unlabeled, sky, building, road, sidewalk, fence, vegetation, pole, car, traffic sign, person, bicycle, "
    "motorcycle, parking, road work, traffic light, terrain, rider, truck, bus, train, wall, lane marking"
)
_IDS = dict(enumerate(_NAMES.split(", ")))


def read_synthia_label(file: Path) -> Ids:
    """Read the ids of a SYNTHIA label, (H, W) uint8.

    They are the first channel of a 16-bit PNG; the second counts instances. Conversions to one
    channel hold an id per pixel.

    Raises:
        InputError: a damaged file, a picture in 8 bits, or an id above 255.
    """
    import cv2  # which a list of layouts does without

    from seg.data.read_images import open_image
    from seg.data.read_labels import read_index_image

    with open_image(file, ("PNG",)) as image:
        image.refuse_damaged(thoroughly=True)  # OpenCV gives no reason for a damaged file
    if image.header.bands == 1:
        return read_index_image(file)
    if image.header.dtype != "uint16":
        raise InputError(
            f"{file}: a SYNTHIA label has its class in the first of several 16-bit channels, and this is a picture in "
            "8 bits; it is read with a file for --classes that has labels: colors and a name and a color for each class"
        )
    # Pillow keeps the upper 8 of 16 bits, where ids are 0
    ids = np.asarray(cv2.imread(str(file), cv2.IMREAD_UNCHANGED))[..., 2]
    if ids.max() > 255:
        raise InputError(
            f"{file}: label id {ids.max()} is not in the table, which has 0 to {max(_IDS)}"
        )
    return ids.astype(np.uint8)


def _pairs(root: Path, split: str) -> Pairs:
    labels = root / "GT" / "LABELS"
    return [(image, labels / image.name) for image in listed(root, "RGB", "*.png")]


SYNTHIA = Layout(_pairs, _IDS, read_synthia_label)
