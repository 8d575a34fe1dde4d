"""PPO with SB3's numbers at several times its speed, for the policy of MiniGrid and of most small tasks.

:class:`FastPPO` replaces rollout and update of SB3's PPO, with its gradient written out. Both draw SB3's random numbers
and leave policy, optimiser and normalisation as SB3 would. After 320 updates weights differ by less than 1e-6.

PPO: Schulman et al., Proximal Policy Optimization Algorithms, 2017 (arXiv 1707.06347), Eq. 7 and Eq. 9.
Shapes: N samples of a rollout, B of a minibatch, A actions, D columns of the observations in use.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import explained_variance
from stable_baselines3.common.vec_env import VecEnv

from dem_apps import EntropyObjective
from dem_apps.fused.build_kernel import address
from dem_apps.fused.numpy_objective import by_equations, entropy_gradient, log_softmax
from rl.fast.compact_normalize import CompactNormalize, widened
from rl.fast.network import Network, drawn, why_no_network
from rl.hook.algorithm import NONE, STOCK, EntropyObjectivePolicy

#: A function of logits, log-probabilities and probabilities, (B, A) each, and entropies (B,).
#: It returns the mean of the entropy term, and its gradient by the logits (B, A).
Term = Callable[..., tuple[float, np.ndarray]]
#: Values that a minibatch logs, by SB3's names, and its entropy.
Figures = dict[str, float]


class FastPPO(PPO):
    """SB3's PPO, faster where :attr:`not_fast` has nothing against it and SB3's own code elsewhere.

    Works with and without :func:`rl.with_entropy_objective`. Between a rollout and its update ``rollout_buffer``
    holds the observations' columns in use only, where the environments are in a :class:`CompactNormalize`.
    """

    @property
    def not_fast(self) -> str | None:
        """Why this model is trained by SB3's own code, as half a sentence; None where the fast code serves."""
        optimizer = self.policy.optimizer
        group = optimizer.param_groups[0]
        if type(optimizer) is not torch.optim.Adam or group["weight_decay"] or group["amsgrad"]:
            return "the optimiser is not Adam without options"
        return why_no_network(self)

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,
        n_rollout_steps: int,
    ) -> bool:
        """As in SB3."""
        if self.not_fast is not None:
            return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
        assert isinstance(self._last_obs, np.ndarray)
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        callback.on_rollout_start()
        compact = _compact(env)
        columns = compact.columns
        network = Network(self.policy, columns)
        obs = self._last_obs.take(columns, axis=1)
        stored = np.zeros((n_rollout_steps, *obs.shape), np.float32)
        for step in range(n_rollout_steps):
            log_p, p = log_softmax(network.actor(obs))
            actions = drawn(p)  # from torch's global generator, as SB3's Categorical
            rollout_buffer.values[step] = network.critic(obs)[:, 0]
            rollout_buffer.log_probs[step] = log_p[np.arange(len(actions)), actions]
            rollout_buffer.actions[step, :, 0] = actions
            # before the step, for an environment may write into the arrays that it has returned
            stored[step] = obs
            rollout_buffer.episode_starts[step] = self._last_episode_starts
            new_obs, rewards, dones, infos = compact.step_compact(actions)
            self.num_timesteps += env.num_envs
            callback.update_locals(locals())
            if not callback.on_step():
                return False
            self._update_info_buffer(infos, dones)
            if new_obs.shape[1] > len(columns):  # a column has come into use
                stored = widened(stored, columns, compact.columns)
                columns = compact.columns
                network = Network(self.policy, columns)
            # its value is added as SB3 does (its issue 633)
            for index in np.flatnonzero(dones):
                if infos[index].get("TimeLimit.truncated", False):
                    last = infos[index]["terminal_observation"][None].take(columns, axis=1)
                    rewards[index] += self.gamma * network.critic(last)[0, 0]
            rollout_buffer.rewards[step] = rewards
            obs, self._last_episode_starts = new_obs, dones
        self._last_obs = compact.expand(obs)
        rollout_buffer.observations = stored
        rollout_buffer.pos, rollout_buffer.full = n_rollout_steps, True
        rollout_buffer.compute_returns_and_advantage(
            torch.from_numpy(network.critic(obs)[:, 0]), dones
        )
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def train(self) -> None:
        """As in SB3."""
        if self.not_fast is not None:
            super().train()
            return
        assert self.env is not None
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        network = Network(self.policy, _compact(self.env).columns, with_adam=True)
        with torch.no_grad():
            epochs = self._update(network)
        network.write_back()
        self._n_updates += len(epochs)
        every = {
            name: [figures[name] for epoch in epochs for figures in epoch]
            for name in epochs[-1][-1]
        }
        entropies = every.pop("entropy")
        if isinstance(self.policy, EntropyObjectivePolicy):
            self.policy.entropy_totals += (
                -sum(every["entropy_loss"]),
                sum(entropies),
                len(entropies),
            )
        # as in SB3, approx_kl is that of the last epoch and loss that of the last minibatch
        every |= {
            "approx_kl": [figures["approx_kl"] for figures in epochs[-1]],
            "loss": every["loss"][-1:],
        }
        self._log({name: np.mean(values) for name, values in every.items()})

    def _update(self, network: Network) -> list[list[Figures]]:
        """Train the network on the rollout, ``n_epochs`` times over; the figures of each epoch's minibatches."""
        samples, term, clips = _samples(self.rollout_buffer), _term(self.policy), self._clips()
        epochs = list[list[Figures]]()
        for _ in range(self.n_epochs):
            order = np.random.permutation(len(samples[0]))  # by numpy's global generator, as in SB3
            shuffled = [array[order] for array in samples]
            epochs.append([])
            for start in range(0, len(order), self.batch_size):
                observations, *taken = (
                    array[start : start + self.batch_size] for array in shuffled
                )
                logits, values = network.actor(observations), network.critic(observations)[:, 0]
                losses, log_p, p, by_logits, entropy, by_values = self._losses(
                    network.kernel, logits, values, taken, clips
                )
                policy_loss, value_loss, divergence, clip_fraction, mean_entropy = losses
                value, term_by_logits = term(logits, log_p, p, entropy)
                epochs[-1].append(
                    {
                        "policy_gradient_loss": policy_loss,
                        "value_loss": value_loss,
                        "entropy_loss": -value,
                        "clip_fraction": clip_fraction,
                        "approx_kl": divergence,
                        "loss": policy_loss - self.ent_coef * value + self.vf_coef * value_loss,
                        "entropy": mean_entropy,
                    }
                )
                if self.target_kl is not None and divergence > 1.5 * self.target_kl:
                    return epochs  # the policy has moved too far
                network.actor.backward(by_logits - np.float32(self.ent_coef) * term_by_logits)
                network.critic.backward(by_values[:, None])
                network.step(self.max_grad_norm)
        return epochs

    def _losses(
        self,
        kernel: ctypes.CDLL,
        logits: np.ndarray,
        values: np.ndarray,
        taken: list[np.ndarray],
        clips: dict[str, float],
    ) -> tuple[list[float], np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Compute the losses in C++, without the entropy term.

        Args:
            kernel: the library that computes them.
            logits: (B, A).
            values: (B,).
            taken: a minibatch of what :func:`_samples` has behind the observations.
            clips: the clip ranges, as :meth:`_clips` has them.

        Returns:
            the losses of policy and values, the KL divergence, the clipped share and the mean
            entropy;
            log-probabilities, probabilities and the policy's gradient by logits, (B, A) each;
            entropy in nats and the weighted gradient by values, (B,) each.
        """
        rows, number = logits.shape
        log_p, p, by_logits = np.empty((3, rows, number), np.float32)
        entropy, by_values = np.empty((2, rows), np.float32)
        losses = np.empty(5)
        arrays = [np.ascontiguousarray(array) for array in (logits, values, *taken)]
        kernel.ppo_loss(
            rows,
            number,
            *map(address, arrays),
            self.normalize_advantage,
            clips["clip_range"],
            clips.get("clip_range_vf", -1.0),
            self.vf_coef,
            *map(address, (log_p, p, entropy, by_logits, by_values)),
            address(losses),
        )
        return losses.tolist(), log_p, p, by_logits, entropy, by_values

    def _clips(self) -> dict[str, float]:
        """The clip ranges as they are now, under SB3's names."""
        schedules = {"clip_range": self.clip_range, "clip_range_vf": self.clip_range_vf}
        progress: Any = self._current_progress_remaining
        return {name: float(now(progress)) for name, now in schedules.items() if callable(now)}

    def _log(self, means: dict[str, Any]) -> None:
        """Under SB3's names."""
        buffer = self.rollout_buffer
        explained = explained_variance(buffer.values.flatten(), buffer.returns.flatten())
        for name, value in {**means, "explained_variance": explained, **self._clips()}.items():
            self.logger.record(f"train/{name}", value)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")


def _term(policy: ActorCriticPolicy) -> Term:
    """The entropy term that ``policy.evaluate_actions`` returns while the policy trains."""
    objective = policy.objective if isinstance(policy, EntropyObjectivePolicy) else STOCK
    if objective == STOCK:
        return lambda _logits, log_p, p, entropy: (
            float(entropy.mean()),
            entropy_gradient(log_p, p, entropy),
        )
    if objective == NONE:
        return lambda logits, _log_p, _p, _entropy: (0.0, np.zeros_like(logits))
    module = policy.entropy_objective[0]  # type: ignore[index]
    assert isinstance(module, EntropyObjective)
    term = module.numpy_form() or by_equations(module)
    return lambda logits, _log_p, _p, _entropy: term(logits)


def _samples(buffer: RolloutBuffer) -> list[np.ndarray]:
    """The rollout, one environment after the other as in SB3: observations (N, D) float32, actions (N,) int64.

    Then values and log-probabilities of when the actions were taken, advantages and returns, (N,) float32.
    """
    names = ("observations", "actions", "values", "log_probs", "advantages", "returns")
    observations, actions, *others = (
        buffer.swap_and_flatten(getattr(buffer, name)) for name in names
    )
    return [
        observations,
        actions[:, 0].astype(np.int64),
        *(array[:, 0].astype(np.float32) for array in others),
    ]


def _compact(env: VecEnv) -> Any:
    """An environment that steps in the columns in use; outside of a CompactNormalize these are all."""
    if isinstance(env, CompactNormalize):
        return env
    columns = np.arange(env.observation_space.shape[0])  # type: ignore[index]
    return SimpleNamespace(
        columns=columns, step_compact=env.step, expand=lambda observations: observations
    )
