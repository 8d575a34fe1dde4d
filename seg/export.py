"""``python -m seg.export``: what a network predicts on any folder of images, and how sure it is.

Per image: prediction, overlay, entropy map and a panel of them at one fixed scale; per folder: two CSV tables.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dem_apps.runtime.command import run_command
from dem_apps.runtime.setting_checks import check_paths
from dem_apps.runtime.settings import parse_config
from seg.data.files import check_out
from seg.inference.settings import RAW_FORMATS, ExportConfig

_EXAMPLES = """\
python -m seg.export --run runs/adadem --images photos --out export
python -m seg.export --model models/unet --images photos --out export --raw probabilities
python -m seg.export --run runs/adadem --images scenes --out export --tile 512"""


def export(config: ExportConfig) -> int:
    """Do what the command does, or raise an InputError; returns how many images could not be exported."""
    config.check_network()
    check_out(Path(config.out), Path(config.images))
    from seg.inference.export_images import export_images

    return export_images(config)


def _gathered(arguments: Sequence[str]) -> list[str]:
    """``--raw png16 npz`` and ``--raw png16 --raw npz`` as the one list that the parser takes; alone it is png16."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--raw", nargs="*", action="extend")
    known, others = parser.parse_known_args(arguments)
    if known.raw is None:
        return others
    return [*others, f"--raw={json.dumps(known.raw or [RAW_FORMATS[0]])}"]


def main() -> None:
    """The command."""
    config = parse_config(ExportConfig, "python -m seg.export", _EXAMPLES, _gathered(sys.argv[1:]))
    check_paths(config)
    if export(config):
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
