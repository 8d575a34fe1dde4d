"""``python -m seg.train``: adapt a segmentation network to images without labels.

The loop is :mod:`seg.training.loop`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dem_apps.runtime.command import run_command
from dem_apps.runtime.setting_checks import check_paths
from dem_apps.runtime.settings import parse_config
from seg.config import TrainConfig

_EXAMPLES = """\
python -m seg.train --loss adadem --max-steps 600
python -m seg.train --config best --source.root LABELLED --target.root UNLABELLED
python -m seg.train --method control --seed 1 --run-dir runs/control"""


def train(config: TrainConfig) -> Path:
    """Run one training and return its run folder. Raises InputError: a setting, folder or file that does not fit."""
    config.check()
    from dem_apps.runtime.reproducibility import deterministic_algorithms
    from seg.training import loop

    with deterministic_algorithms(config.deterministic):
        return loop.train(config)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    config = parse_config(
        TrainConfig,
        "python -m seg.train",
        _EXAMPLES,
        argv,
        config_help="best, the recipe of docs/adaptation.md, or a YAML file with any of the settings below, as "
        "keys with underscores; flags win over it",
    )
    # of a run that goes on the checkpoint holds all weights
    start = None if config.resume else config.model.start_from
    check_paths(replace(config, model=replace(config.model, start_from=start)))
    train(config)


if __name__ == "__main__":
    run_command(main)
