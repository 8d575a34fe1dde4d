"""The table of returns (Markdown): means over seeds and differences to an arm, with intervals.

A seed is the unit throughout. In the rows over several environments a seed's value is its mean over the environments,
so the interval says how sure the mean over *these* environments is, and nothing about others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dem_apps.report.intervals import difference_interval, mean_interval
from dem_apps.report.text_tables import markdown
from rl.envs.families import family_of
from rl.results.described_metrics import ACTIONS
from rl.results.read_runs import Result, names, select

NOTE = (
    "Mean return of the last policies over seeds, and the difference to the baseline, each with its 95 % interval: "
    "Student's t over seeds, of a difference over the differences seed by seed (Welch's where fewer than two seeds are "
    "shared). Bold: 0 lies outside. Over several environments a seed's value is its mean over them.\n"
)


def markdown_table(results: Sequence[Result], baseline: str | None) -> str:
    """The last policies, a row per environment and arm, then a row per arm over all environments.

    The rows over all are left out where an environment's returns are not in 0 to 1, since the unit of each is its own.

    Args:
        results: finished runs.
        baseline: the arm that the others are compared with; None leaves the comparison out.
    """
    envs, arms = names(results)
    columns = ["environment", "arm", "seeds"]
    for actions in ACTIONS:
        columns += [f"{actions}: mean [95 %]", f"− {baseline} [95 %]"][: 2 if baseline else 1]
    rows: list[list[str]] = []
    for env in envs:
        rows += [_figures(short(env), results, [env], arm, baseline) for arm in arms if select(results, env, arm)]
    for arm in arms if all(family_of(env).unit_returns for env in envs) else ():
        shared = [env for env in envs if select(results, env, arm)]
        if len(shared) > 1:
            of = f"all {len(shared)}" if len(shared) == len(envs) else f"{len(shared)} of {len(envs)}"
            rows.append(_figures(of, results, shared, arm, baseline))
    return markdown(columns, rows).removesuffix("\n")  # who prints it puts the space behind it


def by_seed(results: Sequence[Result], envs: Sequence[str], arm: str, actions: str) -> dict[int, float]:
    """Mean return of the last policy over ``envs`` by seed, of the seeds that have a run in every one of them."""
    tasks = [{run.seed: run.returns[actions] for run in select(results, env, arm)} for env in envs]
    return {seed: float(np.mean([task[seed] for task in tasks])) for seed in tasks[0] if all(seed in t for t in tasks)}


def short(env: str) -> str:
    """An environment's name without what all MiniGrid names share."""
    return env.removeprefix("MiniGrid-").removesuffix("-v0")


def _figures(title: str, results: Sequence[Result], envs: Sequence[str], arm: str, baseline: str | None) -> list[str]:
    cells = [title, arm, str(len(by_seed(results, envs, arm, ACTIONS[0])))]
    for actions in ACTIONS:
        ours = by_seed(results, envs, arm, actions)
        cells.append(mean_interval(list(ours.values())).text(".3f") if ours else "no seed in all of them")
        if baseline is None:
            continue
        theirs = by_seed(results, envs, baseline, actions)
        if arm == baseline or not ours:
            cells.append("")
        else:
            cells.append(difference_interval(ours, theirs).text(".3f", difference=True) if theirs else "no baseline")
    return cells
