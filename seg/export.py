"""``python -m seg.export``: what one or several runs predict on any folder of images, and how sure they are.

Per image: prediction, overlay, entropy map and a panel of them at one fixed scale; per folder: two CSV tables. Several
runs get a folder each and a comparison, one row per run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import option, parse_config
from dem_apps.runtime.validate import check_settings
from seg.config import LEAST_TILE, OVERLAP_HELP, TILE_HELP

CHECKPOINTS = ("auto", "last", "selected", "best")
RAW_FORMATS = ("png16", "npz")


@dataclass(frozen=True)
class ExportConfig:
    """Write prediction, overlay and entropy map of every image in a folder."""

    run: list[str] = option(
        [], "run folder; several (--run A B) are compared side by side as well", value="RUN [RUN ...]",
        group="what is read and written", needed=True,
    )  # fmt: skip
    images: str = option("", "folder of images, searched with its subfolders, or one image", value="DIR", needed=True)
    out: str = option("", "folder to write to, new or empty", value="DIR", needed=True)
    checkpoint: str = option("auto", "auto: selected where there is one, else last", CHECKPOINTS, group="network")
    size: list[int] | str | None = option(
        "auto",
        "size that the network sees; run: its target size; null: the image's; auto: run, with --tile null",
        value="W,H",
    )
    tile: int | None = option(None, TILE_HELP, at_least=LEAST_TILE)
    tile_overlap: int | None = option(None, OVERLAP_HELP, at_least=0)
    batch_norm_after: str = option(
        "none", "images: batch norm statistics re-estimated on --images; none: the checkpoint's", ("none", "images")
    )
    device: str = option("auto", "cpu, cuda, or auto")
    raw: list[str] = option(
        [], "entropy as numbers as well: png16 (0 to 65535 is 0 to 1; --raw alone), npz (nats), or both", RAW_FORMATS,
        value="{png16,npz}", group="more pictures and numbers",
    )  # fmt: skip
    label_ids: bool = option(False, "predictions as label ids as well, as the class set's label images hold them")
    legend: bool = option(True, "list the predicted classes below each panel")


def export(config: ExportConfig) -> int:
    """Do what the command does; returns how many images could not be exported.

    Raises:
        InputError: a folder, run or flag that does not fit.
    """
    check_settings(config)
    from seg.inference.export_images import export_images

    return export_images(config)


def _gathered(arguments: Sequence[str]) -> list[str]:
    """``--run A B`` and ``--run A --run B`` as the one list that the parser takes; so for ``--raw``, alone png16."""
    lists: dict[str, list[str]] = {"--run": [], "--raw": []}
    rest: list[str] = []
    current: list[str] | None = None
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if argument.startswith("--"):
            current = lists.get(flag)
            if current is None:
                rest.append(argument)
            elif equals:
                current.append(value)
        else:
            (rest if current is None else current).append(argument)
    if "--raw" in arguments and not lists["--raw"]:
        lists["--raw"].append(RAW_FORMATS[0])
    return rest + [f"{flag}={json.dumps(values)}" for flag, values in lists.items() if values]


def main() -> None:
    """The command."""
    example = "python -m seg.export --run runs/entropy runs/adadem --images photos --out export"
    if export(parse_config(ExportConfig, "python -m seg.export", example, _gathered(sys.argv[1:]))):
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
