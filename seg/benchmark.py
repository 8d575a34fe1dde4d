"""``python -m seg.benchmark``: tasks × arms × seeds, each a process of ``python -m seg.train``, and a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError
from dem_apps.jobs.executor import threads_of_jobs
from dem_apps.jobs.grid import Cells, GridConfig, Training, end_of_grid, grid_cells, run_grid
from dem_apps.report.runs import Runs
from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import option, parse_config
from seg.config import TrainConfig

_EXAMPLES = """\
python -m seg.benchmark --config configs/seg/demo_benchmark.yaml --workers 2
python -m seg.benchmark --config configs/seg/demo_benchmark.yaml --report-only
python -m seg.benchmark --config gta5_cityscapes --train.source.root GTA5 --train.target.root CITYSCAPES"""


@dataclass(frozen=True)
class BenchmarkConfig(GridConfig):
    """Train every arm with every seed, then write a table with differences to the control and their intervals.

    Settings are those of seg.train, with underscores. An arm wins over a task, a task over 'train'. The same command
    again continues a grid, at the same time it shares the work; --report-only shows what is finished.
    """

    tasks: dict[str, Any] = option(
        {},
        "data or other settings that arms are compared under; default: one, with none of its own",
        value="{TASK: {}}",
        group="tasks and comparison",
    )
    control: str | None = option(None, "arm that the others are compared with")


def grid_jobs(config: BenchmarkConfig) -> Cells:
    """Return the jobs of each task and arm.

    Raises:
        InputError: no arms are named, or see ``grid_cells``.
    """
    if not config.arms:
        raise InputError(
            "--config: needs a file that names arms, such as configs/seg/demo_benchmark.yaml"
        )
    training = Training("seg.train", TrainConfig, TrainConfig.check, "miou")
    return grid_cells(
        config, training, "tasks", config.tasks or {"": {}}, ("control", config.control)
    )


def benchmark(config: BenchmarkConfig) -> dict[str, str]:
    """Run the grid and write its report; returns what failed, by the name of the run."""
    from dem_apps.report.page import write_grid_page
    from dem_apps.report.tables import write_grid_report

    def report(finished: Runs, out: Path) -> str:
        table = write_grid_report(finished, out, config.control)
        page = write_grid_page(finished, out / "report.html", config.control)
        return f"{table}\npage: {page}\n"

    cells = grid_jobs(config)
    if not config.report_only:
        _open_data(cells)
    return run_grid(config, cells, threads_of_jobs(config), report)


def _open_data(cells: Cells) -> None:
    """Find faults of the data, and draw the demo pair, once before the trainings."""
    from seg.data.domains import open_pair

    opened: list[object] = []
    for jobs in cells.values():
        train = parse_config(TrainConfig, "python -m seg.train", "", jobs[0].flags)
        if train.data() not in opened:
            open_pair(**train.data(), measure=False)
            opened.append(train.data())


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; exit status 1 if a run failed."""
    config = parse_config(BenchmarkConfig, "python -m seg.benchmark", _EXAMPLES, arguments)
    end_of_grid("seg.benchmark", arguments, lambda: benchmark(config))


if __name__ == "__main__":
    run_command(main)
