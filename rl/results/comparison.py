"""Runs of rl.train compared over seeds: tables of returns and of times to the goal, and their figures.

A seed is the unit: its episodes share one policy. In the rows over several environments a seed's value is its mean over
them. The time to the goal is the step of the first evaluation at or above the goal; a run without one is censored at
its last evaluation. The share of runs that have arrived is Kaplan and Meier's estimate (JASA, 1958), and its summary
the restricted mean: the mean of min(T, τ), with τ no later than the end of every censored run.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from dem_apps.errors import InputError, nearest
from dem_apps.report.charts import mean_curve, style
from dem_apps.report.intervals import difference_interval, mean_interval
from dem_apps.report.runs import Run, differing, flat, read_run
from dem_apps.report.tables import markdown, write_csv
from dem_apps.runtime.files import write_atomically
from rl.envs.families import family_of
from rl.results.described_metrics import ACTIONS

NOTE = (
    "Mean over seeds, and the difference to the baseline, each with its 95 % CI: Student's t over seeds, of a "
    "difference over the differences seed by seed (Welch's where fewer than two seeds are shared). Bold: 0 lies "
    "outside. Time to the goal: steps until the mean return of an evaluation under sampled actions first is at the "
    "goal; the restricted mean is the mean of min(T, τ) over seeds. Nothing corrects for the number of comparisons.\n"
)
#: Settings that do not make two runs different arms.
_NOT_OF_THE_ARM = (
    "env", "seed", "timesteps", "eval_freq", "eval_episodes", "final_episodes", "run_dir", "resume", "device",
    "threads", "loss", "video", "goal_return", "import_modules", "hyperparameters_file",
)  # fmt: skip


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """The finished runs in or below the given folders, each once, the plain arms first.

    Raises:
        InputError: a folder that is missing, or that has no finished run of rl.train.
    """
    found: dict[Path, Run] = {}
    for path in paths:
        files = sorted(path.rglob("eval.json")) if path.is_dir() else []
        runs = [file.parent for file in files if (file.parent / "config.yaml").is_file()]
        if not runs:
            raise InputError(f"{path}: no finished run in or below it (a finished one has an eval.json)")
        found |= {run: read_run(run) for run in runs}
    order = {"none": 0, "entropy": 1}
    return sorted(found.values(), key=lambda run: (order.get(run.config["loss"], 2), str(run.path)))


def arm_names(runs: Sequence[Run]) -> list[str]:
    """A name per run: its loss, and what tells runs of one loss and environment apart."""
    names = []
    settings = [flat(run.config) for run in runs]
    for mine, run in zip(settings, runs, strict=True):
        alike = [theirs for theirs in settings if (theirs["loss"], theirs["env"]) == (mine["loss"], mine["env"])]
        keys = [key for key in differing(alike) if key.partition(".")[0] not in _NOT_OF_THE_ARM]
        names.append(", ".join([run.config["loss"], *(f"{key.replace('_', '-')} {mine.get(key)}" for key in keys)]))
    return names


class Comparison:
    """Runs by environment, arm and seed.

    Args:
        runs: finished runs.
        arms: a name for each.

    Raises:
        InputError: two runs of one environment, arm and seed.
    """

    def __init__(self, runs: Sequence[Run], arms: Sequence[str]) -> None:
        self.runs: dict[tuple[str, str], dict[int, Run]] = {}
        for run, arm in zip(runs, arms, strict=True):
            by_seed = self.runs.setdefault((run.config["env"], arm), {})
            if run.seed in by_seed:
                first = by_seed[run.seed].path
                raise InputError(f"{first} and {run.path}: both are {arm}, seed {run.seed}; leave one out")
            by_seed[run.seed] = run
        self.envs = list(dict.fromkeys(env for env, _ in self.runs))
        self.arms = list(dict.fromkeys(arms))

    def of(self, env: str, arm: str) -> dict[int, Run]:
        """By seed; empty where there is none."""
        return self.runs.get((env, arm), {})

    def returns(self, envs: Sequence[str], arm: str, actions: str) -> dict[int, float]:
        """Mean return of the last policy over ``envs`` by seed, of the seeds that have all of them."""
        tasks = [
            {s: run.score(f"{actions}.mean_return") or 0.0 for s, run in self.of(env, arm).items()} for env in envs
        ]
        return {
            seed: float(np.mean([task[seed] for task in tasks])) for seed in tasks[0] if all(seed in t for t in tasks)
        }

    def times(self, env: str, arm: str) -> dict[int, tuple[float, bool]]:
        """Steps to the goal and whether it was reached, by seed, of the runs that have a goal."""
        found = {seed: run for seed, run in self.of(env, arm).items() if run.score("steps_without_goal") is not None}
        return {
            seed: (run.score("steps_without_goal") or 0.0, run.score("steps_to_goal") is not None)
            for seed, run in found.items()
        }


def write_report(runs: Sequence[Run], arms: Sequence[str], out: Path, baseline: str | None) -> str:
    """Write the figures, ``table.md`` and ``runs.csv``; equal runs write equal bytes. Returns the table.

    Args:
        runs: finished runs.
        arms: a name for each.
        out: folder; made if missing, an earlier report in it is replaced.
        baseline: the arm that the table compares with, or None.

    Raises:
        InputError: a baseline that is no arm of these runs.
    """
    compared = Comparison(runs, arms)
    if baseline is not None and baseline not in compared.arms:
        known = ", ".join(compared.arms)
        raise InputError(f"--baseline: '{baseline}' is not one of the arms {known}{nearest(baseline, compared.arms)}")
    out.mkdir(parents=True, exist_ok=True)
    table = f"{returns_table(compared, baseline)}{goal_table(compared, baseline)}{NOTE}"
    write_csv(out / "runs.csv", [_row(run, arm) for run, arm in zip(runs, arms, strict=True)])
    write_atomically(out / "table.md", table.encode())
    for actions in ACTIONS:
        figure = curves_figure(compared, f"eval/mean_return_{actions}", f"return, {actions} actions")
        _save(figure, out / f"returns_{actions}")
    entropies = curves_figure(compared, "train/policy_entropy", "policy entropy, nats")
    _save(entropies, out / "policy_entropy")
    if any(compared.times(env, arm) for env in compared.envs for arm in compared.arms):
        _save(goal_figure(compared), out / "time_to_goal")
    return table


def returns_table(compared: Comparison, baseline: str | None) -> str:
    """A row per environment and arm, then one per arm over all environments whose returns are within 0 to 1."""
    header = ["environment", "arm", "seeds"]
    for actions in ACTIONS:
        header += [f"{actions}: mean [95 %]", *([f"− {baseline} [95 %]"] if baseline else [])]
    groups = [(short(env), [env]) for env in compared.envs]
    if len(groups) > 1 and all(family_of(env).unit_returns for env in compared.envs):
        groups.append((f"all {len(groups)}", compared.envs))
    rows = []
    for title, envs in groups:
        for arm in compared.arms:
            cells = [title, arm, str(len(compared.returns(envs, arm, ACTIONS[0])))]
            for actions in ACTIONS:
                ours = compared.returns(envs, arm, actions)
                theirs = {} if baseline is None else compared.returns(envs, baseline, actions)
                cells += _cells(ours, theirs, ".3f", baseline, arm)
            if cells[2] != "0":
                rows.append(cells)
    return markdown(header, rows)


def goal_table(compared: Comparison, baseline: str | None) -> str:
    """A row per environment and arm that have times to the goal; empty where none has."""
    header = ["environment", "arm", "at the goal", "τ", "steps to the goal: restricted mean [95 %]"]
    header += [f"− {baseline} [95 %]"] if baseline else []
    rows = []
    for env in compared.envs:
        times = {arm: found for arm in compared.arms if (found := compared.times(env, arm))}
        every = [time for of_arm in times.values() for time in of_arm.values()]
        # the latest step up to which every run says whether it had arrived
        horizon = min(
            (steps for steps, reached in every if not reached), default=max((s for s, _ in every), default=0.0)
        )
        restricted = {
            arm: {seed: min(steps, horizon) for seed, (steps, _) in of_arm.items()} for arm, of_arm in times.items()
        }
        for arm, ours in restricted.items():
            reached = sum(reached for _, reached in times[arm].values())
            cells = _cells(ours, restricted.get(baseline or "", {}), ",.0f", baseline, arm)
            rows.append([short(env), arm, f"{reached} of {len(ours)}", f"{horizon:,.0f}", *cells])
    return markdown(header, rows) if rows else ""


def _cells(
    ours: Mapping[int, float], theirs: Mapping[int, float], spec: str, baseline: str | None, arm: str
) -> list[str]:
    """Mean with its CI, and the difference to the baseline where there is one."""
    mean = mean_interval(list(ours.values())).text(spec) if ours else "–"
    if baseline is None:
        return [mean]
    difference = arm != baseline and ours and theirs
    return [mean, difference_interval(ours, theirs).text(spec, difference=True) if difference else ""]


def curves_figure(compared: Comparison, metric: str, up: str) -> Figure:
    """A panel per environment, a line per arm: mean over seeds, 95 % CI shaded."""
    figure, panels = _panels(compared.envs)
    for env, axes in panels.items():
        for position, arm in enumerate(compared.arms):
            mean_curve(axes, compared.of(env, arm).values(), metric, position, arm)
    return _finished(figure, "environment steps (line: mean over seeds; band: 95 % CI)", up)


def goal_figure(compared: Comparison) -> Figure:
    """Share of runs that have reached the goal: Kaplan and Meier, 95 % CI by Greenwood on the log-log scale."""
    figure, panels = _panels(compared.envs)
    for env, axes in panels.items():
        for position, arm in enumerate(compared.arms):
            times = list(compared.times(env, arm).values())
            if not times:
                continue
            steps, reached = (np.array(values) for values in zip(*times, strict=True))
            waiting = stats.ecdf(stats.CensoredData.right_censored(steps, ~reached.astype(bool))).sf
            with warnings.catch_warnings(action="ignore"):  # of shares of 0 and 1, whose interval is NaN
                ends = waiting.confidence_interval(method="log-log")
            stair: dict[str, Any] = {"step": "post", "color": style(position)["color"], "alpha": 0.15, "linewidth": 0}
            axes.plot(
                np.r_[0.0, waiting.quantiles], np.r_[0.0, 1 - waiting.probabilities], label=arm, drawstyle="steps-post",
                **style(position),
            )  # fmt: skip
            axes.fill_between(waiting.quantiles, 1 - ends.high.probabilities, 1 - ends.low.probabilities, **stair)
        axes.set_ylim(-0.03, 1.03)
    return _finished(figure, "environment steps", "share of runs at the goal")


def short(env: str) -> str:
    """An environment's name without what all MiniGrid names share."""
    return env.removeprefix("MiniGrid-").removesuffix("-v0")


def _row(run: Run, arm: str) -> dict[str, object]:
    """A line of ``runs.csv``: what it was, then the figures of its last and its best policy."""
    row: dict[str, object] = {"env": run.config["env"], "arm": arm, "seed": run.seed}
    row |= {key: run.config.get(key) for key in ("algo", "loss", "ent_coef", "timesteps")}
    row |= {"episodes": run.evaluation.get("episodes"), "goal_return": run.score("goal_return")}
    row["steps_to_goal"] = run.score("steps_to_goal")
    for policy, prefix in (("last", ""), ("best", "best.")):
        row[f"{policy}_step"] = run.score(f"{prefix}step")
        for actions in ACTIONS:
            for name in ("mean_return", "std_return", "success_rate"):
                row[f"{policy}_{name}_{actions}"] = run.score(f"{prefix}{actions}.{name}")
    return row


def _panels(envs: Sequence[str]) -> tuple[Figure, dict[str, mpl.axes.Axes]]:
    columns = min(3, len(envs))
    rows = math.ceil(len(envs) / columns)
    figure = Figure(figsize=(2.6 + 2.8 * columns, 1.1 + 2.5 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, env in zip(panels, envs, strict=False):
        axes.set_title(short(env), fontsize=11, parse_math=False)
        axes.grid(alpha=0.3)
    for axes in panels[len(envs) :]:
        axes.axis("off")
    return figure, dict(zip(envs, panels, strict=False))


def _finished(figure: Figure, across: str, up: str) -> Figure:
    """One legend above all panels."""
    figure.supxlabel(across, fontsize=10)
    figure.supylabel(up, fontsize=10)
    lines = {label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(
        lines.values(), lines.keys(), loc="outside upper center", ncols=min(4, len(lines) or 1), frameon=False
    )
    return figure


def _save(figure: Figure, path: Path) -> None:
    """``PATH.png`` and ``PATH.svg``, without dates and random ids."""
    with mpl.rc_context({"svg.hashsalt": "rl", "svg.fonttype": "path"}):
        for suffix, metadata in ((".png", {}), (".svg", {"Date": None})):
            content = io.BytesIO()
            figure.savefig(content, format=suffix[1:], dpi=150, metadata=metadata)
            write_atomically(path.with_suffix(suffix), content.getvalue())
