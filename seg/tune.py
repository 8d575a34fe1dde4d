"""``python -m seg.tune``: DEM*, the search of τ and α with labels of a share of the target (paper, Sec. 3.2).

Every trial is a run of ``python -m seg.train`` in its own folder, scored by mIoU on ``--share`` of the target's
validation images (``validation_part`` from 0 to that share). The values found are to be judged on the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dem_apps.errors import InputError
from dem_apps.jobs.executor import Job, SearchConfig, parse_search, threads_of_jobs
from dem_apps.runtime.arguments import flags, marked
from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import option
from seg.config import TrainConfig

if TYPE_CHECKING:
    import optuna

_EXAMPLES = """\
python -m seg.tune --config configs/seg/demo.yaml --trials 30 --steps 300 --study-dir runs/tune
python -m seg.tune --train.loss dem --train.reduction mean --trials 10
python -m seg.tune --config configs/seg/demo.yaml --workers 2 --storage sqlite:///study.db"""
_ENTROPY = {"tau": 1.0, "alpha": 1.0}


@dataclass(frozen=True)
class TuneConfig(SearchConfig):
    """Search tau and alpha of DEM with labels of a share of the target.

    --config is a file of seg.train, and --train.FLAG is any flag of seg.train (see python -m seg.train --help), such as
    --train.source.root. The same command again continues the study in --study-dir.
    """

    trials: int = option(
        30, "trials of the study, failed ones included", at_least=1, group="search"
    )
    share: float = option(
        0.2,
        "share of the target's validation images that trials may see the labels of",
        above=0,
        below=1,
    )
    steps: int | None = option(
        None, "training steps of a trial; default: max_steps of the training's settings", at_least=1
    )


def tune(
    config: TuneConfig,
    train: TrainConfig,
    train_flags: Sequence[str],
    arguments: Sequence[str] = (),
) -> Path:
    """Run or continue a study and return its folder.

    ``train``, made from ``train_flags``, is what every trial trains with, apart from the objective and what is scored.
    The command with ``arguments`` continues the study. Raises InputError: settings that do not fit, no trial with a
    score.
    """
    from dem_apps.jobs.search import DEM_RANGES, Plan, dem_allows, finished_search, refuse_given
    from seg.methods import METHODS

    reason = "the search finds it"
    refuse_given(
        train, tau=reason, alpha=reason, validation_part="--share says what trials are scored on"
    )
    if METHODS[train.method].loss is None:
        usable = ", ".join(name for name, method in METHODS.items() if method.loss is not None)
        raise InputError(
            f"--train.method: '{train.method}' has no objective on target; expected one of {usable}"
        )
    of_trial: dict[str, Any] = {
        "loss": "dem",
        "max_steps": config.steps or train.max_steps,
        "validation_part": [0.0, config.share],
        "maps": 0,
    }
    settings = replace(train, **of_trial)
    settings.check()
    images = _images(settings, config.share)
    # entropy first: what is found can be compared with it, and is never worse on the images that were searched
    plan = Plan(DEM_RANGES, _ENTROPY, config.trials, train.seed, "miou", dem_allows)
    print(
        f"search   tau and alpha of DEM, {config.trials} trials of {settings.max_steps} steps\n"
        f"score    mIoU on {images} images of the target's validation set",
        flush=True,
    )

    def jobs(run: Path, values: dict[str, float]) -> list[Job]:
        all_flags = (*train_flags, *flags({**of_trial, **values}))
        return [Job(f"trial {run.name}", "seg.train", all_flags, run, "miou")]

    with finished_search(
        "seg.tune",
        arguments,
        config,
        plan,
        {"share": config.share, "train": asdict(settings)},
        marked(TrainConfig, "of_machine"),
        jobs,
        threads_of_jobs(config),
    ) as (path, study):
        _report(path, study, config.share, train_flags)
    return path


def _images(train: TrainConfig, share: float) -> int:
    """The images that trials are scored on, once data are found (or drawn) that leave some to judge on."""
    from seg.data.domains import open_pair, open_validation

    pair = open_pair(**train.data(), measure=False)
    open_validation(train.target, pair.classes, (share, 1.0), demo=train.demo)
    if not pair.target_val.labelled:
        raise InputError(
            f"{pair.target_val.root}: the search compares mIoU, and this target's validation images have no labels; "
            "label some of them, or take --loss adadem, which has nothing to search"
        )
    return len(pair.target_val)


def _report(path: Path, study: optuna.Study, share: float, train_flags: Sequence[str]) -> None:
    """Write ``best.yaml`` and ``search.png``, and print the best point and the command of the final run."""
    from matplotlib import pyplot
    from optuna.visualization.matplotlib import plot_contour

    from dem_apps.jobs.search import write_choice
    from dem_apps.runtime.files import whole_file

    plot_contour(study, ["tau", "alpha"], target_name="mIoU")
    with whole_file(path / "search.png") as picture:
        pyplot.savefig(picture)
    for trial in (study.trials[0], study.best_trial):
        print(f"trial {trial.number}  {trial.params}: mIoU {trial.value}")
    remark = (
        f"DEM*: the best of {len(study.trials)} trials, chosen with labels of the images that validation_part leaves "
        "out of later scores."
    )
    choice = {"loss": "dem", **study.best_params, "validation_part": [share, 1.0]}
    write_choice(path, remark, choice, "seg.train", train_flags)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; without ``arguments`` it takes the process's own."""
    arguments = sys.argv[1:] if arguments is None else arguments
    settings = parse_search(TuneConfig, TrainConfig, "seg.tune", "seg.train", _EXAMPLES, arguments)
    tune(*settings, arguments)


if __name__ == "__main__":
    run_command(main)
