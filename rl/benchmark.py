"""A grid of trainings: ``python -m rl.benchmark --config configs/rl/paper.yaml --workers 2``.

Environments × arms × seeds, each a process of ``python -m rl.train`` in its own folder ``FOLDER/ENV/ARM/seedN``. The
same command again goes on where a killed one stopped: finished runs are kept, others resume from their last checkpoint.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError
from dem_apps.runtime.command import run_command
from dem_apps.runtime.run_folder import read_config
from dem_apps.runtime.settings import flag_only, option, parse_config, to_dict
from dem_apps.runtime.signals import command_line, going_on_with
from dem_apps.runtime.terminal import console
from rl.config import TrainConfig, resolve
from rl.grid_progress import GridProgress
from rl.jobs import Job, JobFailed, Trainings, flags
from rl.plots import write_report
from rl.results.read_runs import Result, read_results

Cells = dict[tuple[str, str], list[Job]]


@dataclass(frozen=True)
class BenchmarkConfig:
    """Train every environment with every arm and every seed, then draw curves with intervals and write a table.

    Settings are those of rl.train, with underscores. An arm wins over an environment, an environment over 'train'.
    The same command again continues a grid; --report-only shows what is finished so far.
    """

    envs: dict[str, Any] = option(
        {}, "environments, each with settings of its own: {MiniGrid-Unlock-v0: {}}", value="{ENV: {}}", group="grid"
    )
    arms: dict[str, Any] = option(
        {}, "what is compared, each with its settings: {none: {loss: none}}", value="{ARM: {}}"
    )
    seeds: list[int] = option([0, 1, 2, 3, 4, 5], "seeds of each environment and arm")
    train: dict[str, Any] = option({}, "settings of every run: {eval_episodes: 20}", value="{KEY: VALUE}")
    baseline: str | None = option(None, "arm that the table compares the others with")
    folder: str | None = option(None, "folder of the grid (needed)", value="DIR", group="run")
    workers: int = option(1, "trainings at a time; each takes one core")
    report_only: bool = option(False, "train nothing, report what is finished")
    out: str | None = option(None, "folder of the report; default: FOLDER/report", value="DIR")


def grid_jobs(config: BenchmarkConfig) -> Cells:
    """The jobs of each environment and arm, all settings checked.

    Raises:
        InputError: a setting that rl.train would refuse, or a run in the folder that was made with other settings.
    """
    _check(config)
    cells: Cells = {}
    for env, of_env in config.envs.items():
        for arm, of_arm in config.arms.items():
            settings = {"env": env, **config.train, **(of_env or {}), **(of_arm or {})}
            resolved = _resolved(settings, f"{env}, {arm}")
            cells[env, arm] = [_job(config, arm, {**settings, "seed": seed}, resolved) for seed in config.seeds]
    return cells


def run_grid(cells: Cells, workers: int, trainings: Trainings, view: GridProgress) -> dict[str, str]:
    """Run what is missing. A failure does not stop the rest.

    Returns:
        what went wrong, by the name of the job; empty if everything is done.
    """
    failures: dict[str, str] = {}
    pool = ThreadPoolExecutor(workers)
    try:
        # finished ones first, so that the view knows of them at once
        jobs = sorted((job for jobs in cells.values() for job in jobs), key=lambda job: job.scores() is None)
        pending = {pool.submit(trainings, job, view.started): job for job in jobs}
        while pending:
            for future in wait(pending, timeout=1.0, return_when=FIRST_COMPLETED).done:
                job = pending.pop(future)
                failure = _failure(future)
                if failure is not None:
                    failures[job.name] = failure
                view.ended(job, failure)
            view.refresh()
    finally:
        trainings.stop()
        pool.shutdown(wait=False, cancel_futures=True)
        view.close()
    return failures


def finished(cells: Cells) -> list[Result]:
    """The results there are, in the order of the grid."""
    done = [(job.run, arm) for (_, arm), jobs in cells.items() for job in jobs if job.scores() is not None]
    return read_results([run for run, _ in done], [arm for _, arm in done])


def benchmark(config: BenchmarkConfig, trainings: Trainings | None = None) -> dict[str, str]:
    """Run the grid and write its report; returns what failed, by the name of the run."""
    cells = grid_jobs(config)
    failures: dict[str, str] = {}
    if not config.report_only:
        view = GridProgress(cells, console())
        failures = run_grid(cells, config.workers, trainings or Trainings(), view)
    results = finished(cells)
    total = sum(map(len, cells.values()))
    out = Path(config.out) if config.out is not None else Path(str(config.folder)) / "report"
    if results:
        print(write_report(results, out, _baseline(config, results)), end="")
        print(f"\n{len(results)} of {total} runs; figures, table.md, runs.csv and curves.csv are in {out}", flush=True)
    elif not failures:
        raise InputError(f"{config.folder}: no run of this grid is finished, so there is nothing to report")
    for name, failure in failures.items():
        print(f"failed: {name}: {failure}", file=sys.stderr)
    return failures


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; exit status 1 if a run failed."""
    example = "python -m rl.benchmark --config configs/rl/paper.yaml --workers 2"
    config = parse_config(
        BenchmarkConfig, "python -m rl.benchmark", example, arguments,
        config_help="YAML file of a grid, such as configs/rl/paper.yaml; flags win over it",
    )  # fmt: skip
    command = command_line("rl.benchmark", sys.argv[1:] if arguments is None else arguments)
    with going_on_with(f"the same command continues: {command}"):
        failures = benchmark(config)
    if failures:
        sys.exit(1)


def _job(config: BenchmarkConfig, arm: str, settings: dict[str, Any], resolved: TrainConfig) -> Job:
    seed, env = settings["seed"], str(settings["env"])
    run = Path(str(config.folder)) / env / arm.replace(" ", "-") / f"seed{seed}"
    expected = to_dict(dataclasses.replace(resolved, seed=seed, run_dir=str(run)))
    if (run / "config.yaml").is_file():
        _refuse_other_settings(run, expected)
    return Job(f"{env}  {arm}  seed {seed}", flags(settings), run, expected["timesteps"])


def _refuse_other_settings(run: Path, expected: dict[str, Any]) -> None:
    saved = read_config(run)
    for key in expected.keys() & saved.keys() - {"run_dir", "resume"}:
        if saved[key] != expected[key]:
            raise InputError(
                f"{run}: was trained with {key} {saved[key]!r}, this grid asks for {expected[key]!r}; "
                "name another folder, or move that run away"
            )


def _resolved(settings: dict[str, Any], where: str) -> TrainConfig:
    for key in ("run_dir", "resume", "config", "seed"):
        if key in settings:
            raise InputError(f"{where}: leave '{key}' out, the grid sets it")
    for key in settings:
        # its flag would count as given on a command line
        if str(key).replace("-", "_") in {name for names in flag_only(TrainConfig).items() for name in names}:
            raise InputError(f"{where}: '{key}' can only be given on the command line of rl.train")
    try:
        return resolve(parse_config(TrainConfig, "python -m rl.train", "", flags(settings)))
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _check(config: BenchmarkConfig) -> None:
    if not config.envs or not config.arms:
        raise InputError("--config: needs a file that names envs and arms, such as configs/rl/paper.yaml")
    if config.folder is None:
        raise InputError("--folder: needs the folder that the runs go to")
    for key, group in (("envs", config.envs), ("arms", config.arms)):
        for name, settings in group.items():
            if settings is not None and not isinstance(settings, dict):
                raise InputError(f"{key}, {name}: expected a mapping of settings such as {{}}, got {settings!r}")
            if not name or "/" in name or name.startswith("."):
                raise InputError(f"{key}: '{name}' cannot be the name of a folder; leave out '/' and a leading dot")
    folders = [arm.replace(" ", "-") for arm in config.arms]
    if len(set(folders)) < len(folders):
        raise InputError(f"arms: two of {', '.join(config.arms)} would share a folder; rename one")
    if not config.seeds or len(set(config.seeds)) < len(config.seeds) or min(config.seeds) < 0:
        raise InputError(f"--seeds: expected different numbers of at least 0, got {config.seeds}")
    if config.workers < 1:
        raise InputError(f"--workers: expected 1 or more, got {config.workers}")
    if config.baseline is not None and config.baseline not in config.arms:
        raise InputError(f"--baseline: '{config.baseline}' is not one of the arms {', '.join(config.arms)}")


def _baseline(config: BenchmarkConfig, results: Sequence[Result]) -> str | None:
    """None as well while the baseline has no finished run."""
    return config.baseline if any(result.arm == config.baseline for result in results) else None


def _failure(future: Future[None]) -> str | None:
    try:
        future.result()
    except JobFailed as error:
        return str(error)
    return None


if __name__ == "__main__":
    run_command(main)
