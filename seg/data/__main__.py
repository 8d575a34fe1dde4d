"""``python -m seg.data check`` and ``python -m seg.data cache``, with the settings of ``python -m seg.train``."""

from __future__ import annotations

import sys

from dem_apps.errors import InputError, nearest
from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import parse_config
from seg.config import TrainConfig
from seg.data.build_cache import fill_cache
from seg.data.check import check_pair
from seg.data.class_pixels import class_pixels
from seg.data.domains import open_pair

_USAGE = """usage: python -m seg.data {check,cache} [--config FILE] [any setting of python -m seg.train]

check   look at every file: pairs, sizes, label ids, blank or damaged images; exit status 1 when something is wrong
cache   write decoded, resized copies once, which training then reads instead of the originals

--workers N works in N processes. The settings: python -m seg.data check --help"""


def _check(config: TrainConfig) -> None:
    pair = open_pair(
        config.source, config.target, config.classes, config.validation_part, labels_must_exist=False, demo=config.demo,
        bands=config.bands, measure=False,
    )  # fmt: skip
    if check_pair(pair, config.workers):
        sys.exit(1)


def _cache(config: TrainConfig) -> None:
    pair = open_pair(
        config.source, config.target, config.classes, config.validation_part, demo=config.demo, bands=config.bands,
        measure=False,
    )  # fmt: skip
    if not pair.pixels.is_rgb:
        print(f"images with {pair.pixels.described} are read as they are, and of their labels alone copies are kept")
    splits = pair.splits()
    if not config.reads_target_images():
        del splits["target train"]
    fill_cache(splits, config.workers)
    if config.source.rare_class_temperature is not None:
        class_pixels(pair.labelled[0], config.workers)


_OF_TRAINING = """

The settings are those of python -m seg.train, so that its files and flags can be given as they are; those of the data
and --workers, the number of processes, matter here."""
_DESCRIPTIONS = {
    "check": "Look at every file of both data sets: pairs, sizes, label ids, blank or damaged images. Exit status 1 "
    f"when something is wrong.{_OF_TRAINING}",
    "cache": "Write decoded, resized copies of images and labels once, which training then reads instead of the "
    f"originals.{_OF_TRAINING}",
}
_COMMANDS = {"check": _check, "cache": _cache}


def _main() -> None:
    command, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if command in ("", "-h", "--help"):
        print(_USAGE)
        return
    if command not in _COMMANDS:
        raise InputError(f"seg.data: expected check or cache first, found '{command}'{nearest(command, _COMMANDS)}")
    prog = f"python -m seg.data {command}"
    config = parse_config(
        TrainConfig, prog, f"{prog} --config configs/seg/demo.yaml", arguments, description=_DESCRIPTIONS[command]
    )
    config.check()
    _COMMANDS[command](config)


if __name__ == "__main__":
    run_command(_main)
