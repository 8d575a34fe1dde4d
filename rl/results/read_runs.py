"""What runs of ``rl.train`` have come to: read from their folders, as raw numbers (CSV) and as a table (Markdown)."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dem_apps.errors import InputError, printable
from dem_apps.runtime.checkpoint import write_atomically
from dem_apps.runtime.load_state import required
from dem_apps.runtime.run_folder import read_config, read_metrics
from dem_apps.runtime.safe_io import read_json
from dem_apps.runtime.settings import to_dict
from rl.config import TrainConfig
from rl.results.statistics import improvement, improvement_interval, iqm, iqm_interval

#: Both are reported everywhere: one and the same policy can score very differently under the two.
ACTIONS = ("sampled", "greedy")
_FIGURES = ("mean_return", "std_return", "success_rate", "mean_length")
#: Settings that do not make two runs different arms: what is compared over, how long, how it is looked at, and where.
_NOT_OF_THE_ARM = (
    "env", "seed", "timesteps", "hyperparameters", "hyperparameters_file", "eval_freq", "eval_episodes", "run_dir",
    "resume", "device", "threads", "loss", "video", "trust_pickled_code",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """A finished run.

    Args:
        run: its folder.
        arm: what it is compared as.
        config: its settings.
        scores: its ``eval.json``.
        curve: step and mean return (sampled, greedy) of each evaluation during training.
    """

    run: Path
    arm: str
    config: dict[str, Any]
    scores: dict[str, Any]
    curve: dict[int, tuple[float, float]]

    @property
    def env(self) -> str:
        """The environment's name."""
        return str(self.config["env"])

    @property
    def seed(self) -> int:
        """The seed of the training."""
        return int(self.config["seed"])


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


def read_results(runs: Sequence[Path], arms: Sequence[str] | None = None) -> list[Result]:
    """Read finished runs.

    Args:
        runs: their folders.
        arms: a name per run; None names them after their loss and whatever else tells runs of one loss apart.

    Raises:
        InputError: not a run of rl.train, or two runs of one environment, arm and seed.
    """
    configs = [read_config(run) for run in runs]
    for run, config in zip(runs, configs, strict=True):
        if not {"env", "loss", "seed"} <= config.keys():
            raise InputError(f"{run}: not a run of rl.train (its config.yaml has no env, loss and seed)")
        required(config, str(run / "config.yaml"), env=str, loss=str, seed=int)
    names = _arm_names(configs) if arms is None else arms
    results = [
        Result(run, name, config, _scores(run / "eval.json"), _curve(run))
        for run, name, config in zip(runs, names, configs, strict=True)
    ]
    seen: dict[tuple[str, str, int], Path] = {}
    for result in results:
        other = seen.setdefault((result.env, result.arm, result.seed), result.run)
        if other != result.run:
            raise InputError(
                f"{other} and {result.run}: both are {result.env}, '{result.arm}', seed {result.seed}; leave one out"
            )
    return results


def write_runs(path: Path, results: Sequence[Result]) -> None:
    """A CSV line per run: what it was, then the figures of its last and its best policy at full precision."""
    rows = []
    for result in results:
        row = {"env": result.env, "arm": result.arm, "seed": result.seed}
        row |= {key: result.config.get(key) for key in ("algo", "loss", "ent_coef", "timesteps")}
        row["episodes"] = result.scores.get("episodes")
        for policy, scores in (("last", result.scores), ("best", result.scores["best"])):
            row[f"{policy}_step"] = scores["step"]
            row |= {f"{policy}_{name}_{actions}": scores[actions][name] for actions in ACTIONS for name in _FIGURES}
        rows.append(row)
    _write_csv(path, rows)


def write_curves(path: Path, results: Sequence[Result]) -> None:
    """A CSV line per evaluation during training: what the figures are drawn from."""
    rows = [
        {"env": result.env, "arm": result.arm, "seed": result.seed, "step": step, "sampled": both[0], "greedy": both[1]}
        for result in results
        for step, both in result.curve.items()
    ]
    _write_csv(path, rows)


def select(results: Sequence[Result], env: str, arm: str) -> list[Result]:
    """The runs of one environment and arm."""
    return [result for result in results if (result.env, result.arm) == (env, arm)]


def names(results: Sequence[Result]) -> tuple[list[str], list[str]]:
    """Environments and arms, in the order in which they first appear."""
    return list(dict.fromkeys(r.env for r in results)), list(dict.fromkeys(r.arm for r in results))


def returns(results: Sequence[Result], actions: str) -> np.ndarray:
    """(S,) mean returns of the last policies."""
    return np.array([result.scores[actions]["mean_return"] for result in results])


def markdown_table(results: Sequence[Result], baseline: str | None) -> str:
    """The last policies, a row per environment and arm, then a row per arm over all environments.

    Args:
        results: finished runs.
        baseline: the arm that the others are compared with; None leaves the comparison out.
    """
    envs, arms = names(results)
    columns = ["environment", "arm", "seeds"]
    for actions in ACTIONS:
        columns += [f"{actions}: mean ± std", "IQM [95 %]", f"P(> {baseline}) [95 %]"][: 3 if baseline else 2]
    lines = [_row(columns), _row(["---"] * len(columns))]
    for env in envs:
        for arm in arms:
            group = select(results, env, arm)
            if group:
                lines.append(_row([short(env), arm, str(len(group)), *_figures(results, [env], arm, baseline)]))
    for arm in arms:
        shared = [env for env in envs if select(results, env, arm)]
        if len(shared) > 1:
            of = f"all {len(shared)}" if len(shared) == len(envs) else f"{len(shared)} of {len(envs)}"
            count = sum(len(select(results, env, arm)) for env in shared)
            lines.append(_row([of, arm, str(count), *_figures(results, shared, arm, baseline)]))
    return "\n".join(lines) + "\n"


def short(env: str) -> str:
    """An environment's name without what all MiniGrid names share."""
    return env.removeprefix("MiniGrid-").removesuffix("-v0")


def _figures(results: Sequence[Result], envs: Sequence[str], arm: str, baseline: str | None) -> list[str]:
    cells = []
    for actions in ACTIONS:
        groups = [select(results, env, arm) for env in envs]
        tasks = [returns(group, actions) for group in groups]
        cells.append(_pooled(groups[0], actions) if len(envs) == 1 else "")
        low, high = iqm_interval(tasks)
        interval = f" [{low:.3f}, {high:.3f}]" if min(map(len, tasks)) > 1 else ""
        cells.append(f"{iqm(np.concatenate(tasks)):.3f}{interval}")
        if baseline is not None:
            others = [returns(select(results, env, baseline), actions) for env in envs]
            cells.append("" if arm == baseline else _improvement(tasks, others))
    return cells


def _pooled(group: Sequence[Result], actions: str) -> str:
    """Mean and standard deviation (divisor n) of the return over every episode of every seed."""
    means = returns(group, actions)
    variances = np.array([result.scores[actions]["std_return"] for result in group]) ** 2
    return f"{means.mean():.3f} ± {np.sqrt(variances.mean() + means.var()):.3f}"


def _improvement(tasks: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> str:
    if not all(map(len, others)):
        return "no baseline"
    low, high = improvement_interval(tasks, others)
    interval = f" [{low:.2f}, {high:.2f}]" if min(map(len, [*tasks, *others])) > 1 else ""
    return f"{improvement(tasks, others):.2f}{interval}"


def _scores(file: Path) -> dict[str, Any]:
    """An ``eval.json`` of ``rl.train`` with every figure that tables need."""
    scores: dict[str, Any] = read_json(file)
    required(scores, str(file), best=dict)
    for policy, where in ((scores, str(file)), (scores["best"], f"{file}, best")):
        required(policy, where, step=int, **dict.fromkeys(ACTIONS, dict))
        for actions in ACTIONS:
            required(policy[actions], f"{where}, {actions}", **dict.fromkeys(_FIGURES, (float, int)))
            if not all(math.isfinite(policy[actions][name]) for name in _FIGURES):
                raise InputError(f"{where}, {actions}: holds NaN or infinite figures")
    return scores


def _arm_names(configs: Sequence[dict[str, Any]]) -> list[str]:
    # a run that is older than a setting was trained with what is its default now
    configs = [{**to_dict(TrainConfig()), **config} for config in configs]
    keys = dict.fromkeys(key for config in configs for key in config if key not in _NOT_OF_THE_ARM)
    arms = []
    for config in configs:
        alike = [other for other in configs if other["loss"] == config["loss"]]
        telling = [key for key in keys if any(other.get(key) != config.get(key) for other in alike)]
        parts = (f"{key.replace('_', '-')} {config.get(key)}" for key in telling if config.get(key) is not None)
        arms.append(", ".join([str(config["loss"]), *parts]))
    return arms


def _curve(run: Path) -> dict[int, tuple[float, float]]:
    keys = [f"eval/mean_return_{actions}" for actions in ACTIONS]
    lines = [line for line in read_metrics(run) if all(_is_figure(line.get(key)) for key in keys)]
    return {line["step"]: (line[keys[0]], line[keys[1]]) for line in lines}


def _is_figure(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def _row(cells: Sequence[str]) -> str:
    # a name may be anybody's, and the table is printed
    return f"| {' | '.join(printable(cell).replace('|', '/') for cell in cells)} |"
