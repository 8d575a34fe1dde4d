"""Train PPO or A2C with an entropy objective: ``python -m rl.train --env MiniGrid-DoorKey-5x5-v0``.

SB3's ``learn()`` runs the loop. Between two rollouts (:class:`BetweenRollouts`) it is evaluated, logged and saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from dem_apps.errors import NotFiniteError, run_command
from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.determinism import deterministic_algorithms
from dem_apps.runtime.progress import TrainingProgress
from dem_apps.runtime.run_folder import RunFolder, checkpoint_to_resume, default_run_dir, report_command
from dem_apps.runtime.settings import parse_config, to_dict
from dem_apps.runtime.signals import StopRequest, going_on_with, resume_command
from dem_apps.runtime.terminal import console
from rl.config import TrainConfig, resolve, resolved_again
from rl.evaluate import DURING_TRAINING, FINAL, HEADLINE, Evaluator, evaluate_checkpoint, results_table
from rl.results.described_metrics import described_metrics
from rl.results.video import record_episodes
from rl.training.build import build_envs, build_model, policy_state, restore_policy, update_in_words
from rl.training.nan_checks import check_rollout, check_step, check_update
from rl.training.resume import restore_training_state, training_state
from rl.training.sb3_import import start_from_zip

#: Environment steps that one line of the log covers at least; PPO's rollouts are longer, A2C's much shorter.
STEPS_PER_LINE = 1000
#: Lines of the log between two checkpoints, if no evaluation comes first.
LINES_PER_CHECKPOINT = 10


def main(argv: Sequence[str] | None = None) -> None:
    """The command: read settings, train, evaluate."""
    config = parse_config(
        TrainConfig, "python -m rl.train", "python -m rl.train --env MiniGrid-DoorKey-5x5-v0 --loss adadem", argv
    )
    train(resolved_again(config) if config.resume else resolve(config))


def train(config: TrainConfig) -> None:
    """Set up → loop → save, for a resolved configuration."""
    with deterministic_algorithms(config.deterministic):
        _train(config)


def _train(config: TrainConfig) -> None:
    torch.set_num_threads(config.threads)
    checkpoint = checkpoint_to_resume(Path(config.run_dir), 0) if config.resume and config.run_dir else None
    model = build_model(config, build_envs(config))
    # before the run folder is touched, which a checkpoint that does not fit must leave as it is
    if checkpoint is not None:
        restore_training_state(model, checkpoint)
    elif config.start_from_zip is not None and config.trust_pickled_code:
        start_from_zip(model, config.algo, Path(config.start_from_zip))
    run = _open_run(config, checkpoint)
    model.set_logger(Logger(None, [_MetricsWriter(run)]))
    _print_start(config, run, model)
    resume = resume_command("rl.train", run.path)
    try:
        with going_on_with(f"continue with: {resume}"):
            with StopRequest(resume, lambda: run.saved_step) as stop:
                _learn(config, run, model, checkpoint, stop)
            _evaluate_run(config, run, model)
    finally:
        run.close()


def _learn(
    config: TrainConfig,
    run: RunFolder,
    model: OnPolicyAlgorithm,
    checkpoint: dict[str, Any] | None,
    stop: StopRequest,
) -> None:
    between = BetweenRollouts(config, run, stop, checkpoint)
    try:
        with np.errstate(invalid="ignore", over="ignore"):  # what comes of it stops the training, in better words
            model.learn(
                total_timesteps=_timesteps(config) - model.num_timesteps,
                callback=between,
                log_interval=None,  # type: ignore[arg-type]  # SB3's way to say: the callback logs
                reset_num_timesteps=checkpoint is None,
            )
    except NotFiniteError as error:
        raise NotFiniteError(f"{error}; {between.way_back()}") from error
    finally:
        between.close()


class BetweenRollouts(BaseCallback):
    """Evaluates, logs and saves after an update and before the next rollout: the only moment without loose ends.

    What happens at a step depends on the step alone, never on what happened before, so a resumed run does the same
    things at the same steps.

    Args:
        config: resolved settings.
        run: where to log and save.
        stop: says when to save and end.
        checkpoint: what the run goes on from, or None.
    """

    def __init__(
        self, config: TrainConfig, run: RunFolder, stop: StopRequest, checkpoint: dict[str, Any] | None
    ) -> None:
        super().__init__()
        self._config, self._run, self._stop = config, run, stop
        # (sampled, greedy) mean return of the best evaluation so far
        self._best: list[float] | None = checkpoint["best"] if checkpoint else None
        self._unlogged = checkpoint.get("unlogged") if checkpoint else None
        wrapper = config.hyperparameters.get("env_wrapper")
        self._evaluator = Evaluator(config.env, wrapper, config.eval_episodes, config.seed, DURING_TRAINING)
        self._progress: TrainingProgress | None = None

    def _on_training_start(self) -> None:
        self._done_step = self.model.num_timesteps
        if self._unlogged is not None:
            self._done_step = self._unlogged["since"]
            self.logger.name_to_value.update(self._unlogged["values"])
        rollout = self.algorithm.n_steps * self.algorithm.n_envs
        self._stride = rollout * max(1, STEPS_PER_LINE // rollout)
        if self.model.num_timesteps == 0:
            self._save()  # so that a run can be resumed from its first moment
        self._progress = TrainingProgress(_timesteps(self._config), self.model.num_timesteps)

    def _on_step(self) -> bool:
        check_step(self.locals["rewards"], self.locals["new_obs"], self._config.env, self.model.num_timesteps)
        return True

    def _on_rollout_end(self) -> None:
        check_rollout(self.algorithm, self._config.env)

    def _on_rollout_start(self) -> None:
        check_update(self.algorithm, self.logger.name_to_value, self._config.env)
        self._stop_if_asked()
        if self.model.num_timesteps % self._stride == 0:
            self._update_done(last=False)
            self._stop_if_asked()  # not after another rollout: an evaluation may have taken its time

    def _on_training_end(self) -> None:
        check_update(self.algorithm, self.logger.name_to_value, self._config.env)
        self._stop_if_asked()
        self._update_done(last=True)
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if self._stop.asked():
            self._save()
            raise self._stop.stopped(self.model.num_timesteps)

    def _update_done(self, last: bool) -> None:
        step = self.model.num_timesteps
        if step == self._done_step:  # nothing was trained since this was last called, or since the checkpoint
            return
        self._done_step = step
        evaluate = last or self._every(_eval_freq(self._config))
        if evaluate:
            self._evaluate(step)
        self.algorithm.dump_logs()
        if evaluate or self._every(LINES_PER_CHECKPOINT * self._stride):
            self._save()
        if self._progress is not None:
            self._progress.update(step)

    def _every(self, steps: int) -> bool:
        """Whether a multiple of ``steps`` lies between the previous line of the log and this one."""
        return self._done_step // steps > (self._done_step - self._stride) // steps

    def _evaluate(self, step: int) -> None:
        figures = self._evaluator(self.algorithm)
        for actions in ("greedy", "sampled"):
            for name in ("mean_return", "std_return", "success_rate"):
                self.logger.record(f"eval/{name}_{actions}", figures[actions][name])
        self.logger.record("eval/success_rate", figures[HEADLINE]["success_rate"])
        score = [figures["sampled"]["mean_return"], figures["greedy"]["mean_return"]]
        if self._best is None or score > self._best:
            self._best = score
            self._run.save_checkpoint("best", policy_state(self.algorithm), step)
        if self._progress is not None:
            self._progress.note(step, f"return {score[0]:.3f} sampled, {score[1]:.3f} greedy")

    def _save(self) -> None:
        state = {**training_state(self.algorithm), "best": self._best, "unlogged": None}
        if self._done_step < self.model.num_timesteps:
            # between two lines of the log: what the next one will say is known in part
            state["unlogged"] = {"since": self._done_step, "values": _numbers(self.logger.name_to_value)}
        self._run.save_checkpoint("last", state, self.model.num_timesteps)

    def way_back(self) -> str:
        """Which checkpoint is from before something went wrong."""
        if self._run.saved_step is None:
            return "no checkpoint had been saved yet"
        last = self._run.checkpoints / "last"
        return f"the checkpoint {last} of step {self._run.saved_step:,} is from before, and --resume continues from it"

    @property
    def algorithm(self) -> OnPolicyAlgorithm:
        """The model, with the type that it has here."""
        assert isinstance(self.model, OnPolicyAlgorithm)
        return self.model

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._progress is not None:
            self._progress.close()


class _MetricsWriter(KVWriter):
    """Forwards what SB3 logs to the run folder."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        self._run.log(step, **_numbers(key_values))

    def close(self) -> None:
        """The run folder is closed by whoever opened it."""


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    """What SB3 logs, without wall-clock times: equal runs write equal files."""
    return {
        key: value if isinstance(value, int) else float(value)
        for key, value in sorted(values.items())
        if not key.startswith("time/")
    }


def _open_run(config: TrainConfig, checkpoint: dict[str, Any] | None) -> RunFolder:
    if config.resume and config.run_dir is not None:
        step = checkpoint["step"] if checkpoint is not None else None
        return RunFolder.resume(Path(config.run_dir), step, described_metrics())
    path = Path(config.run_dir) if config.run_dir else default_run_dir("rl", config.env, config.loss, str(config.seed))
    return RunFolder.create(path, to_dict(config), config.seed, config.device, described_metrics())


def _print_start(config: TrainConfig, run: RunFolder, model: OnPolicyAlgorithm) -> None:
    threads = "1 thread" if config.threads == 1 else f"{config.threads} threads"
    print(
        f"{config.algo.upper()} with the entropy term '{config.loss}' (ent_coef {config.ent_coef}), seed {config.seed}"
    )
    print(
        f"  on      {config.env}, {model.n_envs} environments ({config.engine}), {_timesteps(config):,} steps, "
        f"{config.device}, {threads}"
    )
    print(f"  update  {update_in_words(config, model)}")
    print(f"  results {run.path}", flush=True)
    if config.resume:
        print(f"  resumed at step {model.num_timesteps:,}{_what_is_not_exact(config)}", flush=True)


def _what_is_not_exact(config: TrainConfig) -> str:
    if config.engine == "minigrid":
        return ""
    return (
        "; not exactly: envpool's environments start new episodes with layouts that an unbroken run would not have "
        "had, while weights, optimiser, statistics and sampling go on from where they were"
    )


def _evaluate_run(config: TrainConfig, run: RunFolder, model: OnPolicyAlgorithm) -> None:
    """Score the last and the best policy on episodes that no evaluation during training has seen."""
    wrapper = config.hyperparameters.get("env_wrapper")
    evaluator = Evaluator(config.env, wrapper, config.eval_episodes, config.seed, FINAL)
    last, best = (evaluate_checkpoint(model, run.checkpoints, name, evaluator) for name in ("last", "best"))
    about = {
        "episodes": config.eval_episodes, "env": config.env, "algo": config.algo, "loss": config.loss,
        "ent_coef": config.ent_coef, "seed": config.seed, "timesteps": config.timesteps,
        "deterministic": config.deterministic,
    }  # fmt: skip
    file = run.write_json("eval.json", {**last, **about, "best": best})
    console().print(results_table(f"{config.env}, {config.loss}, {config.eval_episodes} episodes", [last, best]))
    if config.video:
        _record(config, run, model, evaluator)
    print(f"figures     {file}\ncurves      {run.path / 'metrics.jsonl'}\ncheckpoints {run.checkpoints}")
    print(f"report      {report_command(run.path)}")


def _record(config: TrainConfig, run: RunFolder, model: OnPolicyAlgorithm, evaluator: Evaluator) -> None:
    """The last policy's best and worst episodes; a finished run that is resumed has them already."""
    video = run.path / "videos" / "last.gif"
    if video.exists():
        return
    video.parent.mkdir(exist_ok=True)
    restore_policy(model, load_checkpoint(run.checkpoints, "last"))  # the best one was loaded after it
    wrapper = config.hyperparameters.get("env_wrapper")
    about = f"{config.env}, {config.loss}, last policy"
    record_episodes(model, config.env, wrapper, evaluator.episodes(model, False), video, about)
    print(f"video       {video}")


def _timesteps(config: TrainConfig) -> int:
    assert config.timesteps is not None  # resolve() has filled it in
    return config.timesteps


def _eval_freq(config: TrainConfig) -> int:
    assert config.eval_freq is not None  # resolve() has filled it in
    return config.eval_freq


if __name__ == "__main__":
    run_command(main)
