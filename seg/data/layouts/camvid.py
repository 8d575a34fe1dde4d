"""CamVid (Brostow et al., ECCV 2008) as SegNet's authors published it: ``train/…`` and ``trainannot/…``, 480x360.

Three layouts read the same folder. ``camvid`` has the official training and test images;
``camvid-day`` and ``camvid-dusk`` divide all of it by the light: the drive 0001TP was filmed at
dusk, the others by day.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from dem_apps.errors import InputError
from seg.data.layouts.layout import Layout, Pairs, listed

#: Names of the classes, with Cityscapes' name where the class is the same.
#: A sign symbol may be a traffic light, a bicyclist has a bicycle.
_NAMES = "sky, building, pole, road, sidewalk, vegetation, sign symbol, fence, car, person, bicyclist, void"
_IDS = dict(enumerate(_NAMES.split(", ")))

_DUSK = "0001TP"
_OFFICIAL = {"train": "train", "val": "test"}  # published scores are of the test images


def _pairs(root: Path, split: str, begin: str = "") -> Pairs:
    return _with_labels(root, listed(root, _OFFICIAL[split], f"{begin}*.png"))


def _day_pairs(root: Path, split: str) -> Pairs:
    """Return all day frames, for both splits.

    A source needs no validation images.
    """
    files = [file for folder in ("test", "train", "val") for file in listed(root, folder, "*.png")]
    return _with_labels(root, [file for file in files if not file.name.startswith(_DUSK)])


def _with_labels(root: Path, images: list[Path]) -> Pairs:
    if not (root / "trainannot").is_dir():
        raise InputError(f"{root}: has no folder trainannot")
    return [(image, root / f"{image.parent.name}annot" / image.name) for image in images]


CAMVID = Layout(_pairs, _IDS)
CAMVID_DAY = Layout(_day_pairs, _IDS)
CAMVID_DUSK = Layout(partial(_pairs, begin=_DUSK), _IDS)
