"""Scores of a policy over whole episodes, with greedy and with sampled actions.

Both kinds of actions are always reported, since they differ a lot on MiniGrid: a greedy policy can turn in circles
forever where a sampled one gets out. The figures on top (``mean_return``, …) are of sampled actions, since the Zoo
evaluates MiniGrid like this and its published returns are such figures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.reproducibility import random_states, restore_random_states, seed_everything
from rl.envs.families import counts_as_success
from rl.envs.make import Wrappers, make_env
from rl.results.described_metrics import ACTIONS
from rl.results.episodes import LONGEST_EPISODE, Episode, play
from rl.training.build import restore_policy

#: Evaluations during training and the final one must not see the same layouts: the best policy is chosen on the former.
DURING_TRAINING, FINAL = 1, 2

#: The kind of actions whose figures are on top and choose the best policy.
HEADLINE = "sampled"

#: Environments of an evaluation, which play at once; one that ends an episode begins the next.
SIDE_BY_SIDE = 10


class Evaluator:
    """Plays a fixed set of episodes, the same ones at every call, without touching anything that training uses.

    Args:
        env_id: the environment.
        wrapper: as in :func:`rl.envs.make.make_env`.
        episodes: how many.
        seed: the run's seed.
        purpose: :data:`DURING_TRAINING` or :data:`FINAL`; the two play different episodes.
        goal: the return that counts as reached, as in :func:`summary`.
    """

    def __init__(
        self, env_id: str, wrapper: Wrappers, episodes: int, seed: int, purpose: int,
        goal: float | None = None,
    ) -> None:  # fmt: skip
        seeds = np.random.SeedSequence([seed, purpose]).generate_state(episodes + 1).tolist()
        self._sampling_seed, self._seeds = seeds[0], seeds[1:]
        self._env_id, self._goal = env_id, goal
        self._envs = [make_env(env_id, wrapper) for _ in range(min(episodes, SIDE_BY_SIDE))]

    def __call__(self, model: OnPolicyAlgorithm, kinds: Sequence[str] = ACTIONS) -> dict[str, dict[str, float]]:
        """Figures by kind of actions, ``"sampled"`` and ``"greedy"``: see :func:`summary`.

        Every episode is played to its end: one that is cut off where a budget ends would be a short one more often.
        """
        return {
            actions: summary(self.episodes(model, actions == "greedy"), self._env_id, self._goal) for actions in kinds
        }

    def episodes(self, model: OnPolicyAlgorithm, greedy: bool) -> list[Episode]:
        """The episodes themselves; a second call with the same policy gives the same ones."""
        with separate_random_state(self._sampling_seed):
            episodes = play(model, self._envs, self._seeds, greedy)
        cut = sum(episode.cut for episode in episodes)
        if cut:
            print(
                f"note: {cut} of {len(episodes)} episodes of the evaluation did not end within {LONGEST_EPISODE:,} "
                "steps and count up to there; give the environment a max_episode_steps",
                file=sys.stderr, flush=True,
            )  # fmt: skip
        return episodes


def summary(episodes: Sequence[Episode], env_id: str, goal: float | None = None) -> dict[str, float]:
    """Mean and standard deviation (divisor n) of the undiscounted return, success rate in 0..1, mean length.

    An episode is a success if the environment says so (``is_success``), else by its return.

    Args:
        episodes: whole ones, at least one.
        env_id: their environment.
        goal: the return that counts as reached, as in :func:`rl.envs.families.counts_as_success`.
    """
    returns = np.array([episode.total for episode in episodes])
    successes = [
        counts_as_success(env_id, episode.total, goal) if episode.said_success is None else episode.said_success
        for episode in episodes
    ]
    return {
        "mean_return": float(returns.mean()),
        "std_return": float(returns.std()),
        "success_rate": float(np.mean(successes)),
        "mean_length": float(np.mean([episode.length for episode in episodes])),
    }


@contextmanager
def separate_random_state(seed: int) -> Iterator[None]:
    """Inside, the global generators start from ``seed``; afterwards they are where they were."""
    states = random_states()
    seed_everything(seed)
    try:
        yield
    finally:
        restore_random_states(states)


def evaluate_checkpoint(model: OnPolicyAlgorithm, checkpoints: Path, name: str, evaluator: Evaluator) -> dict[str, Any]:
    """Load a checkpoint's policy into ``model`` and evaluate it: :data:`HEADLINE` figures on top, then both kinds."""
    state = load_checkpoint(checkpoints, name)
    restore_policy(model, state)
    figures = evaluator(model)
    return {"checkpoint": name, "step": state["step"], "actions": HEADLINE, **figures[HEADLINE], **figures}


def results_table(title: str, results: Sequence[dict[str, Any]]) -> Table:
    """One row per checkpoint and kind of actions."""
    table = Table(title=title)
    for column in ("checkpoint", "step", "actions", "return", "success"):
        table.add_column(column, justify="left" if column in ("checkpoint", "actions") else "right")
    for result in results:
        for actions in ("sampled", "greedy"):
            figures = result[actions]
            spread = f"{figures['mean_return']:.3f} ± {figures['std_return']:.3f}"
            table.add_row(
                result["checkpoint"], f"{result['step']:,}", actions, spread, f"{figures['success_rate']:.0%}"
            )
    return table
