"""What runs of ``rl.train`` have come to, read from their folders or from the CSV files of an earlier report."""

from __future__ import annotations

import csv
import io
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError
from dem_apps.report.text_tables import write_csv
from dem_apps.runtime.files import read_text, required
from dem_apps.runtime.run_reader import Run, read_run
from dem_apps.runtime.settings import to_dict
from rl.config import TrainConfig, consequential
from rl.envs.families import goal_return
from rl.results.described_metrics import ACTIONS
from rl.results.time_to_goal import GoalTime, goal_time

_FIGURES = ("mean_return", "std_return", "success_rate", "mean_length")
#: Settings that do not make two runs different arms: what is compared over, how long, how it is looked at, and where.
_NOT_OF_THE_ARM = (
    "env", "seed", "timesteps", "hyperparameters", "hyperparameters_file", "eval_freq", "eval_episodes",
    "final_episodes", "run_dir", "resume", "device", "threads", "loss", "video", "trust_pickled_code", "goal_return",
)  # fmt: skip

#: A column of ``curves.csv`` that those of earlier versions do not have.
_ENTROPY = "policy_entropy"
#: Before what an environment's entry decides, in names of arms.
_ITS = "its "


@dataclass(frozen=True)
class Result:
    """A finished run.

    Args:
        env: the environment's name.
        arm: what it is compared as.
        seed: of the training.
        returns: mean return of the last policy, by kind of actions.
        curve: step and mean return (sampled, greedy) of each evaluation during training; not all have the second.
        row: its line of ``runs.csv``.
        where: its folder or file, for messages.
        goal: when it reached the goal, or for how long it did not; None without a goal or an evaluation.
        policy_entropy: of the rollout before each evaluation, nats; empty where nobody logged it.
    """

    env: str
    arm: str
    seed: int
    returns: dict[str, float]
    curve: dict[int, tuple[float, float | None]]
    row: dict[str, Any]
    where: Path
    goal: GoalTime | None = None
    policy_entropy: dict[int, float] = field(default_factory=dict)

    def returns_under(self, actions: str) -> dict[int, float]:
        """The curve of one kind of actions, without the evaluations that did not have it."""
        index = ACTIONS.index(actions)
        return {step: value for step, both in self.curve.items() if (value := both[index]) is not None}


def find_results(paths: Iterable[Path]) -> list[Result]:
    """The results in files ``…runs.csv`` of earlier reports, and of the finished runs in or below folders.

    Raises:
        InputError: see :func:`find_runs`, :func:`read_results` and :func:`read_csv`.
    """
    files = dict.fromkeys(path for path in paths if path.suffix == ".csv")
    folders = [path for path in paths if path.suffix != ".csv"]
    results = [result for file in files for result in read_csv(file)]
    return _each_once([*results, *(read_results(find_runs(folders)) if folders else ())])


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The finished runs in or below the given folders, each once.

    Raises:
        InputError: a folder that is missing, or that has no finished run.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path}: no such folder; expected a run of rl.train or a folder of runs")
        runs = sorted(file.parent for file in path.rglob("eval.json") if (file.parent / "config.yaml").is_file())
        if not runs:
            raise InputError(f"{path}: no finished run in or below it (a finished one has an eval.json)")
        found.update(dict.fromkeys(runs))
    return list(found)


def read_results(paths: Sequence[Path], arms: Sequence[str] | None = None) -> list[Result]:
    """Read finished runs.

    Args:
        paths: their folders.
        arms: a name per run; None names them after their loss and whatever else tells runs of one loss apart.

    Raises:
        InputError: not a run of rl.train, or two runs of one environment, arm and seed.
    """
    runs = [read_run(path) for path in paths]
    for run in runs:
        run.require("config.yaml")
        if not {"env", "loss", "seed"} <= run.config.keys():
            raise InputError(f"{run.path}: not a run of rl.train (its config.yaml has no env, loss and seed)")
        required(run.config, str(run.path / "config.yaml"), env=str, loss=str, seed=int)
        run.require("eval.json", "metrics.jsonl")
    names = _arm_names([run.config for run in runs]) if arms is None else arms
    return _each_once([_result(run, arm) for run, arm in zip(runs, names, strict=True)])


def read_csv(file: Path) -> list[Result]:
    """What :func:`write_runs` and :func:`write_curves` wrote, the second into the same name with ``curves``.

    Raises:
        InputError: a file that cannot be read, a column that is missing, or a figure that is not finite.
    """
    curves: dict[tuple[str, str, int], dict[int, tuple[float, float | None]]] = {}
    entropies: dict[tuple[str, str, int], dict[int, float]] = {}
    name = "curves".join(file.name.rsplit("runs", 1))  # the folder's own name may hold the word as well
    for line in _rows(file.with_name(name), ("seed", "step", *ACTIONS), ("greedy",), (_ENTROPY,)):
        key = line["env"], line["arm"], line["seed"]
        curves.setdefault(key, {})[line["step"]] = line["sampled"], line["greedy"]
        if line[_ENTROPY] is not None:
            entropies.setdefault(key, {})[line["step"]] = line[_ENTROPY]
    columns = {actions: f"last_mean_return_{actions}" for actions in ACTIONS}
    results = []
    for row in _rows(file, ("seed", *columns.values())):
        key = row["env"], row["arm"], row["seed"]
        curve = curves.get(key, {})
        goal = _goal_of(row, curve, row.get("goal_return") or None, str(file))
        returns = {actions: row[name] for actions, name in columns.items()}
        results.append(Result(*key, returns, curve, row, file, goal, entropies.get(key, {})))
    return results


def write_runs(path: Path, results: Sequence[Result]) -> None:
    """A CSV line per run: what it was, then the figures of its last and its best policy at full precision."""
    write_csv(path, [result.row for result in results])


def write_curves(path: Path, results: Sequence[Result]) -> None:
    """A CSV line per evaluation during training: what the figures are drawn from."""
    rows = [
        {
            "env": result.env, "arm": result.arm, "seed": result.seed, "step": step, "sampled": both[0],
            "greedy": both[1], _ENTROPY: result.policy_entropy.get(step),
        }
        for result in results
        for step, both in result.curve.items()
    ]  # fmt: skip
    write_csv(path, rows)


def select(results: Sequence[Result], env: str, arm: str) -> list[Result]:
    """The runs of one environment and arm."""
    return [result for result in results if (result.env, result.arm) == (env, arm)]


def names(results: Sequence[Result]) -> tuple[list[str], list[str]]:
    """Environments and arms, in the order in which they first appear."""
    return list(dict.fromkeys(r.env for r in results)), list(dict.fromkeys(r.arm for r in results))


def _result(run: Run, arm: str) -> Result:
    scores = run.evaluation
    _check_scores(scores, str(run.path / "eval.json"))
    row = {"env": run.config["env"], "arm": arm, "seed": run.config["seed"]}
    row |= {key: run.config.get(key) for key in ("algo", "loss", "ent_coef", "timesteps")}
    row["episodes"] = scores.get("episodes")
    for policy, figures in (("last", scores), ("best", scores["best"])):
        row[f"{policy}_step"] = figures["step"]
        row |= {f"{policy}_{name}_{actions}": figures[actions][name] for actions in ACTIONS for name in _FIGURES}
    sampled, greedy = (dict(zip(*run.curve(f"eval/mean_return_{actions}"), strict=True)) for actions in ACTIONS)
    curve = {step: (value, greedy.get(step)) for step, value in sampled.items()}
    goal = _goal_of(row, curve, run.config.get("goal_return"), str(run.path / "config.yaml"))
    returns = {actions: scores[actions]["mean_return"] for actions in ACTIONS}
    return Result(row["env"], arm, row["seed"], returns, curve, row, run.path, goal, _entropies(run, curve))


def _entropies(run: Run, evaluated: Iterable[int]) -> dict[int, float]:
    """The entropy that was logged last at or before each of the steps."""
    logged, values = run.curve("train/policy_entropy")
    before = {step: bisect_right(logged, step) for step in evaluated}
    return {step: values[count - 1] for step, count in before.items() if count}


def _goal_of(
    row: dict[str, Any], curve: Mapping[int, tuple[float, float | None]], goal: Any, where: str
) -> GoalTime | None:
    """When a run arrived, said in its row as well; runs that are older than the setting have the environment's goal."""
    try:
        goal = goal_return(row["env"]) if goal is None else float(goal)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: goal_return is {goal!r:.50} and no number") from error
    time = (
        goal_time({step: sampled for step, (sampled, _) in curve.items()}, goal) if goal is not None and curve else None
    )
    row |= {"goal_return": goal, "steps_to_goal": time.steps if time is not None and time.reached else None}
    return time


def _check_scores(scores: dict[str, Any], file: str) -> None:
    """Refuse an ``eval.json`` that lacks a figure that tables need."""
    required(scores, file, best=dict)
    for policy, where in ((scores, file), (scores["best"], f"{file}, best")):
        required(policy, where, step=int, **dict.fromkeys(ACTIONS, dict))
        for actions in ACTIONS:
            required(policy[actions], f"{where}, {actions}", **dict.fromkeys(_FIGURES, (float, int)))
            if not all(math.isfinite(policy[actions][name]) for name in _FIGURES):
                raise InputError(f"{where}, {actions}: holds NaN or infinite figures")


def _each_once(results: list[Result]) -> list[Result]:
    seen: dict[tuple[str, str, int], Path] = {}
    for result in results:
        key = result.env, result.arm, result.seed
        if key in seen:
            raise InputError(
                f"{seen[key]} and {result.where}: both are {result.env}, '{result.arm}', seed {result.seed}; "
                "leave one out"
            )
        seen[key] = result.where
    return results


def _arm_names(configs: Sequence[dict[str, Any]]) -> list[str]:
    # a run that is older than a setting was trained with what is its default now
    configs = [{**to_dict(TrainConfig()), **config} for config in configs]
    configs = [{**kept, **_training_of(kept)} for kept in map(consequential, configs)]
    keys = dict.fromkeys(key for config in configs for key in config if key not in _NOT_OF_THE_ARM)
    arms = []
    for config in configs:
        alike = [other for other in configs if other["loss"] == config["loss"]]
        # environments have lengths and hyperparameters of their own, so these are compared within one
        here = [other for other in alike if other["env"] == config["env"]]
        telling = [
            key for key in keys
            if any(other.get(key) != config.get(key) for other in (here if key.startswith(_ITS) else alike))
        ]  # fmt: skip
        parts = (f"{key.replace('_', '-')} {config.get(key)}" for key in telling if config.get(key) is not None)
        arms.append(", ".join([str(config["loss"]), *parts]))
    return arms


def _training_of(config: dict[str, Any]) -> dict[str, Any]:
    """What an environment's entry says of a training, a key each: its length and its hyperparameters."""
    entry = config.get("hyperparameters")
    known = entry if isinstance(entry, dict) else {}
    return {f"{_ITS}{key}": value for key, value in {"steps": config.get("timesteps"), **known}.items()}


def _rows(
    file: Path, numbers: Sequence[str], may_be_empty: Sequence[str] = (), may_be_missing: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The lines of a CSV file; the columns named as finite numbers, or None where they may be empty, or be missing."""
    rows: list[dict[str, Any]] = list(csv.DictReader(io.StringIO(read_text(file), newline="")))
    for position, row in enumerate(rows, start=2):
        for name in ("env", "arm", *numbers):
            if row.get(name) is None:
                raise InputError(f"{file}, line {position}: has no column '{name}'; expected a CSV file of rl.plots")
        row |= {name: None for name in (*may_be_empty, *may_be_missing) if not row.get(name)}
        given = [name for name in (*numbers, *may_be_missing) if row[name] is not None]
        try:
            row |= {name: int(row[name]) if name in ("seed", "step") else float(row[name]) for name in given}
        except ValueError as error:
            raise InputError(f"{file}, line {position}: {error}") from error
        if not all(math.isfinite(row[name]) for name in given):
            raise InputError(f"{file}, line {position}: holds NaN or infinite figures")
    return rows
