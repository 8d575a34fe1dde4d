"""The callback of a training: between two rollouts it evaluates, logs, saves, stops on request and checks for NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from dem_apps.errors import NotFiniteError
from dem_apps.runtime.checkpoint import all_finite
from dem_apps.runtime.progress import Progress
from dem_apps.runtime.run_folder import RunFolder
from dem_apps.runtime.signals import StopRequest
from rl.results.described_metrics import ACTIONS
from rl.results.evaluator import HEADLINE, Evaluator
from rl.training.build import policy_state
from rl.training.resume import train_state

#: Environment steps that one line of the log covers at least; PPO's rollouts are longer, A2C's much shorter.
STEPS_PER_LINE = 1000
#: Greedy actions are evaluated at every fifth evaluation and the last one: a greedy policy that turns in circles, as
#: many do until late, plays every episode to its limit.
GREEDY_EVERY = 5
#: Lines of the log between two checkpoints, if no evaluation comes first.
LINES_PER_CHECKPOINT = 10
#: Logged values of an update that must be finite; explained variance is NaN where the returns do not vary.
_LOSSES = ("loss", "value_loss", "policy_loss", "policy_gradient_loss", "entropy_loss", "entropy_objective")


class TrainingCallback(BaseCallback):
    """Evaluates, logs and saves after an update and before the next rollout, when the rollout buffer is empty.

    What happens at a step depends on the step alone, so a resumed run does the same things at the same steps.

    Args:
        env_id: for errors.
        timesteps: environment steps of the whole training, for the progress bar.
        eval_freq: environment steps between two evaluations.
        evaluator: of episodes that the final scores do not see.
        run: gets the log and the checkpoints ``last`` and ``best``.
        stop: says when to save and end.
        checkpoint: what the run goes on from; None at its beginning.

    Raises:
        NotFiniteError: a reward, an observation, an advantage, a loss or a weight is NaN or infinite. NaN spreads: one
            reward makes the running variance NaN, and after one more update no weight is a number.
    """

    def __init__(
        self, env_id: str, timesteps: int, eval_freq: int, evaluator: Evaluator, run: RunFolder, stop: StopRequest,
        checkpoint: dict[str, Any] | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._env_id, self._timesteps, self._eval_freq = env_id, timesteps, eval_freq
        self._evaluator, self._run, self._stop = evaluator, run, stop
        # mean return of the best evaluation so far, in a list as checkpoints have it
        self._best: list[float] | None = checkpoint["best"] if checkpoint else None
        self._unlogged = checkpoint["unlogged"] if checkpoint else None
        self._progress: Progress | None = None

    def _on_training_start(self) -> None:
        self._done_step = self.model.num_timesteps
        if self._unlogged is not None:
            self._done_step = self._unlogged["since"]
            self.logger.name_to_value.update(self._unlogged["values"])
        rollout = self.algorithm.n_steps * self.algorithm.n_envs
        self._stride = rollout * max(1, STEPS_PER_LINE // rollout)
        if self.model.num_timesteps == 0:
            self._save()  # a run can be resumed from its first step on
        done = self.model.num_timesteps
        # a rollout that has begun is finished
        total = done + -(-max(self._timesteps - done, 0) // rollout) * rollout
        self._progress = Progress(total, done)

    def _on_step(self) -> bool:
        observations = self.locals["new_obs"]
        parts = observations.values() if isinstance(observations, dict) else [observations]
        for what, values in (("reward", self.locals["rewards"]), *(("observation", part) for part in parts)):
            if not np.isfinite(values).all():
                wrong = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
                raise self._not_finite(
                    f"the {what} of environment {_numbered(wrong)} is NaN or infinite; training has stopped before it "
                    "learnt from it"
                )
        return True

    def _on_rollout_end(self) -> None:
        finite = np.isfinite(self.algorithm.rollout_buffer.advantages)
        if not finite.all():
            raise self._not_finite(
                f"the advantages of environment {_numbered(~finite.all(axis=0))} are NaN or infinite, so its rewards "
                "or the policy's values are; training has stopped before this update"
            )

    def _on_rollout_start(self) -> None:
        self._check_update()
        self._stop_if_asked()
        if self.model.num_timesteps % self._stride == 0:
            self._update_done(last=False)
            self._stop_if_asked()  # not after another rollout: an evaluation may have taken its time

    def _on_training_end(self) -> None:
        self._check_update()
        self._stop_if_asked()
        self._update_done(last=True)
        self._stop_if_asked()

    def _check_update(self) -> None:
        logged = self.logger.name_to_value
        for name in (f"train/{loss}" for loss in _LOSSES):
            if name in logged and not math.isfinite(logged[name]):
                raise self._not_finite(f"{name} of the update is {float(logged[name])}")
        if not all_finite(self.model.policy.state_dict().values()):
            raise self._not_finite("the update has left weights that are NaN or infinite")

    def _not_finite(self, problem: str) -> NotFiniteError:
        if self._run.saved_step is None:
            return NotFiniteError(f"{self._env_id}, step {self.model.num_timesteps:,}: {problem}")
        last = self._run.checkpoints / "last"
        return NotFiniteError(
            f"{self._env_id}, step {self.model.num_timesteps:,}: {problem}; the checkpoint {last} of step "
            f"{self._run.saved_step:,} is from before, and --resume continues from it"
        )

    def _stop_if_asked(self) -> None:
        if self._stop.asked():
            self._save()
            raise self._stop.stopped(self.model.num_timesteps)

    def _update_done(self, last: bool) -> None:
        step = self.model.num_timesteps
        if step == self._done_step:  # nothing was trained since this was last called, or since the checkpoint
            return
        self._done_step = step
        evaluate = last or self._every(self._eval_freq)
        if evaluate:
            self._evaluate(step, ACTIONS if last or self._every(GREEDY_EVERY * self._eval_freq) else (HEADLINE,))
        self.algorithm.dump_logs()
        if evaluate or self._every(LINES_PER_CHECKPOINT * self._stride):
            self._save()
        if self._progress is not None:
            self._progress.update(step)

    def _every(self, steps: int) -> bool:
        """Whether a multiple of ``steps`` lies between the previous line of the log and this one."""
        return self._done_step // steps > (self._done_step - self._stride) // steps

    def _evaluate(self, step: int, kinds: Sequence[str]) -> None:
        figures = self._evaluator(self.algorithm, kinds)
        for actions in kinds:
            for name in ("mean_return", "std_return", "success_rate"):
                self.logger.record(f"eval/{name}_{actions}", figures[actions][name])
        self.logger.record("eval/success_rate", figures[HEADLINE]["success_rate"])
        score = figures[HEADLINE]["mean_return"]
        if self._best is None or score > self._best[0]:
            self._best = [score]
            self._run.save_checkpoint("best", policy_state(self.algorithm))
        if self._progress is not None:
            shown = (f"{figures[actions]['mean_return']:.3f} {actions}" for actions in ACTIONS if actions in figures)
            self._progress.note(step, f"return {', '.join(shown)}")

    def _save(self) -> None:
        state = {**train_state(self.algorithm), "best": self._best, "unlogged": None}
        if self._done_step < self.model.num_timesteps:
            # between two lines of the log: part of the next line is known
            state["unlogged"] = {"since": self._done_step, "values": _numbers(self.logger.name_to_value)}
        self._run.save_checkpoint("last", state)

    @property
    def algorithm(self) -> OnPolicyAlgorithm:
        """The model, with the type that it has here."""
        assert isinstance(self.model, OnPolicyAlgorithm)
        return self.model

    def close(self) -> None:
        """Close the progress bar."""
        if self._progress is not None:
            self._progress.close()


class MetricsWriter(KVWriter):
    """Writes what SB3 logs to the run folder's ``metrics.jsonl``."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """One line of ``metrics.jsonl``."""
        self._run.log(step, **_numbers(key_values))

    def close(self) -> None:
        """Nothing: the run folder is closed by the command."""


def _numbered(wrong: np.ndarray) -> str:
    return ", ".join(map(str, np.flatnonzero(wrong)))


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    """What SB3 logs, without wall-clock times: equal runs write equal files."""
    return {
        key: value if isinstance(value, int) else float(value)
        for key, value in sorted(values.items())
        if not key.startswith("time/")
    }
