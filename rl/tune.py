"""``python -m rl.tune``: search the weight of the entropy term and the objective's options, several seeds per trial.

A trial trains one seed after another and may be pruned in between. The best of many noisy scores is an optimistic
number, so the choice is trained again with seeds that no trial has used.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dem_apps.errors import InputError
from dem_apps.jobs.executor import ONE_THREAD, Job, SearchConfig, parse_search
from dem_apps.jobs.grid import run_jobs
from dem_apps.objectives import OBJECTIVE_NAMES, objective_options
from dem_apps.objectives.flags import given_options
from dem_apps.runtime.arguments import flags, marked
from dem_apps.runtime.command import run_command
from dem_apps.runtime.documents import Document
from dem_apps.runtime.files import write_json
from dem_apps.runtime.settings import option
from rl.config import TrainConfig, resolve

if TYPE_CHECKING:
    from dem_apps.jobs.search import Plan

_EXAMPLES = """\
python -m rl.tune --train.env MiniGrid-DoorKey-5x5-v0 --train.loss adadem --trials 20
python -m rl.tune --train.env CartPole-v1 --train.loss dem --trials 10 --study-dir runs/tune
python -m rl.tune --train.env CartPole-v1 --train.loss dem --workers 2 --storage sqlite:///study.db"""
#: The weight of the entropy term is searched as its logarithm.
LOG_COEFFICIENT = "log10_ent_coef"
#: Low end, high end and step: quarters of a decade from 0.0001 to 0.1, quarters of the objectives' options.
_RANGES = {LOG_COEFFICIENT: (-4.0, -1.0, 0.25), "tau": (0.25, 2.0, 0.25), "alpha": (0.0, 2.0, 0.25)}
#: First point of the search, beside rl.train's own weight: the objectives' own options.
_FIRST = {"tau": 1.0, "alpha": 1.0}
#: From a trial's first seed to the first fresh seed.
_FRESH = 1000


@dataclass(frozen=True)
class TuneConfig(SearchConfig):
    """Search ent_coef and the options of the objective, then train the choice again with fresh seeds.

    --config is a file of rl.train, and --train.FLAG is any flag of rl.train (see python -m rl.train --help), such as
    --train.env; an option that is given so is not searched. The same command again continues the study in --study-dir.
    """

    trials: int = option(
        20, "trials of the study, pruned and failed ones included", at_least=1, group="search"
    )
    seeds: int = option(
        3, "number of seeds of a trial: --train.seed and the next ones", at_least=1, at_most=_FRESH
    )
    final_seeds: int = option(
        5,
        "number of fresh seeds with which the chosen settings are trained in the end",
        at_least=1,
        at_most=10_000,
    )


def search_plan(config: TrainConfig, trials: int) -> Plan:
    """Return the points for a loss: its weight, and its options that were not given; an InputError for 'none'.

    Args:
        config: the training, whose weight is the first that is tried, to a quarter of a decade.
        trials: their number.
    """
    from dem_apps.jobs.search import Plan, dem_allows
    from rl.envs.entries import DEFAULT_WEIGHT

    if config.loss == "none":
        raise InputError(
            "--train.loss: 'none' has nothing to search; expected an entropy term such as adadem"
        )
    options = given_options(config)
    # rl's own terms have none to set
    known = objective_options(config.loss) if config.loss in OBJECTIVE_NAMES else []
    searched = {LOG_COEFFICIENT, *known} - options.keys()
    ranges = {name: bounds for name, bounds in _RANGES.items() if name in searched}
    low, high, step = _RANGES[LOG_COEFFICIENT]
    weight = config.ent_coef if isinstance(config.ent_coef, float) else DEFAULT_WEIGHT
    nearest = step * round(math.log10(max(weight, 10**low)) / step)
    first = {**_FIRST, LOG_COEFFICIENT: min(nearest, high)}
    plan = Plan(ranges, {name: first[name] for name in ranges}, trials, config.seed, "return")
    if config.loss == "dem":
        return replace(plan, allowed=lambda values: dem_allows({**_FIRST, **options, **values}))
    return plan


def tune(
    config: TuneConfig,
    train: TrainConfig,
    train_flags: Sequence[str],
    arguments: Sequence[str] = (),
) -> None:
    """Run or continue a study, then train the choice with fresh seeds.

    Args:
        config: the search.
        train: what every trial trains with, apart from the point and the seed.
        train_flags: the flags that made ``train``.
        arguments: those of the command, which continues the study.

    Raises:
        InputError: settings that do not fit, or no trial with a score.
    """
    from dem_apps.jobs.search import finished_search, refuse_given, write_choice

    refuse_given(train, ent_coef="the search finds it")
    resolved = resolve(train)
    plan = search_plan(replace(train, ent_coef=resolved.ent_coef), config.trials)
    seeds = range(train.seed, train.seed + config.seeds)
    fresh = range(train.seed + _FRESH, train.seed + _FRESH + config.final_seeds)
    jobs = partial(_jobs, seeds=seeds, train_flags=train_flags)
    print(
        f"search   {', '.join(plan.ranges)} of {train.loss} on {train.env}, {config.trials} trials of "
        f"{config.seeds} seeds, {resolved.timesteps:,} steps each",
        flush=True,
    )
    with finished_search(
        "rl.tune",
        arguments,
        config,
        plan,
        {"seeds": config.seeds, "train": asdict(resolved)},
        marked(TrainConfig, "of_machine"),
        jobs,
        ONE_THREAD,
    ) as (path, study):
        best = study.best_trial
        settings = settings_of(best.params)
        final_jobs = jobs(path / "final" / f"{best.number:04d}", best.params, seeds=fresh)
        run_jobs(final_jobs, config, ONE_THREAD)
        result = {
            "trial": best.number,
            **settings,
            "search_return": best.value,
            "search_seeds": config.seeds,
            "trials": len(study.trials),
            "fresh_seeds": list(fresh),
            **_fresh_returns(final_jobs),
        }
        write_json(path / "final.json", result)
        print(
            f"choice   {settings}\n"
            f"search   return {best.value:.4f} (the highest of {len(study.trials)} trials, so too high)\n"
            f"fresh    return {result['fresh_mean_return']:.4f} over {len(fresh)} new seeds (final.json)"
        )
        remark = "The best trial of the search that final.json describes."
        choice = {"loss": train.loss, **settings}
        write_choice(path, remark, choice, "rl.train", train_flags)


def _jobs(
    folder: Path,
    values: dict[str, float],
    seeds: Sequence[int],
    train_flags: Sequence[str],
) -> list[Job]:
    """Make a training at a point of the search for each seed."""
    jobs = []
    for seed in seeds:
        line = (*train_flags, *flags({**settings_of(values), "seed": seed}))
        name, run = f"{folder.name} seed{seed}", folder / f"seed{seed}"
        jobs.append(Job(name, "rl.train", line, run, "mean_return"))
    return jobs


def _fresh_returns(jobs: Sequence[Job]) -> Document:
    """Return what ``final.json`` holds of the finished trainings with fresh seeds."""
    returns = list[float]()
    for job in jobs:
        score = job.score() if job.finished else None
        if score is None:
            raise InputError(
                f"{job.run}: this fresh seed of the choice has no return; {job.log} says why, and the same "
                "command tries again"
            )
        returns.append(score)
    return {
        "fresh_returns": returns,
        "fresh_mean_return": statistics.fmean(returns),
        "fresh_std_return": statistics.stdev(returns) if len(returns) > 1 else None,
    }


def settings_of(values: dict[str, float]) -> dict[str, float]:
    """Return a point as settings of ``rl.train``."""
    settings = {**values, "ent_coef": float(f"{10 ** values[LOG_COEFFICIENT]:.4g}")}
    del settings[LOG_COEFFICIENT]
    return settings


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; ``arguments`` are those of the process when None."""
    line = sys.argv[1:] if arguments is None else arguments
    settings = parse_search(TuneConfig, TrainConfig, "rl.tune", "rl.train", _EXAMPLES, line)
    tune(*settings, line)


if __name__ == "__main__":
    run_command(main)
