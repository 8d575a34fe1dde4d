"""Figures and tables of runs: ``python -m rl.plots RUN… --out DIR`` for any run folders, or folders of them.

``returns_sampled`` and ``returns_greedy`` (PNG and SVG) show return against steps: the mean over seeds with its 95 %
interval (:mod:`dem_apps.report.intervals`), ``policy_entropy`` how random the policy was, ``time_to_goal`` the share of
runs that have reached the goal (:mod:`rl.results.time_to_goal`), and ``weights``, of terms that were trained with three
weights or more, return and time against the weight (:mod:`rl.results.weights`). ``table.md``, ``runs.csv`` and
``curves.csv`` hold the numbers, and a ``runs.csv`` stands for the runs it was made of.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dem_apps.errors import InputError, nearest
from dem_apps.report.intervals import mean_band
from dem_apps.report.text_tables import refuse_files_of_others
from dem_apps.runtime.command import run_command
from dem_apps.runtime.files import write_atomically
from dem_apps.runtime.settings import option, parse_config
from rl.results.described_metrics import ACTIONS
from rl.results.drawing import (
    FIGURE_SUFFIXES,
    MOST_ARMS,
    Style,
    legend_above,
    outer_labels,
    panels_of,
    save,
    styles,
)
from rl.results.goal_figure import goal_figure
from rl.results.goal_table import GOAL_NOTE, goal_table
from rl.results.read_runs import Result, find_results, names, select, write_curves, write_runs
from rl.results.returns_table import NOTE, markdown_table
from rl.results.weights import WEIGHTS_NOTE, weights_table
from rl.results.weights_figure import weights_figure

_FIGURES = (*(f"returns_{actions}" for actions in ACTIONS), "policy_entropy", "time_to_goal", "weights")
#: What a report consists of, and how each file begins.
REPORT_FILES = {
    "runs.csv": "env,arm,seed,", "curves.csv": "env,arm,seed,step,", "table.md": "| environment | arm | seeds |",
    **{f"{name}{suffix}": "" for name in _FIGURES for suffix in FIGURE_SUFFIXES},
}  # fmt: skip


@dataclass(frozen=True)
class PlotsConfig:
    """Draw the curves and the table of any runs of rl.train.

    RUN is a run folder or a folder that holds runs at any depth; runs that are not finished are left out. It may also
    be the runs.csv of an earlier report, with its curves.csv beside it.
    """

    out: str = option("", "folder for figures, table and CSV files", value="DIR", needed=True)
    baseline: str | None = option(None, "arm to compare with; default: 'none' where there is such an arm")


def write_report(results: Sequence[Result], out: Path, baseline: str | None) -> str:
    """Write the figures, ``table.md``, ``runs.csv`` and ``curves.csv``; equal results write equal bytes.

    Args:
        results: finished runs.
        out: folder; made if missing, earlier reports in it are replaced.
        baseline: the arm that the table compares with, or None.

    Returns:
        the table.

    Raises:
        InputError: nothing to show, or a baseline that is no arm of these runs.
    """
    if not results:
        raise InputError(f"{out}: no finished run, so there is nothing to report")
    _, arms = names(results)
    if baseline is not None and baseline not in arms:
        raise InputError(f"--baseline: '{baseline}' is not one of the arms {', '.join(arms)}{nearest(baseline, arms)}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise InputError(f"{out}: cannot be written ({error.strerror}); name another folder") from error
    table = f"{markdown_table(results, baseline)}\n{NOTE}"
    times = goal_table(results, baseline)
    if times:
        table += f"\n{times}\n{GOAL_NOTE}"
    widths = weights_table(results)
    if widths:
        table += f"\n{widths}\n{WEIGHTS_NOTE}"
    if len(arms) > MOST_ARMS:
        table += (
            f"\nNo curves of {len(arms)} arms are drawn, for nobody can tell more than {MOST_ARMS} apart: "
            "`python -m rl.plots` with the run folders of fewer draws them.\n"
        )
    write_runs(out / "runs.csv", results)
    write_curves(out / "curves.csv", results)
    write_atomically(out / "table.md", table.encode())
    for name, figure in _drawn(results).items():
        if figure is not None:
            save(figure, out / name)
        else:  # one of an earlier report would be of other runs
            for suffix in FIGURE_SUFFIXES:
                (out / f"{name}{suffix}").unlink(missing_ok=True)
    return table


def _drawn(results: Sequence[Result]) -> dict[str, Figure | None]:
    """By file name; None for what there is nothing to draw of, and for more lines than people can tell apart."""
    few = len(names(results)[1]) <= MOST_ARMS
    return {
        **{f"returns_{actions}": curves_figure(results, actions) if few else None for actions in ACTIONS},
        "policy_entropy": entropy_figure(results) if few else None,
        "time_to_goal": goal_figure(results) if few else None,
        "weights": weights_figure(results),
    }


def curves_figure(results: Sequence[Result], actions: str) -> Figure:
    """Return against steps: a panel per environment, a line per arm (mean over seeds, 95 % interval shaded)."""
    return _figure(results, lambda run: run.returns_under(actions), f"return, {actions} actions")


def entropy_figure(results: Sequence[Result]) -> Figure | None:
    """The policy's entropy against steps, drawn like the returns; None where no run has it."""
    if not any(run.policy_entropy for run in results):
        return None
    return _figure(results, lambda run: run.policy_entropy, "policy entropy, nats")


def _figure(results: Sequence[Result], curve_of: Callable[[Result], dict[int, float]], up: str) -> Figure:
    envs, arms = names(results)
    figure, panels = panels_of(envs)
    lines = {}
    for env, panel in panels.items():
        drawn = []
        for arm, style in zip(arms, styles(len(arms)), strict=True):
            curves = [curve for run in select(results, env, arm) if (curve := curve_of(run))]
            if curves:
                lines[arm] = _draw(panel, curves, style)
                drawn.append(lines[arm])
        _limit(panel, drawn)
        panel.set_xlim(left=0)
    outer_labels(figure, "environment steps (line: mean over seeds; band: 95 % interval, Student's t over seeds)", up)
    legend_above(figure, lines)
    return figure


def _draw(panel: Axes, curves: Sequence[dict[int, float]], style: Style) -> Line2D:
    # the evaluations that all runs have: seeds of one training length share every step
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = np.array([[curve[step] for step in steps] for curve in curves], float)
    colour, line, marker = style
    (drawn,) = panel.plot(
        steps, values.mean(axis=0) if steps else [], color=colour, linestyle=line, marker=marker, markersize=3.5,
        linewidth=1.6, markevery=max(1, len(steps) // 7),
    )  # fmt: skip
    if len(curves) > 1 and steps:
        _, low, high = mean_band(values)
        panel.fill_between(steps, low, high, color=colour, alpha=0.13, linewidth=0)
        for edge in (low, high):  # bands on top of each other can be told apart by their edges
            panel.plot(steps, edge, color=colour, linestyle=line, linewidth=0.6, alpha=0.6)
    return drawn


def _limit(panel: Axes, lines: Sequence[Line2D]) -> None:
    """Let the intervals of few seeds, which are very wide, not press the lines together."""
    values = [float(y) for line in lines for y in np.asarray(line.get_ydata())]
    if values and max(values) > min(values):
        room = (max(values) - min(values)) / 2
        low, high = panel.get_ylim()
        panel.set_ylim(max(low, min(values) - room), min(high, max(values) + room))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; ``arguments`` are those of the process when None."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    first_flag = next((index for index, argument in enumerate(given) if argument.startswith("--")), len(given))
    runs, flags = given[:first_flag], given[first_flag:]
    if not runs and not {"-h", "--help"} & set(flags):
        raise InputError("RUN: name one or more run folders, or folders of runs, before the flags")
    config = parse_config(
        PlotsConfig, "python -m rl.plots RUN [RUN ...]", "python -m rl.plots runs/rl-paper --out report", flags
    )
    refuse_files_of_others(Path(config.out), REPORT_FILES)
    results = ordered(find_results([Path(run) for run in runs]))
    arms = names(results)[1]
    baseline = config.baseline or ("none" if "none" in arms and len(arms) > 1 else None)
    print(write_report(results, Path(config.out), baseline), end="")
    print(f"\n{len(results)} runs; figures, table.md, runs.csv and curves.csv are in {config.out}")


def ordered(results: Sequence[Result]) -> list[Result]:
    """The plain arms first, so that colours stay the same from figure to figure; environments as they were given."""

    def key(result: Result) -> tuple[bool, bool, str, int]:
        return not result.arm.startswith("none"), not result.arm.startswith("entropy"), result.arm, result.seed

    return sorted(results, key=key)


if __name__ == "__main__":
    run_command(main)
