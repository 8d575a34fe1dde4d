"""``python -m seg.adapt``: adapt a trained network to a folder of unlabelled images, and judge whether it helped."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import parse_config
from seg.adaptation.settings import AdaptConfig

if TYPE_CHECKING:
    from seg.adaptation.result import Result

_EXAMPLES = """\
python -m seg.adapt --out adapted
python -m seg.adapt --model models/unet --images photos --out adapted
python -m seg.adapt --model runs/my-run --images photos --labels labels --out adapted"""


def adapt(config: AdaptConfig) -> Result:
    """Open, predict, adapt while a monitor looks, predict again and write.

    Args:
        config: the settings of the command.

    Returns:
        The answer and its numbers.

    Raises:
        InputError: settings that do not fit together, or that do not fit the network or the images.
    """
    config.check()
    from seg.adaptation.command import adapt_folder

    return adapt_folder(config)


def main() -> None:
    """The command."""
    if adapt(parse_config(AdaptConfig, "python -m seg.adapt", _EXAMPLES)).skipped:
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
