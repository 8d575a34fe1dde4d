"""``python -m rl.tune``: search the weight of the entropy term and the objective's options, several seeds per trial.

A trial trains one seed after another and may be pruned in between (:mod:`dem_apps.jobs.tune`). The best of many noisy
scores is an optimistic number, so the choice is trained again with seeds that no trial has used.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from dem_apps.errors import InputError
from dem_apps.jobs.executor import Executor, one_thread
from dem_apps.jobs.executors import build_executor
from dem_apps.jobs.grid import run_grid
from dem_apps.jobs.job import Job, flags, settings_flags
from dem_apps.jobs.progress import GridProgress
from dem_apps.jobs.search import Space, TPEPlan, Values, best_trial, dem_allows, score, scored
from dem_apps.jobs.search_report import trials_table, write_trials
from dem_apps.jobs.study import StudyFolder
from dem_apps.jobs.tune import SearchConfig, run_command_of, run_search
from dem_apps.objectives import objective_options
from dem_apps.runtime.checkpoint import write_atomically
from dem_apps.runtime.command import run_command
from dem_apps.runtime.run_claim import new_run_dir
from dem_apps.runtime.settings import option, parse_search, to_dict
from dem_apps.runtime.terminal import console
from dem_apps.runtime.validate import check_settings
from rl.config import TrainConfig, import_environments, refuse_module_of_a_file, resolve

_EXAMPLE = "python -m rl.tune --train.env MiniGrid-DoorKey-5x5-v0 --train.loss adadem --trials 20 --study-dir runs/tune"
#: The weight of the entropy term is searched as its logarithm.
LOG_COEFFICIENT = "log10_ent_coef"
#: Quarters of a decade from 0.0001 to 0.1.
_COEFFICIENTS = FloatDistribution(-4.0, -1.0, step=0.25)
_OPTIONS = {
    "tau": FloatDistribution(0.25, 2.0, step=0.25),
    "alpha": FloatDistribution(0.0, 2.0, step=0.25),
}
#: Where the search begins: rl.train's own weight and the objectives' own options.
_FIRST = {LOG_COEFFICIENT: -3.0, "tau": 1.0, "alpha": 1.0}
#: From a trial's first seed to the first of the seeds that the choice is judged with.
_FRESH = 1000


@dataclass(frozen=True)
class TuneConfig(SearchConfig):
    """Search ent_coef and the options of the objective, then train the choice again with fresh seeds.

    --config is a file of rl.train, and --train.FLAG is any flag of rl.train (see python -m rl.train --help), such as
    --train.env; an option that is given so is not searched. The same command again continues the study in --study-dir.
    """

    trials: int = option(20, "trials of the study, pruned and failed ones included", at_least=1, group="search")
    seeds: int = option(3, "seeds of a trial: --train.seed and the next ones", at_least=1, at_most=_FRESH)
    final_seeds: int = option(5, "fresh seeds that the choice is trained with in the end", at_least=1, at_most=10_000)


def search_space(config: TrainConfig) -> Space:
    """The grid for a loss: its weight, and those of its options that were not given.

    Raises:
        InputError: a loss that has no weight to search.
    """
    if config.loss == "none":
        raise InputError("--train.loss: 'none' has nothing to search; expected an entropy term such as adadem")
    searched = [name for name in objective_options(config.loss) if name in _OPTIONS and getattr(config, name) is None]
    space = {LOG_COEFFICIENT: _COEFFICIENTS, **{name: _OPTIONS[name] for name in searched}}

    def allowed(values: Values) -> bool:
        given = {name: 1.0 if getattr(config, name) is None else getattr(config, name) for name in ("tau", "alpha")}
        return config.loss != "dem" or dem_allows({**given, **values})

    return Space(space, allowed)


def tune(config: TuneConfig, train: TrainConfig, train_flags: Sequence[str], module: str = "rl.train") -> Path:
    """Run or continue a study, train the choice with fresh seeds, and return the study's folder.

    Args:
        config: of the study.
        train: what every trial trains with, apart from the point and the seed.
        train_flags: the flags that made ``train``.
        module: what trains.

    Raises:
        InputError: settings that do not fit, a folder of another study, no trial with a score.
    """
    _check(config, train)
    resolved = resolve(train)
    space = search_space(train)
    path = Path(config.study_dir) if config.study_dir else new_run_dir("rl", "tune")
    settings = {"score": "mean_return", "seeds": config.seeds, "train": to_dict(resolved)}
    folder = StudyFolder(path, settings, config.storage)
    plan = TPEPlan(space, config.trials, train.seed, first=({name: _FIRST[name] for name in space.distributions},))
    print(
        f"search   {', '.join(space.distributions)} of {train.loss} on {train.env}, {plan.most} trials of "
        f"{config.seeds} seeds, {resolved.timesteps:,} steps each\nstudy    {path}",
        flush=True,
    )
    jobs = SeededJobs(module, resolved)
    run_search(
        folder, space, plan, lambda run, values: jobs(run, values, train.seed, config.seeds), _executor(config, path),
        config.workers, lambda trials: write_trials(path / "trials.csv", space, trials, "return"),
    )  # fmt: skip
    _judge(config, folder, jobs, resolved)
    _print_results(folder, space, train_flags)
    return path


@dataclass(frozen=True)
class SeededJobs:
    """The trainings of a point, one per seed.

    Args:
        module: what trains.
        settings: what all trainings share, resolved.
    """

    module: str
    settings: TrainConfig

    def __call__(self, folder: Path, values: Values, first_seed: int, seeds: int) -> list[Job]:
        """Trainings with ``seeds`` seeds from ``first_seed`` on, in ``folder/seedN``."""
        shared, steps = settings_flags(self.settings), self.settings.timesteps or 0
        chosen = [settings_of(values) | {"seed": first_seed + index} for index in range(seeds)]
        return [
            Job(
                f"{folder.name} seed {point['seed']}", self.module, (*shared, *flags(point)),
                folder / f"seed{point['seed']}", steps, "mean_return",
            )
            for point in chosen
        ]  # fmt: skip


def _judge(config: TuneConfig, folder: StudyFolder, jobs_of: SeededJobs, train: TrainConfig) -> None:
    """Train the best point with fresh seeds; ``best.yaml`` and ``final.json``."""
    best = _best(folder)
    first = train.seed + _FRESH
    jobs = jobs_of(folder.path / "final" / f"{best.number:04d}", dict(best.params), first, config.final_seeds)
    cells = {("choice", "fresh seeds"): jobs}
    failures = run_grid(cells, _executor(config, folder.path), config.workers, GridProgress(cells, console()))
    if failures:
        name, failure = next(iter(failures.items()))
        raise InputError(f"{folder.path}: the choice could not be trained with fresh seeds ({name}: {failure})")
    returns = [value for job in jobs if (value := job.score()) is not None]
    seeds = list(range(first, first + config.final_seeds))
    document = {
        "trial": best.number, **settings_of(best.params), "search_return": score(best), "search_seeds": config.seeds,
        "trials": len(folder.trials()), "fresh_seeds": seeds, "fresh_returns": returns,
        "fresh_mean_return": statistics.fmean(returns),
        "fresh_std_return": statistics.stdev(returns) if len(returns) > 1 else None,
    }  # fmt: skip
    with folder.locked():
        write_atomically(folder.path / "final.json", (json.dumps(document, indent=2) + "\n").encode())
        write_atomically(folder.path / "best.yaml", _best_yaml(document, train.loss, best.params))


def _best_yaml(final: dict[str, Any], loss: str, values: Values) -> bytes:
    settings = {"loss": loss, **settings_of(values)}
    return (
        f"# The best of {final['trials']} trials: return {final['search_return']:.4f} in the search, "
        f"{final['fresh_mean_return']:.4f} with {len(final['fresh_seeds'])} fresh seeds.\n"
        f"# python -m rl.train --config THIS_FILE\n{yaml.safe_dump(settings, sort_keys=False)}"
    ).encode()


def settings_of(values: Values) -> dict[str, float]:
    """A point as settings of ``rl.train``."""
    settings = {name: value for name, value in values.items() if name != LOG_COEFFICIENT}
    if LOG_COEFFICIENT in values:
        settings["ent_coef"] = float(f"{10 ** values[LOG_COEFFICIENT]:.4g}")
    return settings


def _print_results(folder: StudyFolder, space: Space, train_flags: Sequence[str]) -> None:
    trials = folder.trials()
    final = json.loads((folder.path / "final.json").read_text())
    pruned = sum(trial.state == TrialState.PRUNED for trial in trials)
    title = f"{len(scored(trials))} of {len(trials)} trials scored, {pruned} pruned"
    console().print(trials_table(space, trials, "return", title))
    chosen = ", ".join(f"{name} {value:g}" for name, value in settings_of(_best(folder).params).items())
    spread = "" if final["fresh_std_return"] is None else f" ± {final['fresh_std_return']:.4f}"
    command = ["python", "-m", "rl.train", *train_flags, "--config", str(folder.path / "best.yaml")]
    print(
        f"choice   {chosen}\n"
        f"search   return {final['search_return']:.4f} over {final['search_seeds']} seeds (the highest of "
        f"{len(scored(trials))}, so too high)\n"
        f"fresh    return {final['fresh_mean_return']:.4f}{spread} over {len(final['fresh_seeds'])} new seeds\n"
        f"files    {folder.path}: best.yaml, final.json, trials.csv\n"
        f"next     {shlex.join(command)}"
    )


def _best(folder: StudyFolder) -> FrozenTrial:
    best = best_trial(folder.trials())
    if best is None:
        raise InputError(f"{folder.path}: no trial has a score; the logs in {folder.path / 'trials'} say why")
    return best


def _executor(config: TuneConfig, folder: Path) -> Executor:
    return build_executor(config, one_thread(), folder)


def _check(config: TuneConfig, train: TrainConfig) -> None:
    check_settings(config)
    if train.run_dir is not None:
        raise InputError("--train.run-dir: leave it out, each training has a folder of its own under --study-dir")
    if train.resume:
        raise InputError("--train.resume: leave it out, the same command again continues the study in --study-dir")
    if train.ent_coef != TrainConfig.ent_coef:
        raise InputError("--train.ent-coef: leave it out, the search finds it")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; ``arguments`` are those of the process when None."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    config, train, given = parse_search(TuneConfig, TrainConfig, "rl.tune", "rl.train", _EXAMPLE, arguments)
    import_environments(train.import_modules)
    if not any(argument in (train.env, f"--train.env={train.env}") for argument in arguments):
        refuse_module_of_a_file(train.env)
    run_command_of("rl.tune", config, arguments, lambda config: tune(config, train, given))


if __name__ == "__main__":
    run_command(main)
