"""What a search has found, as a CSV file, a table for the terminal, and DEM*'s picture of τ and α."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from optuna.trial import FrozenTrial
from rich.table import Table

from dem_apps.jobs.search import DEM_SPACE, Space, best_trial, score, scored
from dem_apps.runtime.checkpoint import write_atomically


def write_trials(path: Path, space: Space, trials: Sequence[FrozenTrial], score_name: str) -> None:
    """A CSV line per trial: its number, its point, its score (empty without one) and its state."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", *space.distributions, score_name, "state"])
    for trial in trials:
        point = [trial.params[name] for name in space.distributions]
        writer.writerow([trial.number, *point, "" if trial.value is None else trial.value, trial.state.name.lower()])
    write_atomically(path, text.getvalue().encode())


def trials_table(space: Space, trials: Sequence[FrozenTrial], score_name: str, title: str, rows: int = 10) -> Table:
    """The best ``rows`` trials, for a terminal."""
    table = Table(title=title)
    for column in ("trial", *space.distributions, score_name):
        table.add_column(column, justify="right")
    for trial in sorted(scored(trials), key=lambda trial: (-score(trial), trial.number))[:rows]:
        point = [f"{trial.params[name]:g}" for name in space.distributions]
        table.add_row(str(trial.number), *point, f"{score(trial):.4f}")
    return table


def plot_dem_search(path: Path, trials: Sequence[FrozenTrial], score_name: str) -> None:
    """A PNG: the scores over τ and α, what Prop. A.1 forbids hatched, and the scores in the order of the trials."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    plane, course = figure.subplots(1, 2)
    _draw_plane(plane, trials, score_name)
    _draw_course(course, trials, score_name)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    write_atomically(path, content.getvalue())


def dem_grid(trials: Sequence[FrozenTrial]) -> tuple[np.ndarray, np.ndarray]:
    """Scores and permission over the grid of τ and α.

    Returns:
        scores (α 0.0 … 2.0, τ 0.1 … 2.0), NaN where there is none, and whether Prop. A.1 allows the point.
    """
    tau, alpha = (distribution for distribution in DEM_SPACE.distributions.values())

    def index(values: dict[str, float]) -> tuple[int, int]:
        return round((values["alpha"] - alpha.low) / 0.1), round((values["tau"] - tau.low) / 0.1)

    scores, allowed = np.full((21, 20), np.nan), np.zeros((21, 20), dtype=bool)
    for values in DEM_SPACE.points():
        allowed[index(values)] = True
    for trial in scored(trials):
        scores[index(trial.params)] = score(trial)
    return scores, allowed


def _draw_plane(axes: Axes, trials: Sequence[FrozenTrial], score_name: str) -> None:
    scores, allowed = dem_grid(trials)
    tau_edges, alpha_edges = np.arange(21) * 0.1 + 0.05, np.arange(22) * 0.1 - 0.05
    for row, missing in enumerate((~allowed).sum(axis=1)):
        axes.barh(
            row * 0.1, missing * 0.1, left=tau_edges[-1] - missing * 0.1, height=0.1, hatch="////",
            facecolor="whitesmoke", edgecolor="silver", linewidth=0,
        )  # fmt: skip
    mesh = axes.pcolormesh(tau_edges, alpha_edges, np.ma.masked_invalid(scores), cmap="viridis")
    if scored(trials):
        axes.figure.colorbar(mesh, ax=axes, label=score_name)
    axes.plot(1.0, 1.0, "o", markerfacecolor="none", markeredgecolor="black", markersize=9, label="entropy (1, 1)")
    best = best_trial(trials)
    if best is not None:
        point = f"best ({best.params['tau']:g}, {best.params['alpha']:g})"
        axes.plot(best.params["tau"], best.params["alpha"], "*", color="red", markersize=13, label=point)
    axes.set(xlabel="τ", ylabel="α", title="hatched: τ > 2/α (Prop. A.1); white: not tried", aspect="equal")
    axes.set(xlim=(tau_edges[0], tau_edges[-1]), ylim=(alpha_edges[0], alpha_edges[-1]))
    axes.set(xticks=np.arange(1, 11) * 0.2, yticks=np.arange(11) * 0.2)
    axes.legend(loc="upper right", fontsize="small")


def _draw_course(axes: Axes, trials: Sequence[FrozenTrial], score_name: str) -> None:
    numbers, values = [trial.number for trial in scored(trials)], [score(trial) for trial in scored(trials)]
    axes.plot(numbers, values, "o", markersize=4, label="trial")
    axes.step(numbers, np.maximum.accumulate(values) if values else [], where="post", label="best so far")
    axes.set(xlabel="trial", ylabel=score_name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # half a trial is none
    axes.legend(loc="lower right", fontsize="small")
