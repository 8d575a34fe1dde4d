"""What ``seg.benchmark`` and ``rl.benchmark`` share: the settings of a grid, its jobs, and how it is run and reported.

A grid is rows (environments, data sets) × arms (what is compared) × seeds, each a training of its own in
``FOLDER/ROW/ARM/seedN``.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError
from dem_apps.jobs.executors import ExecutorConfig, build_executor
from dem_apps.jobs.grid import Cells, run_grid
from dem_apps.jobs.job import Job, flags, flat
from dem_apps.jobs.progress import GridProgress
from dem_apps.report.text_tables import refuse_files_of_others
from dem_apps.runtime.run_claim import refuse_ways_out
from dem_apps.runtime.run_folder import read_config
from dem_apps.runtime.seeds import LARGEST_SEED
from dem_apps.runtime.settings import flag_only, from_dict, option, parse_config, to_dict
from dem_apps.runtime.terminal import console
from dem_apps.runtime.validate import check_settings

#: Settings of a training that the grid decides.
_OF_THE_GRID = ("run_dir", "resume", "config", "seed")


@dataclass(frozen=True)
class _Grid:
    """What is trained, and where the results go."""

    arms: dict[str, Any] = option(
        {}, "what is compared, each with its settings: {none: {loss: none}}", value="{ARM: {}}", group="grid"
    )
    seeds: list[int] = option([0, 1, 2, 3, 4, 5], "seeds of each row and arm", at_least=0, at_most=LARGEST_SEED)
    train: dict[str, Any] = option({}, "settings of every run: {eval_every: 20}", value="{KEY: VALUE}")
    folder: str | None = option(None, "folder of the grid (needed)", value="DIR", group="run")
    report_only: bool = option(False, "train nothing, report what is finished")
    out: str | None = option(None, "folder of the report; default: FOLDER/report", value="DIR")
    shard: str | None = option(
        None, "train the I-th of N parts of the grid (from 0) and report nothing, for arrays of a batch system",
        value="I/N",
    )  # fmt: skip


@dataclass(frozen=True)
class GridConfig(ExecutorConfig, _Grid):
    """What every grid is told; a command adds its rows and the arm that it compares with."""


@dataclass(frozen=True)
class Training:
    """The training command of a grid.

    Args:
        module: such as ``seg.train``.
        config_class: its settings.
        resolve: fills in and checks what parsing cannot, and returns the settings as ``config.yaml`` will hold them.
        steps: the name of the setting that says how many there are.
        metric: what a run is scored by, see :class:`dem_apps.jobs.job.Job`.
        more_flags: of every training, from the grid's own command line.
        consequential: of flat settings those that change something; a run that differs in others is the grid's.
    """

    module: str
    config_class: type
    resolve: Callable[[Any], Any]
    steps: str
    metric: str
    more_flags: tuple[str, ...] = ()
    consequential: Callable[[dict[str, Any]], dict[str, Any]] = dict


def check_grid(
    config: GridConfig, rows_key: str, rows: Mapping[str, Any], control_key: str, control: str | None
) -> None:
    """Check all but the settings of the trainings.

    Args:
        config: the grid.
        rows_key: how the command calls its rows.
        rows: their settings.
        control_key: how the command calls the arm that others are compared with.
        control: that arm, if one is named.

    Raises:
        InputError: naming the flag and what would be right.
    """
    check_settings(config)
    if config.folder is None:
        raise InputError("--folder: needs the folder that the runs go to")
    for key, group in ((rows_key, rows), ("arms", config.arms)):
        for name, settings in group.items():
            if settings is not None and not isinstance(settings, dict):
                raise InputError(f"{key}, {name}: expected a mapping of settings such as {{}}, got {settings!r}")
            if not name or "/" in name or name.startswith("."):
                raise InputError(f"{key}: '{name}' cannot be the name of a folder; leave out '/' and a leading dot")
        if len({_folder(name) for name in group}) < len(group):
            raise InputError(f"{key}: two of {', '.join(group)} would share a folder; rename one")
    if not config.seeds or len(set(config.seeds)) < len(config.seeds):
        raise InputError(f"--seeds: expected different numbers, got {config.seeds}")
    if control is not None and control not in config.arms:
        raise InputError(f"--{control_key}: '{control}' is not one of the arms {', '.join(config.arms)}")


def grid_cells(config: GridConfig, training: Training, rows: Mapping[str, Mapping[str, Any] | None]) -> Cells:
    """The jobs of each row and arm, all settings checked. An arm's setting wins over a row's, that over ``train``'s.

    Raises:
        InputError: a setting that the training would refuse, or a run in the folder that was made with other settings.
    """
    cells: Cells = {}
    for row, of_row in rows.items():
        for arm, of_arm in config.arms.items():
            settings: dict[str, Any] = {}
            for part in (config.train, of_row or {}, of_arm or {}):
                settings |= flat(part, training.config_class)
            resolved = _resolved(training, settings, ", ".join(filter(None, (row, arm))))
            cells[row, arm] = [_job(config, training, row, arm, seed, settings, resolved) for seed in config.seeds]
    return cells


def run_benchmark(
    config: GridConfig,
    cells: Cells,
    environment: Mapping[str, str],
    write_report: Callable[[Sequence[tuple[str, str, Job]], Path], str],
    report_files: Mapping[str, str],
) -> dict[str, str]:
    """Run what is missing, write the report and print it.

    Args:
        config: of the grid.
        cells: its jobs.
        environment: variables of the trainings.
        write_report: given row, arm and job of each finished run, in the order of the grid, and the folder of the
            report; returns what is to be printed.
        report_files: see :func:`dem_apps.report.text_tables.refuse_files_of_others`.

    Returns:
        what failed, by the name of the run.

    Raises:
        InputError: there is nothing to report, a link leads out of the grid's folder, or ``--out`` is no folder of an
            earlier report.
    """
    refuse_ways_out(Path(str(config.folder)))
    out = Path(config.out) if config.out is not None else Path(str(config.folder)) / "report"
    if config.out is not None:
        refuse_files_of_others(out, report_files)
    failures: dict[str, str] = {}
    if not config.report_only:
        part = _part(cells, config.shard)
        executor = build_executor(config, environment, Path(str(config.folder)))
        failures = run_grid(part, executor, config.workers, GridProgress(part, console()))
    if config.shard is None or config.report_only:
        _report(config, cells, failures, write_report, out)
    for name, failure in failures.items():
        print(f"failed: {name}: {failure}", file=sys.stderr)
    return failures


def _report(
    config: GridConfig, cells: Cells, failures: Mapping[str, str],
    write_report: Callable[[Sequence[tuple[str, str, Job]], Path], str], out: Path,
) -> None:  # fmt: skip
    """Of what is finished."""
    jobs = [(row, arm, job) for (row, arm), jobs in cells.items() for job in jobs]
    finished = [(row, arm, job) for row, arm, job in jobs if job.scores() is not None]
    if finished:
        print(write_report(finished, out), end="")
        print(f"\n{len(finished)} of {len(jobs)} runs; the report is in {out}", flush=True)
    elif not failures:
        raise InputError(f"{config.folder}: no run of this grid is finished, so there is nothing to report")


def _part(cells: Cells, shard: str | None) -> Cells:
    """Every n-th job of all, so that parts are alike in what they hold."""
    if shard is None:
        return cells
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", shard)
    if found is None or int(found[1]) >= int(found[2]):
        raise InputError(f"--shard: expected I/N with I from 0 to N - 1, such as 0/4, got '{shard}'")
    names = [job.name for jobs in cells.values() for job in jobs][int(found[1]) :: int(found[2])]
    return {cell: [job for job in jobs if job.name in names] for cell, jobs in cells.items()}


def _resolved(training: Training, settings: Mapping[str, Any], where: str) -> Any:
    refused = {name for names in flag_only(training.config_class).items() for name in names}
    for key in settings:
        name = str(key).replace("-", "_")
        if name in _OF_THE_GRID:
            raise InputError(f"{where}: leave '{key}' out, the grid sets it")
        if name in refused:  # its flag would count as given on a command line
            raise InputError(f"{where}: '{key}' can only be given on the command line of {training.module}")
    try:
        given = [*flags(settings), *training.more_flags]
        return training.resolve(parse_config(training.config_class, f"python -m {training.module}", "", given))
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _job(
    config: GridConfig, training: Training, row: str, arm: str, seed: int, settings: Mapping[str, Any], resolved: Any
) -> Job:
    run = Path(str(config.folder)) / _folder(row) / _folder(arm) / f"seed{seed}"
    expected = to_dict(dataclasses.replace(resolved, seed=seed, run_dir=str(run)))
    if (run / "config.yaml").is_file():
        _refuse_other_settings(run, expected, settings, training)
    name = "  ".join(filter(None, (row, arm, f"seed {seed}")))
    given = (*flags({**settings, "seed": seed}), *training.more_flags)
    return Job(name, training.module, given, run, expected[training.steps], training.metric)


def _refuse_other_settings(run: Path, expected: dict[str, Any], given: Mapping[str, Any], training: Training) -> None:
    written, config_class = read_config(run), training.config_class
    # with the defaults of now for settings that the run is older than: it was trained with them
    saved = flat(to_dict(from_dict(config_class, written, str(run / "config.yaml"))), config_class)
    saved, asked = (training.consequential(settings) for settings in (saved, flat(expected, config_class)))
    # what neither the run nor the grid names cannot differ
    named = {*flat(written, config_class), *given} - {"run_dir", "resume", *flag_only(config_class)}
    for key in [key for key in asked if key in named]:
        if saved.get(key) != asked[key]:
            raise InputError(
                f"{run}: was trained with {key} {saved.get(key)!r}, this grid asks for {asked[key]!r}; "
                "name another folder, or move that run away"
            )


def _folder(name: str) -> str:
    return name.replace(" ", "-")
