"""One training of :mod:`rl.train`, from set-up to the scores of the last and the best policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from dem_apps.objectives.flags import given_options
from dem_apps.runtime.checkpoint import fitting, load_checkpoint
from dem_apps.runtime.files import new_run_dir
from dem_apps.runtime.progress import Progress
from dem_apps.runtime.reproducibility import deterministic_algorithms
from dem_apps.runtime.run_folder import RunFolder, checkpoint_to_resume
from dem_apps.runtime.run_reader import read_metrics
from dem_apps.runtime.signals import StopRequest, command_line, going_on_with, resume_command
from rl.config import TrainConfig, evaluation_length
from rl.envs.entries import ALGORITHMS, ENVIRONMENT_KEYS, find_entry, hyperparameter, normalisation
from rl.envs.episode import State
from rl.envs.make import drawn_from, make_training_envs, normalised
from rl.fast.ppo import FastPPO
from rl.hook import with_entropy_objective
from rl.results.described_metrics import described_metrics
from rl.results.evaluator import DURING_TRAINING, FINAL, HEADLINE, Evaluator, print_results
from rl.results.video import record_episodes
from rl.training.callback import MetricsWriter, TrainingCallback
from rl.training.state import (
    evaluate_checkpoint,
    restore_policy,
    restore_train_state,
    start_from,
)


def train(config: TrainConfig) -> None:
    """Set up → loop → save, for a resolved configuration."""
    with deterministic_algorithms(config.deterministic):
        torch.set_num_threads(config.threads)
        checkpoint = checkpoint_to_resume(Path(str(config.run_dir))) if config.resume else None
        model = untrained_model(config)
        # before the run folder is touched, which a checkpoint that does not fit must leave as it is
        if checkpoint is not None:
            restore_train_state(model, checkpoint)
        elif config.start_from is not None:
            start_from(model, Path(config.start_from))
        run = _open_run(config, checkpoint)
        model.set_logger(Logger(None, [MetricsWriter(run)]))
        _print_start(config, run, model)
        resume = " ".join([resume_command("rl.train", run.path), *_imports(config)])
        try:
            with going_on_with(f"continue with: {resume}"):
                with StopRequest(resume) as stop:
                    _learn(config, run, model, checkpoint, stop)
                _evaluate_run(config, run, model)
        finally:
            run.close()


def untrained_model(config: TrainConfig) -> OnPolicyAlgorithm:
    """The algorithm with its objective, on its environments; an InputError for a hyperparameter that SB3 refuses."""
    algorithm: type[OnPolicyAlgorithm] = ALGORITHMS[config.algo]
    if config.algo == "ppo" and config.update == "auto":
        algorithm = FastPPO
    algorithm = with_entropy_objective(algorithm, config.loss, **given_options(config))
    with drawn_from(config.seed):
        envs = build_envs(config.env, config.hyperparameters)
    entry = {**config.hyperparameters, "ent_coef": config.ent_coef}
    arguments = {
        key: hyperparameter(key, value)
        for key, value in entry.items()
        if key not in ENVIRONMENT_KEYS
    }
    with fitting("hyperparameters"):
        return algorithm(entry["policy"], envs, seed=config.seed, device=config.device, **arguments)


def model_of_run(config: TrainConfig, device: str = "cpu") -> OnPolicyAlgorithm:
    """SB3's own algorithm for the settings of a run, without the run's weights."""
    torch.set_num_threads(config.threads)
    return untrained_model(replace(config, device=device, update="sb3"))


def build_envs(env_id: str, entry: dict[str, Any]) -> VecEnv:
    """The training environments, as many and normalised as the hyperparameter entry says."""
    wanted = normalisation(entry.get("normalize", False))
    envs = make_training_envs(env_id, entry.get("env_wrapper"), int(entry.get("n_envs", 1)))
    return envs if wanted is None else normalised(envs, entry.get("gamma", 0.99), *wanted)


def _open_run(config: TrainConfig, checkpoint: State | None) -> RunFolder:
    name = config.env.replace("/", "-").replace(":", "-")
    path = Path(config.run_dir or new_run_dir("rl", name, config.loss, str(config.seed)))
    if config.resume:
        return RunFolder.resume(path, None if checkpoint is None else checkpoint["step"])
    return RunFolder.create(
        path, asdict(config), config.seed, config.device, described_metrics(_in_words(config))
    )


def _in_words(config: TrainConfig) -> str:
    return (
        f"{config.algo.upper()} with the entropy term '{config.loss}' (ent_coef {config.ent_coef})"
    )


def _imports(config: TrainConfig) -> list[str]:
    """The flag that other commands need to make the environment."""
    modules = [*(config.import_modules or "").split(","), config.env.rpartition(":")[0]]
    names = ",".join(dict.fromkeys(filter(None, modules)))
    return ["--import", names] if names else []


def _print_start(config: TrainConfig, run: RunFolder, model: OnPolicyAlgorithm) -> None:
    update = "SB3's own"
    if isinstance(model, FastPPO):
        why = model.not_fast
        update = "fast, with SB3's numbers up to rounding" if why is None else f"SB3's own: {why}"
    threads = "1 thread" if config.threads == 1 else f"{config.threads} threads"
    print(
        f"{_in_words(config)}, seed {config.seed}\n"
        f"  on      {config.env}, {model.n_envs} environments, {config.timesteps:,} steps, {config.device}, {threads}\n"
        f"  update  {update}"
    )
    if config.resume:
        print(f"  resumed at step {model.num_timesteps:,}")
    else:
        _, recipe = find_entry(
            config.env, config.algo, config.hyperparameters_file, config.hyperparameters
        )
        print(f"  recipe  {recipe}")
    print(f"  results {run.path}", flush=True)


def _learn(
    config: TrainConfig,
    run: RunFolder,
    model: OnPolicyAlgorithm,
    checkpoint: State | None,
    stop: StopRequest,
) -> None:
    assert config.timesteps is not None
    evaluator = build_evaluator(config, DURING_TRAINING, config.eval_episodes)
    done, rollout = model.num_timesteps, model.n_steps * model.n_envs
    # a rollout that has begun is finished
    rollouts = math.ceil(max(config.timesteps - done, 0) / rollout)
    progress = Progress(done + rollouts * rollout, done)
    best = checkpoint["best"] if checkpoint else None
    callback = TrainingCallback(config, evaluator, run, stop, progress, best)
    try:
        # the callback stops the training with a sentence
        with np.errstate(invalid="ignore", over="ignore"):
            model.learn(
                total_timesteps=config.timesteps - done,
                callback=callback,
                log_interval=None,  # type: ignore[arg-type]  # in SB3: the callback logs
                reset_num_timesteps=checkpoint is None,
            )
    finally:
        progress.close()


def _evaluate_run(config: TrainConfig, run: RunFolder, model: OnPolicyAlgorithm) -> None:
    """Score the last and the best policy on episodes that no evaluation during training has seen."""
    episodes = config.final_episodes or config.eval_episodes
    evaluator = build_evaluator(config, FINAL, episodes)
    last = evaluate_checkpoint(model, run.checkpoints, "last", evaluator)
    best = evaluate_checkpoint(model, run.checkpoints, "best", evaluator)
    names = ("env", "algo", "loss", "ent_coef", "seed", "timesteps", "deterministic")
    about = {"episodes": config.final_episodes, **{name: getattr(config, name) for name in names}}
    key = f"eval/mean_return_{HEADLINE}"
    returns = {line["step"]: line[key] for line in read_metrics(run.path) if key in line}
    figures = goal_figures(returns, config.goal_return)
    run.write_json("eval.json", {**last, **about, **figures, "best": best})
    print_results(f"{config.env}, {config.loss}", episodes, [last, best], verdict(config, figures))
    files = "eval.json, metrics.jsonl, checkpoints/"
    if config.video:
        files += ", videos/last.gif"
        _record_last(config, run, model, evaluator)
    print(f"files: {run.path}: {files}")
    export = ["--run", str(run.path), "--out", "policy.zip", *_imports(config)]
    print(f"next: {command_line('rl.export', export)}")
    print(f"next: {command_line('dem_apps.report', [str(run.path)])}")


def _record_last(
    config: TrainConfig, run: RunFolder, model: OnPolicyAlgorithm, evaluator: Evaluator
) -> None:
    """Write episodes of the last policy, unless a finished run that is resumed has them already."""
    video = run.path / "videos" / "last.gif"
    if video.exists():
        return
    video.parent.mkdir(exist_ok=True)
    # the best one was loaded after it
    restore_policy(model, load_checkpoint(run.checkpoints, "last"))
    title = f"{config.env}, {config.loss}, last policy"
    record_episodes(evaluator, model, evaluator.episodes(model, False), video, title)


def goal_figures(returns: Mapping[int, float], goal: float | None) -> dict[str, Any]:
    """The keys of ``eval.json`` about the time to the goal, from the return at each step of an evaluation.

    ``steps_to_goal`` is the first evaluation at the goal; None for a run censored at its last, ``steps_without_goal``.
    """
    first = last = None
    if goal is not None:
        last = max(returns, default=None)
        first = min((step for step, value in returns.items() if value >= goal), default=None)
    return {"goal_return": goal, "steps_to_goal": first, "steps_without_goal": first or last}


def verdict(config: TrainConfig, figures: Mapping[str, Any]) -> str:
    """A line for a terminal: when the run reached its goal."""
    goal, steps = figures["goal_return"], figures["steps_to_goal"]
    if goal is None:
        return "goal: none; --goal-return sets one"
    # whole rollouts, and so more than were asked for
    made = figures["steps_without_goal"] or config.timesteps
    when = f"not reached in {made:,} steps" if steps is None else f"first reached at step {steps:,}"
    return f"goal: return {goal:g}, {when} (evaluated every {config.eval_freq:,} steps)"


def build_evaluator(config: TrainConfig, purpose: int, episodes: int) -> Evaluator:
    """Return the :class:`Evaluator` of a training.

    Args:
        config: settings of the training.
        purpose: as the evaluator takes it.
        episodes: number of episodes.
    """
    wrapper = config.hyperparameters.get("env_wrapper")
    length = evaluation_length(config)
    return Evaluator(
        config.env, wrapper, episodes, config.seed, purpose, config.goal_return, length
    )
