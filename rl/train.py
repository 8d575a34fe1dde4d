"""Train PPO or A2C with an entropy objective: ``python -m rl.train --env MiniGrid-DoorKey-5x5-v0``.

The objective comes in by :func:`rl.hook.with_entropy_objective`: a subclass of SB3's algorithm whose policy returns it
where SB3 expects the entropy. That is all that a training of your own needs. SB3's ``learn()`` runs the loop, and
between two rollouts :class:`rl.training.between_rollouts.BetweenRollouts` evaluates, logs and saves.

By default PPO takes a fast path to the same numbers up to rounding: :class:`rl.fast.ppo.FastPPO` is SB3's PPO with
rollout and update written out in numpy and C++, where it can serve the policy and the environments; ``--update sb3``
leaves SB3's own code in place. The hook is the same for both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from dem_apps.errors import InputError, NotFiniteError
from dem_apps.objectives.flags import given_options
from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.command import run_command
from dem_apps.runtime.files import new_run_dir
from dem_apps.runtime.reproducibility import deterministic_algorithms
from dem_apps.runtime.run_folder import RunFolder, checkpoint_to_resume, report_command
from dem_apps.runtime.run_reader import read_metrics
from dem_apps.runtime.settings import parse_config, to_dict
from dem_apps.runtime.signals import StopRequest, going_on_with, resume_command
from dem_apps.runtime.terminal import console
from rl.config import (
    TrainConfig,
    import_environments,
    recipe_in_words,
    refuse_module_of_a_file,
    resolve,
    resolved_again,
)
from rl.envs.make import check_env_id
from rl.fast.ppo import FastPPO
from rl.hook import with_entropy_objective
from rl.results.described_metrics import described_metrics
from rl.results.evaluator import DURING_TRAINING, FINAL, HEADLINE, Evaluator, evaluate_checkpoint, results_table
from rl.results.video import record_episodes
from rl.training.between_rollouts import BetweenRollouts, MetricsWriter
from rl.training.build import build_envs, build_model, observation_options, restore_policy, update_in_words
from rl.training.entries import ALGORITHMS
from rl.training.resume import restore_train_state
from rl.training.sb3_import import start_from_zip
from rl.training.verdict import goal_figures, verdict


def main(argv: Sequence[str] | None = None) -> None:
    """The command: read settings, train, evaluate."""
    config = parse_config(
        TrainConfig, "python -m rl.train", "python -m rl.train --env MiniGrid-DoorKey-5x5-v0 --loss adadem", argv
    )
    import_environments(config.import_modules)
    given = sys.argv[1:] if argv is None else argv
    if not {config.env, f"--env={config.env}"} & set(given):
        refuse_module_of_a_file(config.env)
    elif config.resume:
        check_env_id(config.env)
    train(resolved_again(config) if config.resume else resolve(config))


def train(config: TrainConfig) -> None:
    """Set up → loop → save, for a resolved configuration."""
    with deterministic_algorithms(config.deterministic):
        _train(config)


def _train(config: TrainConfig) -> None:
    torch.set_num_threads(config.threads)
    checkpoint = checkpoint_to_resume(Path(config.run_dir)) if config.resume and config.run_dir else None
    model = untrained_model(config)
    # before the run folder is touched, which a checkpoint that does not fit must leave as it is
    if checkpoint is not None:
        restore_train_state(model, checkpoint)
    start = None if checkpoint is not None or config.start_from_zip is None else _start_from_zip(model, config)
    run = _open_run(config, checkpoint)
    model.set_logger(Logger(None, [MetricsWriter(run)]))
    _print_start(config, run, model, start)
    resume = resume_command("rl.train", run.path)
    modules = [*(config.import_modules or "").split(","), config.env.rpartition(":")[0]]
    if any(modules):
        resume += f" --import {','.join(dict.fromkeys(filter(None, modules)))}"
    try:
        with going_on_with(f"continue with: {resume}"):
            with StopRequest(resume) as stop:
                _learn(config, run, model, checkpoint, stop)
            _evaluate_run(config, run, model)
    finally:
        run.close()


def untrained_model(config: TrainConfig) -> OnPolicyAlgorithm:
    """The algorithm with the objective as its entropy term, on its environments; it has not learnt anything yet."""
    fast = config.algo == "ppo" and config.update == "auto"
    algorithm: type[OnPolicyAlgorithm] = FastPPO if fast else ALGORITHMS[config.algo]
    algorithm = with_entropy_objective(algorithm, config.loss, **given_options(config))
    envs = build_envs(config.env, config.hyperparameters, config.engine, config.seed)
    return build_model(algorithm, envs, config.hyperparameters, config.weight, config.seed, config.device)


def _learn(
    config: TrainConfig, run: RunFolder, model: OnPolicyAlgorithm, checkpoint: dict[str, Any] | None, stop: StopRequest
) -> None:
    timesteps, eval_freq = _filled_in(config.timesteps), _filled_in(config.eval_freq)
    between = BetweenRollouts(
        config.env, timesteps, eval_freq, _evaluator(config, DURING_TRAINING), run, stop, checkpoint
    )
    try:
        with np.errstate(invalid="ignore", over="ignore"):  # what comes of it stops the training, in better words
            model.learn(
                total_timesteps=timesteps - model.num_timesteps,
                callback=between,
                log_interval=None,  # type: ignore[arg-type]  # SB3's way to say: the callback logs
                reset_num_timesteps=checkpoint is None,
            )
    except NotFiniteError as error:
        raise NotFiniteError(f"{error}; {between.way_back()}") from error
    finally:
        between.close()


def _start_from_zip(model: OnPolicyAlgorithm, config: TrainConfig) -> str:
    if not config.trust_pickled_code:  # a run that is resumed before its first checkpoint
        raise InputError("--resume: the run starts from a zip once more; add --trust-pickled-code")
    return start_from_zip(model, config.algo, Path(str(config.start_from_zip)))


def _open_run(config: TrainConfig, checkpoint: dict[str, Any] | None) -> RunFolder:
    if config.resume and config.run_dir is not None:
        step = checkpoint["step"] if checkpoint is not None else None
        return RunFolder.resume(Path(config.run_dir), step, described_metrics())
    env = config.env.replace("/", "-").replace(":", "-")
    path = Path(config.run_dir) if config.run_dir else new_run_dir("rl", env, config.loss, str(config.seed))
    return RunFolder.create(path, to_dict(config), config.seed, config.device, described_metrics())


def _print_start(config: TrainConfig, run: RunFolder, model: OnPolicyAlgorithm, start: str | None) -> None:
    threads = "1 thread" if config.threads == 1 else f"{config.threads} threads"
    print(
        f"{config.algo.upper()} with the entropy term '{config.loss}' (ent_coef {config.ent_coef}), seed {config.seed}"
    )
    print(
        f"  on      {config.env}, {model.n_envs} environments ({config.engine}), {config.timesteps:,} steps, "
        f"{config.device}, {threads}"
    )
    print(f"  update  {update_in_words(model, config.update)}")
    if not config.resume and (recipe := recipe_in_words(config)) is not None:
        print(f"  recipe  {recipe}")
    if start is not None:
        print(f"  start   {start}")
    print(f"  results {run.path}", flush=True)
    if config.resume:
        print(f"  resumed at step {model.num_timesteps:,}{_what_is_not_exact(config)}", flush=True)


def _what_is_not_exact(config: TrainConfig) -> str:
    if config.engine == "gymnasium":
        return ""
    return (
        "; not exactly: envpool's environments start new episodes with layouts that an unbroken run would not have "
        "had, while weights, optimiser, statistics and sampling go on from where they were"
    )


def _evaluate_run(config: TrainConfig, run: RunFolder, model: OnPolicyAlgorithm) -> None:
    """Score the last and the best policy on episodes that no evaluation during training has seen."""
    evaluator = _evaluator(config, FINAL)
    episodes = _filled_in(config.final_episodes)
    last, best = (evaluate_checkpoint(model, run.checkpoints, name, evaluator) for name in ("last", "best"))
    about = {
        "episodes": episodes, "env": config.env, "algo": config.algo, "loss": config.loss,
        "ent_coef": config.ent_coef, "seed": config.seed, "timesteps": config.timesteps,
        "deterministic": config.deterministic,
    }  # fmt: skip
    lines = read_metrics(run.path)
    key = f"eval/mean_return_{HEADLINE}"
    returns = {line["step"]: line[key] for line in lines if key in line}
    figures = goal_figures(returns, config.goal_return)
    file = run.write_json("eval.json", {**last, **about, **figures, "best": best})
    console().print(results_table(f"{config.env}, {config.loss}, {episodes} episodes", [last, best]))
    if config.video:
        _record(config, run, model, evaluator)
    print("\n".join(verdict(config, returns, last["mean_return"], figures)))
    print(f"figures     {file}\ncurves      {run.path / 'metrics.jsonl'}\ncheckpoints {run.checkpoints}")
    print(f"report      {report_command(run.path)}")


def _record(config: TrainConfig, run: RunFolder, model: OnPolicyAlgorithm, evaluator: Evaluator) -> None:
    """The last policy's best and worst episodes; a finished run that is resumed has them already."""
    video = run.path / "videos" / "last.gif"
    if video.exists():
        return
    video.parent.mkdir(exist_ok=True)
    restore_policy(model, load_checkpoint(run.checkpoints, "last"))  # the best one was loaded after it
    about = f"{config.env}, {config.loss}, last policy"
    episodes = evaluator.episodes(model, False)
    record_episodes(model, config.env, episodes, video, about, **observation_options(config.hyperparameters))
    print(f"video       {video}")


def _evaluator(config: TrainConfig, purpose: int) -> Evaluator:
    episodes = _filled_in(config.final_episodes) if purpose == FINAL else config.eval_episodes
    return Evaluator(
        config.env, episodes=episodes, seed=config.seed, purpose=purpose, goal=config.goal_return,
        **observation_options(config.hyperparameters),
    )  # fmt: skip


def _filled_in(value: int | None) -> int:
    """A setting that :func:`rl.config.resolve` has filled in."""
    assert value is not None
    return value


if __name__ == "__main__":
    run_command(main)
