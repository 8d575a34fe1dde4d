"""A grid of trainings, rows × arms × seeds, in ``FOLDER/[ROW/]ARM/seedN``; the same command again continues them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError, one_of, passed_on
from dem_apps.jobs.executor import (
    ExecutorConfig,
    Job,
    JobFailed,
    JobTaken,
    Variables,
    build_executor,
)
from dem_apps.report.runs import Runs, read_run
from dem_apps.runtime.arguments import flags
from dem_apps.runtime.documents import Document, Settings
from dem_apps.runtime.progress import Progress
from dem_apps.runtime.settings import LARGEST_SEED, dotted, merged, option, parse_config
from dem_apps.runtime.signals import command_line, going_on_with

#: The jobs of each (row, arm): one per seed.
Cells = dict[tuple[str, str], list[Job]]
#: What went wrong, by the name of the run.
Failures = dict[str, str]
#: Settings of a training that the grid decides.
_OF_THE_GRID = ("run_dir", "resume", "config", "seed")


@dataclass(frozen=True)
class GridConfig(ExecutorConfig):
    """Settings of every grid; a command adds its rows and the arm that it compares with."""

    arms: dict[str, Any] = option(
        {},
        "arms to compare, by name, such as {none: {loss: none}} (null leaves an arm out)",
        value="{ARM: {}}",
        group="grid",
    )
    seeds: list[int] = option(
        [0, 1, 2, 3, 4, 5], "seeds of each row and arm", at_least=0, at_most=LARGEST_SEED
    )
    train: dict[str, Any] = option(
        {}, "settings of every run: {eval_every: 20}", value="{KEY: VALUE}"
    )
    folder: str | None = option(None, "folder of the grid (needed)", value="DIR", group="run")
    report_only: bool = option(False, "train nothing, report what is finished")
    out: str | None = option(None, "folder of the report; default: FOLDER/report", value="DIR")


@dataclass(frozen=True)
class Training:
    """The training command of a grid."""

    module: str  #: such as ``seg.train``
    config_class: type  #: its settings
    check: Callable[[Any], object]  #: raises an InputError for settings that do not fit together
    metric: str  #: see :class:`dem_apps.jobs.executor.Job`
    more_flags: tuple[str, ...] = ()  #: of every training, from the grid's own command line


def grid_cells(
    config: GridConfig,
    training: Training,
    rows_key: str,
    rows: Settings,
    control: tuple[str, str | None],
) -> Cells:
    """Make the jobs of each row and arm; all settings are checked.

    An arm's setting wins over a row's, that over ``train``'s.

    Args:
        config: the grid.
        training: the command that trains.
        rows_key: the command's name for its rows, such as ``tasks``.
        rows: the settings of each row.
        control: the command's name for the arm to compare with, and that arm.

    Raises:
        InputError: a setting that is wrong, or a run in the folder that was made with other settings.
    """
    if config.folder is None:
        raise InputError("--folder: is missing; give the folder that the runs go to")
    _check_names(rows_key, rows)
    _check_names("arms", config.arms)
    arms = {arm: settings for arm, settings in config.arms.items() if settings is not None}
    flag, compared_with = control
    if compared_with is not None:
        one_of(f"--{flag}", compared_with, list(arms))
    cells: Cells = {}
    for row, of_row in rows.items():
        for arm, of_arm in arms.items():
            settings: Document = {}
            for part in (config.train, of_row or {}, of_arm):
                settings = merged(settings, dotted(part, training.config_class))
            with passed_on(f"{row}, {arm}".removeprefix(", "), InputError):
                _check_settings(training, settings)
                cells[row, arm] = [
                    _job(config, training, (row, arm), seed, settings)
                    for seed in dict.fromkeys(config.seeds)
                ]
    return cells


def _check_settings(training: Training, settings: Settings) -> None:
    """Refuse settings that the grid decides, or that the training would refuse."""
    for key in settings:
        if str(key).replace("-", "_") in _OF_THE_GRID:
            raise InputError(f"leave '{key}' out, the grid sets it")
    kind = training.config_class
    training.check(parse_config(kind, training.module, "", training.more_flags, in_file=settings))


def _check_names(key: str, group: Mapping[Any, Any]) -> None:
    """Refuse a row or an arm whose name cannot be a folder's, or that has no mapping of settings."""
    for name, settings in group.items():
        if not isinstance(name, str) or "/" in name or name.startswith("."):
            raise InputError(
                f"{key}: {name!r} cannot name a folder; leave out '/' and a leading dot, and write a number in quotes"
            )
        if not isinstance(settings, dict | None):
            raise InputError(
                f"{key}, {name}: expected a mapping of settings such as {{}}, got {settings!r}"
            )


def _job(
    config: GridConfig,
    training: Training,
    cell: tuple[str, str],
    seed: int,
    settings: Settings,
) -> Job:
    """Make the job of a cell and a seed; an InputError where its run was made with other settings."""
    folders = [name.replace(" ", "-") for name in cell]
    run = Path(str(config.folder), *folders, f"seed{seed}")
    line = (*flags({**settings, "seed": seed}), *training.more_flags)
    if (run / "config.yaml").is_file():
        again = [*line, f"--run-dir={run}", "--resume"]
        parse_config(training.config_class, training.module, "", again)
    name = "  ".join(filter(None, (*cell, f"seed {seed}")))
    return Job(name, training.module, line, run, training.metric)


def run_grid(
    config: GridConfig,
    cells: Cells,
    environment: Variables,
    write_report: Callable[[Runs, Path], str],
) -> Failures:
    """Run what is missing, write the report and print it.

    Args:
        config: the grid.
        cells: its jobs.
        environment: variables of the trainings.
        write_report: gets the finished runs and the report's folder, and returns what to print.

    Returns:
        What failed, by the name of the run.

    Raises:
        InputError: there is nothing to report, or ``--out`` holds other files.
    """
    out = Path(config.out or f"{config.folder}/report")
    jobs = [*chain.from_iterable(cells.values())]
    failures = Failures()
    if not config.report_only:
        arms = ", ".join(dict.fromkeys(arm for _, arm in cells))
        print(f"grid:     {len(jobs)} trainings in {config.folder}, of the arms {arms}", flush=True)
        failures = run_jobs(jobs, config, environment)
    finished = [
        replace(read_run(job.run), row=row, arm=arm)
        for (row, arm), of_cell in cells.items()
        for job in of_cell
        if job.finished
    ]
    if finished:
        print(write_report(finished, out), end="")
        print(f"\n{len(finished)} of {len(jobs)} runs; the report is in {out}", flush=True)
    elif not failures:
        raise InputError(
            f"{config.folder}: no run of this grid is finished, so there is nothing to report"
        )
    for name, failure in failures.items():
        print(f"failed: {name}: {failure}", file=sys.stderr)
    return failures


def end_of_grid(module: str, arguments: Sequence[str] | None, work: Callable[[], Failures]) -> None:
    """Run a grid's ``work``; an interruption says how to go on, and the exit status is 1 if a run failed."""
    command = command_line(module, sys.argv[1:] if arguments is None else arguments)
    with going_on_with(f"the same command continues: {command}"):
        failures = work()
    if failures:
        sys.exit(1)


def run_jobs(jobs: Sequence[Job], config: ExecutorConfig, environment: Variables) -> Failures:
    """Run the jobs without a result, print a line for each that ends, and return what failed by its name."""
    missing = [job for job in jobs if not job.finished]
    failures = Failures()
    executor = build_executor(config, environment)
    bar = Progress(len(missing), title="grid", unit="runs")

    def look(running: Sequence[Job]) -> None:
        lines = [f"{job.name}: {job.last_line()[:80]}" for job in running]
        bar.between_steps("; ".join(sorted(lines)))

    def ended(job: Job, future: Future[None]) -> None:
        try:
            future.result()
            score = job.score()
            outcome = "done" if score is None else f"{job.metric.replace('_', ' ')} {score:.3f}"
        except JobTaken as error:
            outcome = str(error)
        except JobFailed as error:
            failures[job.name] = str(error)
            outcome = f"failed: {error}"
        done = sum(each.finished for each in jobs)
        bar.ended(f"{job.name}  {outcome}  [{done} of {len(jobs)} runs done]")

    with closing(bar):
        executor.run_all(config.workers, iter(missing), executor.run, ended, look)
    return failures
