"""Evaluate a run's policy over whole episodes: ``python -m rl.evaluate --run DIR``. See :mod:`rl.results.evaluator`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dem_apps.errors import InputError
from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import LARGEST_SEED, option, parse_config
from rl.config import import_environments, modules_option, read_run


@dataclass(frozen=True)
class EvaluateConfig:
    """Evaluate the policy of a run over whole episodes."""

    run: str = option("", "run folder that rl.train wrote", value="RUN", group="what is scored", needed=True)
    checkpoint: str = option("last", "which policy", choices=("last", "best"))
    episodes: int | None = option(
        None, "number of episodes; default: as many as the run was scored on", at_least=1, at_most=10**6
    )
    seed: int | None = option(
        None, "seed of the episodes; default: those of the run's own eval.json", at_least=0, at_most=LARGEST_SEED
    )
    device: str = option("cpu", "torch device")
    import_modules: str | None = modules_option()
    video: str | None = option(
        None, "write a .gif or .mp4 of episodes with sampled actions, best and worst among them", value="FILE",
        group="what is written",
    )  # fmt: skip
    video_episodes: int = option(4, "episodes in the video", at_least=1)
    out: str | None = option(None, "write the figures to this JSON file; without it nothing is written", value="FILE")


def main(argv: Sequence[str] | None = None) -> None:
    """The command: read a run, play, print, and write only where asked to."""
    config = parse_config(
        EvaluateConfig, "python -m rl.evaluate", "python -m rl.evaluate --run runs/doorkey --video doorkey.gif", argv
    )
    if config.out is not None and Path(config.out).exists():
        raise InputError(f"--out: {config.out} exists already; name another file")
    if config.video is None and config.video_episodes != EvaluateConfig.video_episodes:
        raise InputError("--video-episodes: belongs to --video, which is not given")
    _evaluate(config)


def _evaluate(config: EvaluateConfig) -> None:
    import torch

    from dem_apps.objectives.flags import given_options
    from dem_apps.runtime.device import torch_device
    from dem_apps.runtime.files import whole_file, write_new
    from dem_apps.runtime.terminal import console
    from rl.hook import with_entropy_objective
    from rl.results.evaluator import FINAL, Evaluator, evaluate_checkpoint, results_table
    from rl.results.video import check_video_file, record_episodes
    from rl.training.build import build_envs, build_model, observation_options
    from rl.training.entries import ALGORITHMS

    torch_device(config.device)
    if config.video is not None:
        check_video_file(Path(config.video), config.video_episodes)  # before minutes of evaluation
    run_dir = Path(config.run)
    import_environments(config.import_modules)
    training = read_run(run_dir)
    torch.set_num_threads(training.threads)
    entry = training.hyperparameters
    # with the hook, for the state of its objective in the checkpoint
    algorithm = with_entropy_objective(ALGORITHMS[training.algo], training.loss, **given_options(training))
    envs = build_envs(training.env, entry)
    model = build_model(algorithm, envs, entry, training.weight, training.seed, config.device)
    seed = training.seed if config.seed is None else config.seed
    episodes = training.final_episodes if config.episodes is None else config.episodes
    assert episodes is not None  # read_run has filled it in
    evaluator = Evaluator(
        training.env, episodes=episodes, seed=seed, purpose=FINAL, goal=training.goal_return,
        **observation_options(entry),
    )  # fmt: skip
    result = evaluate_checkpoint(model, run_dir / "checkpoints", config.checkpoint, evaluator)
    console().print(results_table(f"{training.env}, {training.loss}, {episodes} episodes", [result]))
    if config.out is not None:
        document = {**result, "episodes": episodes, "env": training.env, "loss": training.loss, "seed": seed}
        write_new(Path(config.out), (json.dumps(document, indent=2) + "\n").encode(), "--out")
        print(f"written to {config.out}")
    if config.video is not None:
        about = f"{training.env}, {training.loss}, {config.checkpoint} policy"
        with whole_file(Path(config.video), "--video") as own:
            record_episodes(
                model, training.env, evaluator.episodes(model, False), own, about, config.video_episodes,
                **observation_options(entry),
            )  # fmt: skip
        print(f"video {config.video}")


if __name__ == "__main__":
    run_command(main)
