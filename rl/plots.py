"""``python -m rl.plots RUN [RUN …] --out DIR``: curves and tables of any run folders, or folders of them.

``returns_sampled`` and ``returns_greedy`` show the mean over seeds with its 95 % CI, ``policy_entropy`` the entropy
(PNG and SVG); ``table.md`` and ``runs.csv`` hold the numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from dem_apps.errors import InputError, one_of
from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import option, parse_config

_EXAMPLES = """\
python -m rl.plots runs/rl-paper --out report
python -m rl.plots runs/doorkey runs/doorkey-entropy --out report
python -m rl.plots runs/rl-paper --out report --baseline entropy"""


@dataclass(frozen=True)
class PlotsConfig:
    """Draw the curves and the table of any runs of rl.train.

    RUN is a run folder or a folder that holds runs at any depth; runs that are not finished are left out.
    """

    out: str = option("", "folder for figures, table and CSV file", value="DIR", needed=True)
    baseline: str | None = option(
        None, "arm to compare with; default: 'none' where there is such an arm"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; ``arguments`` are those of the process when None."""
    line = sys.argv[1:] if arguments is None else arguments
    paths = list(takewhile(lambda argument: not argument.startswith("-"), line))
    config = parse_config(
        PlotsConfig, "python -m rl.plots RUN [RUN ...]", _EXAMPLES, line[len(paths) :]
    )
    if not paths:
        raise InputError("RUN: name one or more run folders, or folders of runs, before the flags")
    from rl.results.comparison import arm_names, find_runs, write_report

    runs = find_runs(list(map(Path, paths)))
    arms = arm_names(runs)
    if config.baseline is not None:
        one_of("--baseline", config.baseline, list(dict.fromkeys(arms)))
    named = [
        replace(run, row=run.config["env"], arm=arm) for run, arm in zip(runs, arms, strict=True)
    ]
    print(write_report(named, Path(config.out), config.baseline or "none"), end="")
    print(f"\n{len(runs)} runs; figures, table.md and runs.csv are in {config.out}")


if __name__ == "__main__":
    run_command(main)
