"""``python -m seg.export``: what a network or several runs predict on any folder of images, and how sure they are.

Per image: prediction, overlay, entropy map and a panel of them at one fixed scale; per folder: two CSV tables. Several
runs get a folder each and a comparison, one row per run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from dem_apps.runtime.command import run_command
from dem_apps.runtime.setting_checks import check_paths, check_settings
from dem_apps.runtime.settings import parse_config
from seg.inference.settings import RAW_FORMATS, ExportConfig


def export(config: ExportConfig) -> int:
    """Do what the command does; returns how many images could not be exported.

    Raises InputError: a folder, run or flag that does not fit.
    """
    check_settings(config)
    config.check()
    from seg.inference.export_images import export_images

    return export_images(config)


def _gathered(arguments: Sequence[str]) -> list[str]:
    """``--run A B`` and ``--run A --run B`` as the one list that the parser takes; so for ``--raw``, alone png16."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--run", "--raw"):
        parser.add_argument(flag, nargs="*", action="extend")
    lists, rest = parser.parse_known_args(arguments)
    lists.raw = [RAW_FORMATS[0]] if lists.raw == [] else lists.raw
    return rest + [f"--{name}={json.dumps(values)}" for name, values in vars(lists).items() if values]


def main() -> None:
    """The command."""
    example = "python -m seg.export --run runs/entropy runs/adadem --images photos --out export"
    config = parse_config(ExportConfig, "python -m seg.export", example, _gathered(sys.argv[1:]))
    check_paths(config)
    if export(config):
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
