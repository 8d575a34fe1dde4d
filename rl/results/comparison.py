"""Runs of rl.train compared over seeds: a table of scores, a CSV file, and figures of returns.

A seed is the unit: its episodes share one policy. A run without an evaluation at the goal is censored at its last one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from dem_apps.errors import InputError
from dem_apps.report.charts import drawn, mean_curve
from dem_apps.report.runs import Run, Runs, differing, flat, read_run
from dem_apps.report.tables import Compared, by_row, score_tables, write_csv
from dem_apps.runtime.files import write_atomically
from rl.results.described_metrics import ACTIONS

#: Scores of the table.
_TABLE = ("sampled.mean_return", "greedy.mean_return", "sampled.success_rate", "steps_without_goal")
#: Figures: a metric, and the label of its axis.
_CURVES = {
    "returns_sampled": ("eval/mean_return_sampled", "return, sampled actions"),
    "returns_greedy": ("eval/mean_return_greedy", "return, greedy actions"),
    "policy_entropy": ("train/policy_entropy", "policy entropy, nats"),
}
#: Settings that do not make two runs of one loss and environment different arms.
_NOT_OF_THE_ARM = (
    "timesteps",
    "eval_freq",
    "eval_episodes",
    "final_episodes",
    "device",
    "threads",
    "video",
    "goal_return",
    "import_modules",
    "hyperparameters_file",
)


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """The finished runs in or below the folders, each once, the plain arms first; an InputError for one without.

    Runs of other commands are left out, and named.
    """
    runs: dict[Path, Run] = {}
    for path in paths:
        folders = [file.parent for file in sorted(path.rglob("eval.json"))]
        read = [read_run(folder) for folder in folders if (folder / "config.yaml").is_file()]
        of_rl = {run.path: run for run in read if {"env", "loss"} <= run.config.keys()}
        if not of_rl:
            raise InputError(
                f"{path}: no finished run of rl.train in or below it (a finished one has an eval.json)"
            )
        runs |= of_rl
        for run in read:
            if run.path not in of_rl:
                print(f"note: {run.path} is no run of rl.train and is left out", file=sys.stderr)
    order = {"none": 0, "entropy": 1}
    return sorted(runs.values(), key=lambda run: (order.get(run.config["loss"], 2), str(run.path)))


def arm_names(runs: Sequence[Run]) -> list[str]:
    """A name per run: its loss, and the settings in which runs of one loss and environment differ."""
    names = []
    settings = [flat(run.config) for run in runs]
    for mine in settings:
        task = {"loss": mine["loss"], "env": mine["env"]}.items()
        alike = [each for each in settings if task <= each.items()]
        keys = [key for key in differing(alike) if key.partition(".")[0] not in _NOT_OF_THE_ARM]
        options = [f"{key.replace('_', '-')} {mine.get(key)}" for key in keys]
        names.append(", ".join([mine["loss"], *options]))
    return names


def write_report(runs: Runs, out: Path, baseline: str | None) -> str:
    """Write the figures, ``table.md`` and ``runs.csv`` of finished runs, and return the table.

    Equal runs write equal bytes; an earlier report in ``out`` is replaced.

    Args:
        runs: with the names of their rows and arms.
        out: the folder of the report.
        baseline: the arm to compare with; without one, or where it has no run, the table has no differences.

    Raises:
        InputError: two runs have one environment, arm and seed.
    """
    compared = by_row(runs)
    out.mkdir(parents=True, exist_ok=True)
    text = score_tables(compared, baseline, _TABLE)
    write_csv(out / "runs.csv", list(map(_row, runs)))
    write_atomically(out / "table.md", text.encode())
    for name, (metric, axis) in _CURVES.items():
        figure = curves_figure(compared, metric, axis)
        for kind in ("png", "svg"):
            write_atomically(out / f"{name}.{kind}", drawn(figure, kind))
    return text


def curves_figure(compared: Compared, metric: str, up: str) -> Figure:
    """A panel per environment, a line per arm: mean over seeds, 95 % CI shaded; one legend above all panels."""
    columns = min(3, len(compared))
    rows = math.ceil(len(compared) / columns)
    figure = Figure(figsize=(2.6 + 2.8 * columns, 1.1 + 2.5 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    arms = list(dict.fromkeys(arm for by_arm in compared.values() for arm in by_arm))
    for axes, (env, by_arm) in zip(panels, compared.items(), strict=False):
        # without what all MiniGrid names share
        title = env.removeprefix("MiniGrid-").removesuffix("-v0")
        axes.set_title(title, fontsize=11, parse_math=False)
        axes.grid(alpha=0.3)
        for position, arm in enumerate(arms):
            mean_curve(axes, by_arm.get(arm, ()), metric, position, arm)
    for axes in panels[len(compared) :]:
        axes.axis("off")
    figure.supxlabel("environment steps (line: mean over seeds; band: 95 % CI)", fontsize=10)
    figure.supylabel(up, fontsize=10)
    lines = {
        label: line
        for axes in panels
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        lines.values(),
        lines.keys(),
        loc="outside upper center",
        ncols=min(4, len(lines) or 1),
        frameon=False,
    )
    return figure


def _row(run: Run) -> dict[str, object]:
    """A line of ``runs.csv``: environment, arm, seed and settings, then the figures of the last and the best policy."""
    row: dict[str, object] = {"env": run.config["env"], "arm": run.arm, "seed": run.seed}
    row |= {key: run.config.get(key) for key in ("algo", "loss", "ent_coef", "timesteps")}
    row["episodes"] = run.evaluation.get("episodes")
    row |= {key: run.score(key) for key in ("goal_return", "steps_to_goal")}
    for policy, prefix in (("last", ""), ("best", "best.")):
        row[f"{policy}_step"] = run.score(f"{prefix}step")
        for actions in ACTIONS:
            for name in ("mean_return", "std_return", "success_rate"):
                row[f"{policy}_{name}_{actions}"] = run.score(f"{prefix}{actions}.{name}")
    return row
