"""``python -m seg.labels``: an export of CVAT or Label Studio as label images, for ``--labels`` and for training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dem_apps.errors import InputError
from dem_apps.runtime.command import run_command
from dem_apps.runtime.files import new_folder
from dem_apps.runtime.setting_checks import check_paths
from dem_apps.runtime.settings import option, parse_config


@dataclass(frozen=True)
class LabelsConfig:
    """Write the annotations of CVAT or Label Studio as label images, one id per pixel."""

    annotations: str = option(
        "",
        "CVAT's export as Segmentation mask 1.1, a zip, or Label Studio's as JSON",
        value="FILE",
        needed=True,
        exists=True,
    )
    classes: str | None = option(
        None,
        "those of the network: YAML file of names and ids, names such as background,crop,weed, or their number; "
        "default: Cityscapes' 19",
        value="FILE",
    )
    out: str = option("", "folder to write to, new or empty", value="DIR", needed=True)


def write_labels(config: LabelsConfig) -> int:
    """Do what the command does; returns the number of label images. Raises InputError: a file that does not fit."""
    from PIL import Image

    from seg.data.annotation import BACKGROUND, annotated
    from seg.data.labels import load_classes, named_classes

    classes, number = config.classes, 0
    numbered = classes is not None and classes.isdecimal() and 2 <= int(classes) < 256
    known = named_classes(int(str(classes))) if numbered else load_classes(classes)
    with new_folder(Path(config.out), "--out") as folder:
        for name, ids in annotated(Path(config.annotations), known):
            place = (folder / name).with_name(f"{name.name}.png")
            if place.exists():
                raise InputError(
                    f"--annotations: {config.annotations} has two images {name}; rename one in its task"
                )
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(ids).save(place)
            number += 1
        if not number:
            raise InputError(f"--annotations: {config.annotations} has no annotated image")
    unlabelled = f"are {BACKGROUND}" if BACKGROUND in known.names else "count nowhere"
    print(
        f"{number} label images in {config.out}, by the paths of their images; pixels without a label {unlabelled}"
    )
    return number


def main() -> None:
    """The command."""
    example = (
        "python -m seg.labels --annotations export.zip --classes background,crop,weed --out labels"
    )
    config = parse_config(LabelsConfig, "python -m seg.labels", example)
    check_paths(config)
    write_labels(config)


if __name__ == "__main__":
    run_command(main)
