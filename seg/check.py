"""``python -m seg.data check``: every fault of the data before any training, with the settings of seg.train."""

from __future__ import annotations

import sys

from dem_apps.errors import InputError, nearest
from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import parse_config
from seg.config import TrainConfig

_PROG = "python -m seg.data check"
_EXAMPLES = f"""\
{_PROG} --config configs/seg/demo.yaml
{_PROG} --source.root LABELLED --target.root UNLABELLED
{_PROG} --config gta5_cityscapes_minent --source.root GTA5 --target.root CITYSCAPES"""
_DESCRIPTION = f"""Look at every file of both data sets: pairs, sizes, label ids, blank or damaged images. Exit status 1
when something is wrong. Settings are those of python -m seg.train; see {_PROG} --help"""


def main() -> None:
    """The command."""
    command, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if command in ("", "-h", "--help"):
        print(
            f"usage: {_PROG} [--config FILE] [any setting of python -m seg.train]\n\n{_DESCRIPTION}"
        )
        return
    if command != "check":
        raise InputError(
            f"seg.data: expected check first, found '{command}'{nearest(command, ['check'])}"
        )
    config = parse_config(
        TrainConfig,
        _PROG,
        _EXAMPLES,
        arguments,
        description=_DESCRIPTION,
    )
    config.check()
    from seg.data.data_check import check_pair
    from seg.data.domains import open_pair

    pair = open_pair(**config.data(), measure=False, workers=config.workers)
    if check_pair(pair, config.workers):
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
