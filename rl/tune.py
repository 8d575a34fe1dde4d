"""``python -m rl.tune``: search the weight of the entropy term and the objective's options, several seeds per trial.

A trial trains one seed after another and may be pruned in between. The best of many noisy scores is an optimistic
number, so the choice is trained again with seeds that no trial has used.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from dem_apps.errors import InputError
from dem_apps.jobs.executor import ONE_THREAD, Job, SearchConfig, parse_search
from dem_apps.jobs.grid import run_jobs
from dem_apps.objectives import OBJECTIVE_NAMES, objective_options
from dem_apps.runtime.arguments import flags, of_machine
from dem_apps.runtime.command import run_command
from dem_apps.runtime.files import write_atomically, write_json
from dem_apps.runtime.settings import option
from dem_apps.runtime.signals import command_line
from rl.config import TrainConfig, resolve

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from dem_apps.jobs.search import Space

_EXAMPLE = "python -m rl.tune --train.env MiniGrid-DoorKey-5x5-v0 --train.loss adadem --trials 20 --study-dir runs/tune"
#: The weight of the entropy term is searched as its logarithm.
LOG_COEFFICIENT = "log10_ent_coef"
#: Low end, high end and step: quarters of a decade from 0.0001 to 0.1, quarters of the objectives' options.
_RANGES = {LOG_COEFFICIENT: (-4.0, -1.0, 0.25), "tau": (0.25, 2.0, 0.25), "alpha": (0.0, 2.0, 0.25)}
#: Where the search begins: rl.train's own weight and the objectives' own options.
_FIRST = {LOG_COEFFICIENT: -3.0, "tau": 1.0, "alpha": 1.0}
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
        3, "seeds of a trial: --train.seed and the next ones", at_least=1, at_most=_FRESH
    )
    final_seeds: int = option(
        5, "fresh seeds that the choice is trained with in the end", at_least=1, at_most=10_000
    )


def search_space(config: TrainConfig) -> Space:
    """The grid for a loss: its weight, and its options that were not given; an InputError for 'none'."""
    from dem_apps.jobs.search import Space, dem_allows

    if config.loss == "none":
        raise InputError(
            "--train.loss: 'none' has nothing to search; expected an entropy term such as adadem"
        )
    # rl's own terms have none to set
    known = objective_options(config.loss) if config.loss in OBJECTIVE_NAMES else []
    options = [name for name in known if name in _RANGES and getattr(config, name) is None]
    given = {
        name: 1.0 if getattr(config, name) is None else getattr(config, name)
        for name in ("tau", "alpha")
    }
    ranges = {name: _RANGES[name] for name in (LOG_COEFFICIENT, *options)}
    return Space(ranges, lambda values: config.loss != "dem" or dem_allows({**given, **values}))


def tune(
    config: TuneConfig,
    train: TrainConfig,
    train_flags: Sequence[str],
    arguments: Sequence[str] = (),
    module: str = "rl.train",
) -> Path:
    """Run or continue a study, train the choice with fresh seeds, and return the study's folder.

    ``train``, made from ``train_flags``, is what every trial trains with apart from the point and the seed. The command
    with ``arguments`` continues the study. Raises InputError: settings that do not fit, no trial with a score.
    """
    from dem_apps.jobs.search import (
        Plan,
        best_trial,
        opened_study,
        print_trials,
        refuse_given,
        run_search,
    )

    refuse_given(train, ent_coef="the search finds it")
    resolved, space = resolve(train), search_space(train)
    first_point = {name: _FIRST[name] for name in space.ranges}
    plan = Plan(space, first_point, min(config.trials, len(space.points())), train.seed, "return")

    def jobs(
        folder: Path, values: dict[str, float], first: int = train.seed, seeds: int = config.seeds
    ) -> list[Job]:
        return [
            Job(
                f"{folder.name} seed{seed}",
                module,
                (*train_flags, *flags(settings_of(values) | {"seed": seed})),
                folder / f"seed{seed}",
                "mean_return",
            )
            for seed in range(first, first + seeds)
        ]

    compared = {"score": "mean_return", "seeds": config.seeds, "train": asdict(resolved)}
    with opened_study("rl.tune", arguments, config, compared, of_machine(TrainConfig)) as (
        path,
        study,
    ):
        print(
            f"search   {', '.join(space.ranges)} of {train.loss} on {train.env}, {plan.trials} trials of "
            f"{config.seeds} seeds, {resolved.timesteps:,} steps each\nstudy    {path}",
            flush=True,
        )
        run_search(path, study, config, plan, jobs, ONE_THREAD)
        best, first = best_trial(path, study), train.seed + _FRESH
        judged = jobs(path / "final" / f"{best.number:04d}", best.params, first, config.final_seeds)
        failures, returns = run_jobs(judged, config, ONE_THREAD), list[float]()
        for job in judged:
            if (score := job.score()) is None:
                why = failures.get(
                    job.name,
                    "another process trains it; give this command again when that has ended",
                )
                raise InputError(
                    f"{path}: a fresh seed of the choice has no return ({job.name}: {why})"
                )
            returns.append(score)
        print_trials(study, "return")
        fresh = list(range(first, first + config.final_seeds))
        _write_results(path, len(study.trials), best, config.seeds, fresh, returns, train)
        print(
            f"next     {command_line('rl.train', [*train_flags, '--config', str(path / 'best.yaml')])}"
        )
    return path


def _write_results(
    path: Path,
    trials: int,
    best: FrozenTrial,
    seeds: int,
    fresh: list[int],
    returns: list[float],
    train: TrainConfig,
) -> None:
    """Write ``final.json`` and ``best.yaml``, and print the choice and its returns."""
    settings = settings_of(best.params)
    mean, std = statistics.fmean(returns), statistics.stdev(returns) if len(returns) > 1 else None
    final = {
        "trial": best.number,
        **settings,
        "search_return": best.value,
        "search_seeds": seeds,
        "trials": trials,
        "fresh_seeds": fresh,
        "fresh_returns": returns,
        "fresh_mean_return": mean,
        "fresh_std_return": std,
    }
    write_json(path / "final.json", final)
    text = (
        f"# The best of {trials} trials: return {best.value:.4f} in the search, {mean:.4f} with fresh seeds.\n"
        f"# python -m rl.train --config THIS_FILE\n{yaml.safe_dump({'loss': train.loss, **settings}, sort_keys=False)}"
    )
    write_atomically(path / "best.yaml", text.encode())
    print(
        f"choice   {', '.join(f'{name} {value:g}' for name, value in settings.items())}\n"
        f"search   return {best.value:.4f} over {seeds} seeds (the highest of {trials} trials, so too high)\n"
        f"fresh    return {mean:.4f}{'' if std is None else f' ± {std:.4f}'} over {len(returns)} new seeds\n"
        f"files    {path}: best.yaml, final.json, trials.csv"
    )


def settings_of(values: dict[str, float]) -> dict[str, float]:
    """A point as settings of ``rl.train``."""
    settings = {name: value for name, value in values.items() if name != LOG_COEFFICIENT}
    return {**settings, "ent_coef": float(f"{10 ** values[LOG_COEFFICIENT]:.4g}")}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; ``arguments`` are those of the process when None."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    config, train, given = parse_search(
        TuneConfig, TrainConfig, "rl.tune", "rl.train", _EXAMPLE, arguments
    )
    tune(config, train, given, arguments)


if __name__ == "__main__":
    run_command(main)
