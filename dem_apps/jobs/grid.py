"""A grid of trainings, rows × arms × seeds, in ``FOLDER/[ROW/]ARM/seedN``; the same command again continues them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError, passed_on, printable
from dem_apps.jobs.executor import ExecutorConfig, Job, JobFailed, JobTaken, build_executor
from dem_apps.report.runs import Finished, read_run
from dem_apps.runtime.arguments import flags, line_only, of_machine
from dem_apps.runtime.progress import Progress
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.settings import LARGEST_SEED, dotted, merged, option, parse_config
from dem_apps.runtime.signals import command_line, going_on_with

#: The jobs of each (row, arm): one per seed.
Cells = dict[tuple[str, str], list[Job]]
#: Settings of a training that the grid decides.
_OF_THE_GRID = ("run_dir", "resume", "config", "seed")


@dataclass(frozen=True)
class GridConfig(ExecutorConfig):
    """Settings of every grid; a command adds its rows and the arm that it compares with."""

    arms: dict[str, Any] = option(
        {},
        "what is compared, each with its settings: {none: {loss: none}}",
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
    #: checks the settings and returns them as ``config.yaml`` will hold them
    resolve: Callable[[Any], Any]
    metric: str  #: see :class:`dem_apps.jobs.executor.Job`
    more_flags: tuple[str, ...] = ()  #: of every training, from the grid's own command line
    #: settings that a run fills in by its data, network and device where they are None
    open: tuple[str, ...] = ()


def grid_cells(
    config: GridConfig,
    training: Training,
    rows_key: str,
    rows: Mapping[str, Any],
    control: tuple[str, str | None],
) -> Cells:
    """The jobs of each row and arm, all settings checked. An arm's setting wins over a row's, that over ``train``'s.

    ``rows_key`` is the command's name for its rows, ``control`` its name for the arm to compare with, and that arm.
    Raises InputError: a setting that is wrong, or a run in the folder that was made with other settings.
    """
    _check(config, rows_key, rows, control)
    cells: Cells = {}
    for row, of_row in rows.items():
        for arm, of_arm in config.arms.items():
            settings: dict[str, Any] = {}
            for part in (config.train, of_row or {}, of_arm or {}):
                settings = merged(settings, dotted(part, training.config_class))
            with passed_on(", ".join(filter(None, (row, arm))), InputError):
                if given := [key for key in settings if str(key).replace("-", "_") in _OF_THE_GRID]:
                    raise InputError(f"leave '{given[0]}' out, the grid sets it")
                resolved = training.resolve(
                    parse_config(
                        training.config_class,
                        training.module,
                        "",
                        training.more_flags,
                        in_file=settings,
                    )
                )
            cells[row, arm] = [
                _job(config, training, (row, arm), seed, settings, resolved)
                for seed in config.seeds
            ]
    return cells


def _check(
    config: GridConfig, rows_key: str, rows: Mapping[str, Any], control: tuple[str, str | None]
) -> None:
    if config.folder is None:
        raise InputError("--folder: needs the folder that the runs go to")
    for key, group in ((rows_key, rows), ("arms", config.arms)):
        for name, settings in group.items():
            if not isinstance(name, str) or (key == "arms" and not name):
                raise InputError(f"{key}: expected names, got {name!r}; write it in quotes")
            if settings is not None and not isinstance(settings, dict):
                raise InputError(
                    f"{key}, {name}: expected a mapping of settings such as {{}}, got {settings!r}"
                )
            if "/" in name or name.startswith("."):
                raise InputError(
                    f"{key}: '{name}' cannot be the name of a folder; leave out '/' and a leading dot"
                )
        if len({_folder(name) for name in group}) < len(group):
            raise InputError(f"{key}: two of {', '.join(group)} would share a folder; rename one")
    if not config.seeds or len(set(config.seeds)) < len(config.seeds):
        raise InputError(f"--seeds: expected different numbers, got {config.seeds}")
    if control[1] is not None and control[1] not in config.arms:
        raise InputError(
            f"--{control[0]}: '{control[1]}' is not one of the arms {', '.join(config.arms)}"
        )


def _job(
    config: GridConfig,
    training: Training,
    cell: tuple[str, str],
    seed: int,
    settings: Mapping[str, Any],
    resolved: Any,
) -> Job:
    run = Path(str(config.folder), *map(_folder, cell), f"seed{seed}")
    file = run / "config.yaml"
    if file.is_file():
        asked = dotted(
            asdict(replace(resolved, seed=seed, run_dir=str(run))), training.config_class
        )
        free = {
            "run_dir",
            "resume",
            *line_only(training.config_class),
            *of_machine(training.config_class),
        }
        free |= {key for key in training.open if asked[key] is None}
        for key, value in dotted(read_config(run), training.config_class).items():
            if key in asked and key not in free and asked[key] != value:
                raise InputError(
                    f"{run}: was trained with {key} {value!r}, this grid asks for {asked[key]!r}; "
                    "name another folder, or move that run away"
                )
    name = "  ".join(filter(None, (*cell, f"seed {seed}")))
    given = (*flags({**settings, "seed": seed}), *training.more_flags)
    return Job(name, training.module, given, run, training.metric)


def _folder(name: str) -> str:
    return name.replace(" ", "-")


def run_grid(
    config: GridConfig,
    cells: Cells,
    environment: Mapping[str, str],
    write_report: Callable[[Sequence[Finished], Path], str],
) -> dict[str, str]:
    """Run what is missing, write the report and print it; returns what failed, by the name of the run.

    ``write_report`` gets the finished runs and the report's folder, and returns what to print.
    Raises InputError: there is nothing to report, or ``--out`` holds other files.
    """
    out = Path(config.out or Path(str(config.folder)) / "report")
    jobs = [(row, arm, job) for (row, arm), jobs in cells.items() for job in jobs]
    failures = (
        {} if config.report_only else run_jobs([job for *_, job in jobs], config, environment)
    )
    finished = [(row, arm, read_run(job.run)) for row, arm, job in jobs if job.scores() is not None]
    if finished:
        print(write_report(finished, out), end="")
        print(f"\n{len(finished)} of {len(jobs)} runs; the report is in {out}", flush=True)
    elif not failures:
        raise InputError(
            f"{config.folder}: no run of this grid is finished, so there is nothing to report"
        )
    for name, failure in failures.items():
        print(printable(f"failed: {name}: {failure}"), file=sys.stderr)
    return failures


def end_of_grid(
    module: str, arguments: Sequence[str] | None, work: Callable[[], dict[str, str]]
) -> None:
    """Run a grid's ``work``; an interruption says how to go on, and the exit status is 1 if a run failed."""
    command = command_line(module, sys.argv[1:] if arguments is None else arguments)
    with going_on_with(f"the same command continues: {command}"):
        failures = work()
    if failures:
        sys.exit(1)


def run_jobs(
    jobs: Sequence[Job], config: ExecutorConfig, environment: Mapping[str, str]
) -> dict[str, str]:
    """Run the jobs without a result; a line for each that ends, and what failed."""
    missing = [job for job in jobs if job.scores() is None]
    executor, failures = build_executor(config, environment), dict[str, str]()
    done = len(jobs) - len(missing)
    bar = Progress(len(missing), title="grid", unit="runs")

    def look(running: Sequence[Job]) -> None:
        bar.between_steps(
            "; ".join(sorted(f"{job.name}: {job.last_line()[:80]}" for job in running))
        )

    with (
        closing(bar),
        closing(executor.each(config.workers, iter(missing), executor.run, look)) as ended,
    ):
        for job, future in ended:
            try:
                future.result()
                score, done = job.score(), done + 1
                outcome = "done" if score is None else f"{job.metric.replace('_', ' ')} {score:.3f}"
            except JobTaken as error:
                outcome = str(error)
            except JobFailed as error:
                failures[job.name] = str(error)
                outcome = f"failed: {error}"
            bar.ended(f"{job.name}  {outcome}  [{done} of {len(jobs)} runs done]")
    return {job.name: failures[job.name] for job in missing if job.name in failures}
