"""``python -m rl.benchmark``: environments × arms × seeds, each a process of ``python -m rl.train``, and a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dem_apps.errors import InputError
from dem_apps.jobs.executor import ONE_THREAD
from dem_apps.jobs.grid import Cells, GridConfig, Training, end_of_grid, grid_cells, run_grid
from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import option, parse_config
from rl.config import TrainConfig, modules_option, resolve

_EXAMPLES = """\
python -m rl.benchmark --config configs/rl/paper.yaml --workers 2
python -m rl.benchmark --config configs/rl/paper.yaml --report-only
python -m rl.benchmark --config configs/rl/paper.yaml --executor ray"""


@dataclass(frozen=True)
class BenchmarkConfig(GridConfig):
    """Train every environment with every arm and every seed, then draw curves with intervals and write a table.

    Settings are those of rl.train, with underscores. An arm wins over an environment, an environment over 'train'.
    The same command again continues a grid, at the same time it shares the work; --report-only shows what is finished.
    """

    envs: dict[str, Any] = option(
        {},
        "environments, each with settings of its own: {MiniGrid-Unlock-v0: {}}",
        value="{ENV: {}}",
        group="environments and comparison",
    )
    baseline: str | None = option(None, "arm that the table compares the others with")
    import_modules: str | None = modules_option()


def grid_jobs(config: BenchmarkConfig) -> Cells:
    """The jobs of each environment and arm; an InputError as of ``grid_cells``."""
    if not config.envs or not config.arms:
        raise InputError(
            "--config: needs a file that names envs and arms, such as configs/rl/paper.yaml"
        )
    rows = {
        env: {"env": env, **(settings or {})} if isinstance(settings, dict | None) else settings
        for env, settings in config.envs.items()
    }
    more_flags = () if config.import_modules is None else ("--import", config.import_modules)
    training = Training("rl.train", TrainConfig, resolve, "mean_return", more_flags)
    return grid_cells(config, training, "envs", rows, ("baseline", config.baseline))


def benchmark(config: BenchmarkConfig) -> dict[str, str]:
    """Run the grid and write its report; returns what failed, by the name of the run."""
    from rl.results.comparison import write_report

    report = partial(write_report, baseline=config.baseline)
    return run_grid(config, grid_jobs(config), ONE_THREAD, report)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; exit status 1 if a run failed."""
    config = parse_config(BenchmarkConfig, "python -m rl.benchmark", _EXAMPLES, arguments)
    end_of_grid("rl.benchmark", arguments, lambda: benchmark(config))


if __name__ == "__main__":
    run_command(main)
