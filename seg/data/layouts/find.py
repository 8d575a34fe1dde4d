"""Finds the layout of a folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dem_apps.errors import InputError
from seg.data.labels import ClassSet
from seg.data.layouts import LAYOUTS
from seg.data.layouts.gta5 import GTA5

#: The layout is found by looking at the folder.
AUTO = "auto"


def fitting_layouts(root: Path, split: str) -> list[str]:
    """The layouts that find images of a split below a folder."""
    found = []
    for name, layout in LAYOUTS.items():
        with suppress(InputError):
            found += [name] if layout.pairs(root, split) else []
    return found


def found_layout(root: Path, split: str, classes: ClassSet, flag: str) -> str:
    """The layout of a folder for labels of ``classes``; ``flag`` names the layout in errors.

    GTA5 has the folders of layout ``folders``, and is told by names of five digits, where its ids are those that the
    classes have anyway. CamVid divided by its light has to be named.
    """
    found = [name for name in fitting_layouts(root, split) if not name.startswith("camvid-")]
    if "gta5" in found and "folders" in found:
        stems = [image.stem for image, _ in GTA5.pairs(root, split)]
        published = all(len(stem) == 5 and stem.isdecimal() for stem in stems)
        same = (GTA5.ids or {}).items() >= set(zip(classes.ids, classes.names, strict=True)) and not classes.by_color
        found.remove("folders" if published and same else "gta5")
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{root}: looks like the layouts {' and '.join(found)}; name one by {flag}")
    if not root.is_dir():
        raise InputError(f"{root}: no such folder; it should be the root of a data set")
    raise InputError(
        f"{root}: no layout fits, for there is neither images/ (with labels/ beside it: layout folders, gta5), nor "
        f"leftImg8bit/ (cityscapes), nor RGB/ (synthia), nor train/ with {split} images (camvid); put images below "
        f"{root / 'images'}, or name the layout by {flag}"
    )
