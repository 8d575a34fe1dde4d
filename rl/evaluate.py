"""Evaluate a policy over whole episodes, with greedy and with sampled actions; ``python -m rl.evaluate --run DIR``.

Both kinds of actions are always reported, since they differ a lot on MiniGrid: a greedy policy can turn in circles
forever where a sampled one gets out. The figures on top (``mean_return``, …) are of sampled actions, since the Zoo
evaluates MiniGrid like this and its published returns are such figures.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import load_checkpoint, write_atomically
from dem_apps.runtime.command import run_command
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.load_state import checked_step
from dem_apps.runtime.run_folder import read_config
from dem_apps.runtime.seeds import random_states, restore_random_states, seed_everything
from dem_apps.runtime.settings import from_dict, option, parse_config
from dem_apps.runtime.terminal import console
from rl.config import TrainConfig, resolved_again
from rl.envs.make import Wrappers, make_env
from rl.results.episodes import Episode, play
from rl.results.video import check_video_file, record_episodes
from rl.training.build import build_envs, build_model, restore_policy

#: Evaluations during training and the final one must not see the same layouts: the best policy is chosen on the former.
DURING_TRAINING, FINAL = 1, 2

#: The kind of actions whose figures are on top and choose the best policy.
HEADLINE = "sampled"

#: Environments of an evaluation, which play at once; one that ends an episode begins the next.
SIDE_BY_SIDE = 10


@dataclass(frozen=True)
class EvaluateConfig:
    """Evaluate the policy of a run over whole episodes."""

    run: str | None = option(None, "run folder that rl.train wrote (needed)", value="RUN", group="what is scored")
    checkpoint: str = option("last", "which policy", choices=("last", "best"))
    episodes: int = option(10, "number of episodes")
    seed: int | None = option(None, "seed of the episodes; default: those of the run's own eval.json")
    device: str = option("cpu", "torch device")
    video: str | None = option(
        None, "write a .gif or .mp4 of episodes with sampled actions, best and worst among them", value="FILE",
        group="what is written",
    )  # fmt: skip
    video_episodes: int = option(4, "episodes in the video")
    out: str | None = option(None, "write the figures to this JSON file; without it nothing is written", value="FILE")


class Evaluator:
    """Plays a fixed set of episodes, the same ones at every call, without touching anything that training uses.

    Args:
        env_id: the environment.
        wrapper: as in :func:`rl.envs.make.make_env`.
        episodes: how many.
        seed: the run's seed.
        purpose: :data:`DURING_TRAINING` or :data:`FINAL`; the two play different episodes.
    """

    def __init__(self, env_id: str, wrapper: Wrappers, episodes: int, seed: int, purpose: int) -> None:
        seeds = np.random.SeedSequence([seed, purpose]).generate_state(episodes + 1).tolist()
        self._sampling_seed, self._seeds = seeds[0], seeds[1:]
        self._envs = [make_env(env_id, wrapper) for _ in range(min(episodes, SIDE_BY_SIDE))]

    def __call__(self, model: OnPolicyAlgorithm) -> dict[str, dict[str, float]]:
        """Figures for ``"greedy"`` and ``"sampled"`` actions: see :func:`summary`."""
        return {"greedy": summary(self.episodes(model, True)), "sampled": summary(self.episodes(model, False))}

    def episodes(self, model: OnPolicyAlgorithm, greedy: bool) -> list[Episode]:
        """The episodes themselves; a second call with the same policy gives the same ones."""
        with separate_random_state(self._sampling_seed):
            return play(model, self._envs, self._seeds, greedy)


def summary(episodes: Sequence[Episode]) -> dict[str, float]:
    """Mean and standard deviation (divisor n) of the undiscounted return, success rate in 0..1, mean length.

    An episode is a success if the environment says so (``is_success``), else if its return is above 0. In MiniGrid
    only a solved episode has a reward: 1 − 0.9 · steps / limit.
    """
    returns = np.array([episode.total for episode in episodes])
    return {
        "mean_return": float(returns.mean()),
        "std_return": float(returns.std()),
        "success_rate": float(np.mean([episode.success for episode in episodes])),
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
    step = checked_step(state, f"{checkpoints}, checkpoint {name}")
    restore_policy(model, state)
    figures = evaluator(model)
    return {"checkpoint": name, "step": step, "actions": HEADLINE, **figures[HEADLINE], **figures}


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


def read_run(run_dir: Path) -> TrainConfig:
    """The resolved settings of a run of ``rl.train``, checked as if they were given now.

    Raises:
        InputError: no run folder, or settings that no run of ``rl.train`` has.
    """
    config = from_dict(TrainConfig, read_config(run_dir), str(run_dir / "config.yaml"))
    try:
        return resolved_again(config)
    except InputError as error:
        raise InputError(f"{run_dir / 'config.yaml'}: {error}") from error


def main(argv: Sequence[str] | None = None) -> None:
    """The command: read a run, play, print, and write only where asked to."""
    config = parse_config(
        EvaluateConfig, "python -m rl.evaluate", "python -m rl.evaluate --run runs/doorkey --video doorkey.gif", argv
    )
    if config.run is None:
        raise InputError("--run: needs the folder of a run that rl.train wrote")
    if config.episodes < 1:
        raise InputError(f"--episodes: expected a number above 0, got {config.episodes}")
    torch_device(config.device)
    if config.out is not None and Path(config.out).exists():
        raise InputError(f"--out: {config.out} exists already; name another file")
    if config.video is not None:
        check_video_file(Path(config.video), config.video_episodes)  # before minutes of evaluation
    run_dir = Path(config.run)
    # episodes are played in Python's MiniGrid, whatever the training ran on
    training = dataclasses.replace(read_run(run_dir), engine="minigrid")
    torch.set_num_threads(training.threads)
    model = build_model(training, build_envs(training))
    seed = training.seed if config.seed is None else config.seed
    wrapper = training.hyperparameters.get("env_wrapper")
    evaluator = Evaluator(training.env, wrapper, config.episodes, seed, FINAL)
    result = evaluate_checkpoint(model, run_dir / "checkpoints", config.checkpoint, evaluator)
    title = f"{training.env}, {training.loss}, {config.episodes} episodes"
    console().print(results_table(title, [result]))
    if config.out is not None:
        document = {**result, "episodes": config.episodes, "env": training.env, "loss": training.loss, "seed": seed}
        write_atomically(Path(config.out), (json.dumps(document, indent=2) + "\n").encode())
        print(f"written to {config.out}")
    if config.video is not None:
        about = f"{training.env}, {training.loss}, {config.checkpoint} policy"
        record_episodes(
            model, training.env, wrapper, evaluator.episodes(model, False), Path(config.video), about,
            config.video_episodes,
        )  # fmt: skip
        print(f"video {config.video}")


if __name__ == "__main__":
    run_command(main)
