"""``python -m seg.tune``: DEM*, the search of τ and α with labels of a share of the target (paper, Sec. 3.2).

Every trial is a run of ``python -m seg.train`` in its own folder, scored by mIoU on ``--share`` of the target's
validation images (``validation_part`` from 0 to that share). The values found are to be judged on the rest.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from optuna.trial import FrozenTrial

from dem_apps.errors import InputError
from dem_apps.jobs.executors import build_executor, threads_of_jobs
from dem_apps.jobs.job import Job, flags, settings_flags
from dem_apps.jobs.search import DEM_SPACE, Plan, QuickPlan, TPEPlan, Values, best_trial, quick_trials, score, scored
from dem_apps.jobs.search_report import plot_dem_search, trials_table, write_trials
from dem_apps.jobs.study import StudyFolder
from dem_apps.jobs.tune import SearchConfig, TrialJobs, run_command_of, run_search
from dem_apps.runtime.checkpoint import write_atomically
from dem_apps.runtime.command import run_command
from dem_apps.runtime.run_claim import new_run_dir
from dem_apps.runtime.settings import option, parse_search, to_dict
from dem_apps.runtime.terminal import console
from dem_apps.runtime.validate import check_settings
from seg.config import TrainConfig
from seg.data.domains import open_pair, open_validation
from seg.methods import METHODS

_EXAMPLE = (
    "python -m seg.tune --config configs/seg/demo.yaml --trials 30 --steps 300 --study-dir runs/tune "
    "--train.reduction mean"
)
_ENTROPY = {"tau": 1.0, "alpha": 1.0}


@dataclass(frozen=True)
class TuneConfig(SearchConfig):
    """Search tau and alpha of DEM with labels of a share of the target.

    --config is a file of seg.train, and --train.FLAG is any flag of seg.train (see python -m seg.train --help), such as
    --train.source.root. The same command again continues the study in --study-dir.
    """

    trials: int = option(
        30, "trials of the study, failed ones included; --quick has its own number", at_least=1, group="search"
    )
    quick: bool = option(False, "the paper's quick way, a grid: alpha with tau = 1, then tau with the best alpha")
    share: float = option(
        0.2, "share of the target's validation images that trials may see the labels of", above=0, below=1
    )
    steps: int | None = option(
        None, "training steps of a trial; default: max_steps of the training's settings", at_least=1
    )

    def check(self) -> None:
        """What parsing could not check.

        Raises:
            InputError: naming the flag and what would be right.
        """
        check_settings(self)


def tune(config: TuneConfig, train: TrainConfig, train_flags: Sequence[str]) -> Path:
    """Run or continue a study and return its folder.

    Args:
        config: of the study.
        train: what every trial trains with, apart from the objective and what is scored.
        train_flags: the flags that made ``train``, to print the command of the final run.

    Raises:
        InputError: settings that do not fit, a folder of another study, no trial with a score.
    """
    config.check()
    trial_config = trial_settings(config, train)
    # before the trials, which would all draw the demo pair or all find data missing
    pair = open_pair(
        train.source, train.target, train.classes, trial_config.validation_part, demo=train.demo, bands=train.bands,
        measure=False,
    )  # fmt: skip
    open_validation(
        train.target, pair.classes, (config.share, 1.0), demo=train.demo
    )  # nothing left to judge on is an error, too
    if not pair.target_val.labelled:
        raise InputError(
            f"{pair.target_val.root}: the search compares mIoU, and this target's validation images have no labels; "
            "label some of them, or take --loss adadem, which has nothing to search"
        )
    path = Path(config.study_dir) if config.study_dir else new_run_dir("seg", "tune")
    settings = {"score": "miou", "share": config.share, "train": to_dict(trial_config)}
    folder = StudyFolder(path, settings, config.storage)
    plan = _plan(config, train.seed)
    _print_summary(config, trial_config, plan, path, len(pair.target_val))
    executor = build_executor(config, threads_of_jobs(config), path)
    run_search(
        folder, DEM_SPACE, plan, trial_jobs(trial_config), executor, config.workers,
        lambda trials: _write_results(path, trials, config.share),
    )  # fmt: skip
    _print_results(folder, train_flags)
    return path


def trial_settings(config: TuneConfig, train: TrainConfig) -> TrainConfig:
    """The settings that all trials share.

    Raises:
        InputError: they name what the search decides, or a method without an objective.
    """
    for name, why in {
        "tau": "the search finds it",
        "alpha": "the search finds it",
        "run_dir": "each trial has a folder of its own under --study-dir",
    }.items():
        if getattr(train, name) is not None:
            raise InputError(f"--train.{name.replace('_', '-')}: leave it out, {why}")
    if train.validation_part != TrainConfig().validation_part:
        raise InputError("--train.validation-part: leave it out, --share says what trials are scored on")
    if train.resume:
        raise InputError("--train.resume: leave it out, the same command again continues the study in --study-dir")
    if not METHODS[train.method].uses_target:
        usable = ", ".join(name for name, method in METHODS.items() if method.uses_target)
        raise InputError(f"--train.method: '{train.method}' has no objective on target; expected one of {usable}")
    settings = replace(
        train, loss="dem", max_steps=config.steps or train.max_steps, validation_part=[0.0, config.share], maps=0
    )
    settings.check()
    return settings


def trial_jobs(settings: TrainConfig) -> TrialJobs:
    """The training of a trial, in the trial's own folder.

    Args:
        settings: of :func:`trial_settings`.
    """
    shared = settings_flags(settings)

    def jobs(run: Path, values: Values) -> list[Job]:
        return [Job(f"trial {run.name}", "seg.train", (*shared, *flags(values)), run, settings.max_steps, "miou")]

    return jobs


def _plan(config: TuneConfig, seed: int) -> Plan:
    if config.quick:
        return QuickPlan()
    # entropy first: what is found can be compared with it, and is never worse on the images that were searched
    return TPEPlan(DEM_SPACE, config.trials, seed, first=(_ENTROPY,))


def _print_summary(config: TuneConfig, settings: TrainConfig, plan: Plan, path: Path, images: int) -> None:
    print(
        f"search   tau and alpha of DEM, {plan.most} trials{' at most' if config.quick else ''}, "
        f"{config.workers} at a time\n"
        f"trial    {settings.method}, {settings.max_steps} steps, mIoU on {images} images, "
        f"{100 * config.share:g} % of the target's validation set\n"
        f"study    {path}",
        flush=True,
    )
    if config.quick:
        alphas = ", ".join(f"{values['alpha']:g}" for values in quick_trials())
        print(f"first    tau 1 with alpha {alphas}\nthen     the best alpha with tau 0.1, 0.2, ... up to 2 / alpha")


def _write_results(path: Path, trials: Sequence[FrozenTrial], share: float) -> None:
    """``trials.csv``, ``search.png`` and, once there is a score, ``best.yaml``."""
    write_trials(path / "trials.csv", DEM_SPACE, trials, "miou")
    plot_dem_search(path / "search.png", trials, "mIoU")
    best = best_trial(trials)
    if best is not None:
        write_atomically(path / "best.yaml", _best_yaml(best.params, score(best), len(scored(trials)), share))


def _best_yaml(values: dict[str, Any], miou: float, trials: int, share: float) -> bytes:
    fragment = {"loss": "dem", **values, "validation_part": [share, 1.0]}
    return (
        f"# DEM*: the best of {trials} trials, mIoU {miou:.4f} on {100 * share:g} % of the target's validation\n"
        f"# images, chosen with their labels; validation_part leaves these images out of later scores.\n"
        f"# python -m seg.train --config FILE --config THIS_FILE\n{yaml.safe_dump(fragment, sort_keys=False)}"
    ).encode()


def _print_results(folder: StudyFolder, train_flags: Sequence[str]) -> None:
    trials = folder.trials()
    best = best_trial(trials)
    if best is None:
        raise InputError(f"{folder.path}: no trial has a score; {folder.path / 'trials' / '0000.log'} says why")
    console().print(trials_table(DEM_SPACE, trials, "mIoU", f"{len(scored(trials))} of {len(trials)} trials scored"))
    entropy = next((score(trial) for trial in scored(trials) if trial.params == _ENTROPY), None)
    beside = "" if entropy is None else f", entropy {entropy:.4f}"
    final = ["python", "-m", "seg.train", *train_flags, "--config", str(folder.path / "best.yaml")]
    print(
        f"best     tau {best.params['tau']:g}, alpha {best.params['alpha']:g}: mIoU {score(best):.4f}{beside}\n"
        f"files    {folder.path}: best.yaml, trials.csv, search.png\n"
        f"next     {shlex.join(final)}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; ``arguments`` are those of the process when None."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    config, train, given = parse_search(TuneConfig, TrainConfig, "seg.tune", "seg.train", _EXAMPLE, arguments)
    run_command_of("seg.tune", config, arguments, lambda config: tune(config, train, given))


if __name__ == "__main__":
    run_command(main)
