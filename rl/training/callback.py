"""The callback of a training: between two rollouts it evaluates, logs, saves, stops on request and checks for NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from dem_apps.errors import NotFiniteError
from dem_apps.reduction import all_finite
from dem_apps.runtime.progress import Progress
from dem_apps.runtime.run_folder import RunFolder
from dem_apps.runtime.signals import StopRequest
from rl.config import GREEDY_EVERY, TrainConfig
from rl.results.described_metrics import ACTIONS
from rl.results.evaluator import HEADLINE, Evaluator
from rl.training.state import policy_state, train_state

#: Environment steps that one line of the log covers at least; PPO's rollouts are longer, A2C's much shorter.
STEPS_PER_LINE = 1000
#: Lines of the log between two checkpoints, if no evaluation comes first.
LINES_PER_CHECKPOINT = 10


class TrainingCallback(BaseCallback):
    """Evaluates, logs, saves and stops after an update and before the next rollout, when the rollout buffer is empty.

    What happens at a step depends on the step alone, so a resumed run does the same things at the same steps. ``best``
    is ``[mean return]`` of the best evaluation of a resumed run, or None. Raises NotFiniteError: a reward, an
    observation or a weight is NaN or infinite, before it spreads.
    """

    model: OnPolicyAlgorithm

    def __init__(
        self,
        config: TrainConfig,
        evaluator: Evaluator,
        run: RunFolder,
        stop: StopRequest,
        progress: Progress,
        best: list[float] | None,
    ) -> None:
        super().__init__()
        assert config.eval_freq is not None
        self._env_id, self._eval_freq, self._evaluator = config.env, config.eval_freq, evaluator
        self._run, self._stop, self._progress, self._best = run, stop, progress, best

    def _on_training_start(self) -> None:
        self._done_step = self.model.num_timesteps
        rollout = self.model.n_steps * self.model.n_envs
        self._stride = rollout * max(1, STEPS_PER_LINE // rollout)
        if self._done_step == 0:
            self._save()  # a run can be resumed from its first step on

    def _on_step(self) -> bool:
        observations = self.locals["new_obs"]
        parts = observations.values() if isinstance(observations, dict) else [observations]
        for what, arrays in (("reward", [self.locals["rewards"]]), ("observation", parts)):
            if not all(np.isfinite(array).all() for array in arrays):
                raise self._not_finite(
                    f"the {what} of an environment is NaN or infinite; training has stopped before it learnt from it"
                )
        self._count_failures()
        return True

    def _count_failures(self) -> None:
        """An episode that ends without ``is_success``, where another has had one, is a failure."""
        ended = [self.locals["infos"][index] for index in np.flatnonzero(self.locals["dones"])]
        successes = self.model.ep_success_buffer
        assert successes is not None
        if not successes and any("is_success" in info for info in ended):
            successes.extend([0.0] * len(self.model.ep_info_buffer or ()))
        for info in ended if successes else ():
            info.setdefault("is_success", 0.0)

    def _on_rollout_start(self) -> None:
        trained = self.model.num_timesteps > self._done_step
        self._update_done(last=False)
        # again: SB3 draws it before the checkpoint, after which a resumed run does
        if trained and self.model.use_sde:
            self.model.policy.reset_noise(self.model.n_envs)

    def _on_training_end(self) -> None:
        self._update_done(last=True)

    def _update_done(self, last: bool) -> None:
        if not all_finite(self.model.policy.state_dict().values()):
            raise self._not_finite("the update has left weights that are NaN or infinite")
        step = self.model.num_timesteps
        if not last and step % self._stride:
            return
        if step > self._done_step:  # else nothing was trained since the checkpoint
            self._done_step = step
            self._log_and_save(step, last)
        if self._stop.asked():
            self._save()
            raise self._stop.stopped(step)

    def _log_and_save(self, step: int, last: bool) -> None:
        evaluate = last or self._every(self._eval_freq)
        if evaluate:
            self._evaluate(
                step,
                ACTIONS if last or self._every(GREEDY_EVERY * self._eval_freq) else (HEADLINE,),
            )
        self.model.dump_logs()
        if evaluate or self._every(LINES_PER_CHECKPOINT * self._stride):
            self._save()
        self._progress.update(step)

    def _every(self, steps: int) -> bool:
        """Return whether a multiple of ``steps`` lies between the last log line and this one."""
        return self._done_step // steps > (self._done_step - self._stride) // steps

    def _evaluate(self, step: int, kinds: Sequence[str]) -> None:
        figures = self._evaluator(self.model, kinds)
        for actions in kinds:
            for name in ("mean_return", "std_return", "success_rate"):
                self._record(f"eval/{name}_{actions}", figures[actions][name])
        self._record("eval/success_rate", figures[HEADLINE]["success_rate"])
        score = figures[HEADLINE]["mean_return"]
        assert score is not None
        if self._best is None or score > self._best[0]:
            self._best = [score]
            self._run.save_checkpoint("best", policy_state(self.model))
        shown = (f"{figures[actions]['mean_return']:.3f} {actions}" for actions in kinds)
        self._progress.note(step, f"return {', '.join(shown)}")

    def _record(self, name: str, value: float | None) -> None:
        if value is not None:
            self.logger.record(name, value)

    def _save(self) -> None:
        self._run.save_checkpoint("last", {**train_state(self.model), "best": self._best})

    def _not_finite(self, problem: str) -> NotFiniteError:
        last = self._run.checkpoints / "last"
        return NotFiniteError(
            f"{self._env_id}, step {self.model.num_timesteps:,}: {problem}; the checkpoint {last} of step "
            f"{self._run.saved_step or 0:,} is from before, and --resume continues from it"
        )


class MetricsWriter(KVWriter):
    """Writes what SB3 logs to ``metrics.jsonl``, without wall-clock times: equal runs write equal files."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        """One line of ``metrics.jsonl``."""
        numbers = {
            key: value if isinstance(value, int) else float(value)
            for key, value in sorted(key_values.items())
            if not key.startswith("time/")
        }
        self._run.log(step, **numbers)
