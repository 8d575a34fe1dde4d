"""Layouts of known data sets. One file each says where images and labels lie and what ids mean.

A new layout is a file and an entry here: docs/howto/add_a_layout.md. The table needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from dem_apps.errors import InputError

if TYPE_CHECKING:
    from seg.data.labels import ClassSet
    from seg.data.layouts.layout import Layout

LAYOUTS = {
    "gta5": "seg.data.layouts.gta5:GTA5",
    "cityscapes": "seg.data.layouts.cityscapes:CITYSCAPES",
    "synthia": "seg.data.layouts.synthia:SYNTHIA",
    "camvid": "seg.data.layouts.camvid:CAMVID",
    "camvid-day": "seg.data.layouts.camvid:CAMVID_DAY",
    "camvid-dusk": "seg.data.layouts.camvid:CAMVID_DUSK",
    "folders": "seg.data.layouts.folders:FOLDERS",
}
#: Name of the layout that is found by a look at the folder.
AUTO = "auto"
#: Most entries of a root that a hint looks into.
_MOST_FOLDERS = 100


def named_layout(name: str) -> Layout:
    """Return the layout of this name."""
    layout: Layout = resolve_name(LAYOUTS[name])
    return layout


def fitting_layouts(root: Path, split: str, names: Iterable[str] = LAYOUTS) -> list[str]:
    """Return those of the layouts that find images of a split below a folder."""
    fitting = []
    for name in names:
        with suppress(InputError):
            if named_layout(name).pairs(root, split):
                fitting.append(name)
    return fitting


def near_root(root: Path, split: str, names: Iterable[str] = LAYOUTS) -> Path | None:
    """Return the folder above or one directly below where a layout finds images, or None."""
    if not root.is_dir():
        return None
    below = (each for each in sorted(root.iterdir())[:_MOST_FOLDERS] if each.is_dir())
    return next(
        (each for each in (root.parent, *below) if fitting_layouts(each, split, names)), None
    )


def found_layout(root: Path, split: str, classes: ClassSet, flag: str) -> str:
    """Return the layout of a folder for labels of ``classes``.

    GTA5 has the folders of layout ``folders``. It is told by names of five digits, where its ids
    are the ids that the classes have anyway. CamVid is told by its folder ``trainannot``, and has to
    be named where it is divided by its light.

    Raises:
        InputError: no layout fits, or several do; ``flag`` names the layout in the error.
    """
    # a root without validation images has a layout, whose own error names the folder that is missing
    fits = fitting_layouts(root, split) or fitting_layouts(root, "train")
    fitting = [name for name in fits if not name.startswith("camvid-")]
    if {"gta5", "folders"} <= {*fitting}:
        fitting.remove("folders" if _is_gta5(root, split, classes) else "gta5")
    if {"camvid", "folders"} <= {*fitting}:
        fitting.remove("folders")
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise InputError(
            f"{root}: looks like the layouts {' and '.join(fitting)}; name one by {flag}"
        )
    near = near_root(root, split)
    hint = f"; did you mean {near}?" if near else ""
    raise InputError(
        f"{root}: no layout fits, for there are no images in images/, images/train/ or train/images/ (folders), "
        f"images/ (gta5), leftImg8bit/train/CITY/ (cityscapes), RGB/ (synthia) or train/ (camvid); put images below "
        f"{root / 'images'}, or name the layout by {flag}{hint}"
    )


def _is_gta5(root: Path, split: str, classes: ClassSet) -> bool:
    gta5 = named_layout("gta5")
    pairs = gta5.pairs(root, split)
    named = all(len(image.stem) == 5 and image.stem.isdecimal() for image, _ in pairs)
    if classes.by_color or not named or not any(label.is_file() for _, label in pairs):
        return False
    return classes.numbering.items() <= (gta5.ids or {}).items()
