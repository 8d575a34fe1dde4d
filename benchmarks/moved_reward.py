"""Train certain policies on a reward that moves, to test AdaDEM's claims in RL: numbers of docs/rl_answer.md.

    python benchmarks/moved_reward.py choose     # weights, on seeds of their own
    python benchmarks/moved_reward.py confirm    # the chosen weights on fresh seeds
    python benchmarks/moved_reward.py table      # what stands in the docs, and its figure

Ten states, ten actions, episodes of one step. Under ``nine`` one action is right in nine states and another in the
tenth; under ``each`` every state has its own. Half-way the right actions become others. The rule of choice and what is
compared: docs/results/rl_moved_reward_registration.txt. A row that stands in the file is not made again.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from csv_rows import RESULTS, CsvRows, parser_of
from gymnasium import spaces
from matplotlib.figure import Figure
from stable_baselines3.common.vec_env import VecEnv

from dem_apps.report.charts import drawn
from dem_apps.report.intervals import difference_interval
from rl import with_entropy_objective
from rl.fast.ppo import FastPPO

STATES = ACTIONS = 10
ENVS, STEPS = 8, 40_960  # steps before the move, and after it
TASKS = ("nine", "each")
TERMS, WEIGHTS = ("entropy", "adadem", "adadem-norm", "adadem-mec"), (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
CHOOSING, CONFIRMING = range(5), range(200, 220)
#: Return that counts as regained; return that a weight may cost before the move.
REGAINED, COST = 0.8, 0.05
#: Steps over which a return is a mean.
WINDOW = 1024
ROWS, KEYS = RESULTS / "rl_moved_reward.csv", ("task", "term", "weight", "seed")
SCORES = ("before", "before_rare", "after", "after_rare", "regained_after")


class MovingReward(VecEnv):
    """Contextual bandits side by side; keeps the state and the reward of every step."""

    def __init__(self, task: str) -> None:
        states = spaces.Box(0, 1, (STATES,), np.float32)
        super().__init__(ENVS, states, spaces.Discrete(ACTIONS))
        self.right = np.arange(STATES) if task == "each" else np.array([0] * (STATES - 1) + [1])
        self.history: list[tuple[np.ndarray, np.ndarray]] = []

    def move(self) -> None:
        """Other actions are right from now on; none of those that were under ``nine``."""
        self.right = (self.right + 2) % ACTIONS

    def seed(self, seed: int | None = None) -> list[int | None]:
        """One generator draws the states of all."""
        self._random = np.random.default_rng(seed)
        return [seed] * ENVS

    def reset(self) -> np.ndarray:
        """New states (ENVS, STATES), one-hot."""
        self._states = self._random.integers(STATES, size=ENVS)
        return np.eye(STATES, dtype=np.float32)[self._states]

    def step_async(self, actions: np.ndarray) -> None:
        """Take the actions."""
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Reward 1 for the right action; every step ends an episode."""
        rewards = (self._actions == self.right[self._states]).astype(np.float32)
        self.history.append((self._states, rewards))
        last = np.eye(STATES, dtype=np.float32)[self._states]
        infos: list[dict[str, Any]] = [{"terminal_observation": each} for each in last]
        return self.reset(), rewards, np.ones(ENVS, bool), infos

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """No."""
        return [False] * ENVS

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The same for all."""
        return [getattr(self, attr_name, None)] * ENVS

    def _unused(self, *_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError("PPO does not call it")

    close = env_method = set_attr = _unused


def trained(task: str, term: str, weight: float, seed: int) -> dict[str, float]:
    """Train before and after the move; the columns of a row."""
    torch.set_num_threads(1)
    env = MovingReward(task)
    model = with_entropy_objective(FastPPO, term)(
        "MlpPolicy",
        env,
        ent_coef=weight,
        learning_rate=1e-3,
        n_steps=WINDOW // ENVS,
        batch_size=256,
        n_epochs=4,
        gamma=0.0,
        seed=seed,
        device="cpu",
    )
    assert model.not_fast is None, model.not_fast
    model.learn(STEPS)
    env.move()
    model.learn(STEPS, reset_num_timesteps=False)
    states, rewards = (np.concatenate(part) for part in zip(*env.history, strict=True))
    returns = rewards.reshape(-1, WINDOW).mean(1)
    moved = STEPS // WINDOW
    regained, rare = np.flatnonzero(returns[moved:] >= REGAINED), states == STATES - 1

    def rare_return(end: int) -> float:
        """The mean of the rare state in the last four windows before a step."""
        part = slice(end - 4 * WINDOW, end)
        return float(rewards[part][rare[part]].mean())

    return {
        "before": float(returns[moved - 4 : moved].mean()),
        "before_rare": rare_return(STEPS),
        "after": float(returns[-4:].mean()),
        "after_rare": rare_return(2 * STEPS),
        "regained_after": float(WINDOW * (regained[0] + 1)) if len(regained) else float(STEPS),
    }


def scores(
    rows: CsvRows, task: str, term: str, weight: float, column: str, seeds: range
) -> dict[int, float]:
    """A column of an arm by seed."""
    found = (
        rows.get({"task": task, "term": term, "weight": weight, "seed": seed}) for seed in seeds
    )
    return {
        seed: float(row[column]) for seed, row in zip(seeds, found, strict=True) if row is not None
    }


def chosen(rows: CsvRows, task: str, term: str) -> float:
    """The weight that regains the return soonest among those that cost little before; the smallest if all cost."""

    def mean(weight: float, column: str, of: str = term) -> float:
        return fmean(scores(rows, task, of, weight, column, CHOOSING).values())

    least = mean(0.0, "before", "none") - COST
    cheap = [weight for weight in WEIGHTS if mean(weight, "before") >= least]
    return min(cheap, key=lambda weight: mean(weight, "regained_after"), default=WEIGHTS[0])


def table(rows: CsvRows, out: Path) -> None:
    """Print the table of the confirming seeds, and draw what each weight costs and what it gives."""
    for task in TASKS:
        arms = [("none", 0.0), *((term, chosen(rows, task, term)) for term in TERMS)]
        for term, weight in arms:
            cells = []
            for column in ("before", "regained_after", "after", "before_rare", "after_rare"):
                ours = scores(rows, task, term, weight, column, CONFIRMING)
                apart = difference_interval(ours, scores(rows, task, *arms[1], column, CONFIRMING))
                form = "{:.N} ({:+.N} [{:+.N}, {:+.N}])".replace(
                    "N", "0f" if column == "regained_after" else "3f"
                )
                cells.append(
                    form.format(fmean(ours.values()), apart.estimate, apart.low, apart.high)
                )
            print(f"| {task} | {term} {weight:g} | {' | '.join(cells)} |")
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    for axes, task in zip(figure.subplots(1, 2, sharey=True), TASKS, strict=True):
        for term, marker in zip(TERMS, "osv^", strict=True):
            found = [
                [scores(rows, task, term, weight, column, CHOOSING).values() for weight in WEIGHTS]
                for column in ("before", "regained_after")
            ]
            before, regained = (list(map(fmean, each)) for each in found)
            axes.plot(1 - np.array(before), regained, marker=marker, label=term)
        axes.set(title=task, xlabel="return lost before the move", xscale="log")
    figure.axes[0].set(ylabel="steps until a return of 0.8")
    figure.axes[0].legend(fontsize="small")
    (out / "rl_moved_reward.svg").write_bytes(drawn(figure, "svg"))


def main() -> None:
    """Train what is missing of a part, or print the table and draw the figure."""
    parser = parser_of(__doc__)
    parser.add_argument("part", choices=("choose", "confirm", "table"))
    parser.add_argument(
        "--out", type=Path, default=Path("docs/images"), help="folder of the figure"
    )
    given, rows = parser.parse_args(), CsvRows(ROWS, KEYS, SCORES)
    if given.part == "table":
        table(rows, given.out)
        return
    arms: list[tuple[str, str, float]] = [(task, "none", 0.0) for task in TASKS]
    for task, term in itertools.product(TASKS, TERMS):
        weights = WEIGHTS if given.part == "choose" else (chosen(rows, task, term),)
        arms += [(task, term, weight) for weight in weights]
    asked = itertools.product(CHOOSING if given.part == "choose" else CONFIRMING, arms)
    for row in rows.missing(dict(zip(KEYS, (*arm, seed), strict=True)) for seed, arm in asked):
        print(rows.add({**row, **trained(**row)}), flush=True)


if __name__ == "__main__":
    main()
