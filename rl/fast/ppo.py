"""PPO with SB3's numbers at several times its speed, for the policy of MiniGrid and of most small tasks.

:class:`FastPPO` replaces rollout and update of SB3's PPO, with its gradient written out. Both draw SB3's random numbers
and leave policy, optimiser and normalisation as SB3 would. After 320 updates weights differ by less than 1e-6.

PPO: Schulman et al., Proximal Policy Optimization Algorithms, 2017 (arXiv 1707.06347), Eq. 7 and Eq. 9.
Shapes: N samples of a rollout, B of a minibatch, A actions, D columns of the observations in use.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from dem_apps.entropy import shannon_entropy
from dem_apps.fused.build_kernel import address
from dem_apps.fused.numpy_objective import by_equations, entropy_gradient, log_softmax
from rl.fast.compact_normalize import CompactNormalize, widened
from rl.fast.network import Network, chains, drawn, why_no_network
from rl.hook.algorithm import NONE, STOCK, EntropyObjectivePolicy

#: (logits, log-probabilities, probabilities, entropy per row) to the mean of the entropy term and its gradient by the
#: logits, (B, A).
Term = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], tuple[float, np.ndarray]]


@dataclass(frozen=True)
class RolloutBatch:
    """A rollout or a part of it, contiguous; float32 but for the actions."""

    observations: np.ndarray  # (N, D)
    actions: np.ndarray  # (N,) int64
    values: np.ndarray  # (N,) when the action was taken, as all of the rest
    log_probs: np.ndarray
    advantages: np.ndarray
    returns: np.ndarray

    def minibatches(self, size: int) -> Iterator[RolloutBatch]:
        """All samples in a new order, ``size`` at a time; numpy's global generator chooses it, as in SB3."""
        order = np.random.permutation(len(self.actions))
        parts = [array[order] for array in vars(self).values()]
        for start in range(0, len(order), size):
            yield RolloutBatch(*(part[start : start + size] for part in parts))


@dataclass(frozen=True)
class Settings:
    """Settings of PPO's update under SB3's names; schedules are numbers here."""

    batch_size: int
    n_epochs: int
    clip_range: float
    clip_range_vf: float | None
    ent_coef: float
    vf_coef: float
    max_grad_norm: float
    normalize_advantage: bool
    target_kl: float | None


@dataclass(frozen=True)
class Losses:
    """Of one minibatch, without the entropy term, and with what that is made of."""

    policy: float
    value: float
    divergence: float  # SB3's approx_kl
    clip_fraction: float
    mean_entropy: float
    log_p: np.ndarray  # (B, A) log-probabilities
    p: np.ndarray  # (B, A)
    entropy: np.ndarray  # (B,) nats
    by_logits: np.ndarray  # (B, A) gradient of the policy's loss
    by_values: np.ndarray  # (B,) gradient of the values' loss, with its weight


#: What a minibatch logs, under SB3's names, and its entropy.
Figures = dict[str, float]


class FastPPO(PPO):
    """SB3's PPO, faster where :attr:`not_fast` has nothing against it and SB3's own code elsewhere.

    Works with and without :func:`rl.with_entropy_objective`. Between a rollout and its update ``rollout_buffer``
    holds the observations' columns in use only, where the environments are in a :class:`CompactNormalize`.
    """

    @property
    def not_fast(self) -> str | None:
        """Why this model is trained by SB3's own code, as half a sentence; None where the fast code serves."""
        if (reason := why_no_network(self)) is not None:
            return reason
        if type(self.rollout_buffer) is not RolloutBuffer:
            return f"the rollout buffer is {type(self.rollout_buffer).__name__}, not RolloutBuffer"
        if getattr(self, "in_return", None) is not None and min(map(len, chains(self.policy))) == 1:
            return "the objective's value head has no hidden layer to act on"
        optimizer = self.policy.optimizer
        group = optimizer.param_groups[0]
        if type(optimizer) is not torch.optim.Adam or group["weight_decay"] or group["amsgrad"] or group["maximize"]:
            return f"the optimiser is {type(optimizer).__name__}, not Adam without options"
        return None

    def rated_fast(self, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """As :func:`rl.hook.in_return.rated_states`, also of the columns in use; None where the model is not fast."""
        if self.not_fast is not None:
            return None
        assert self.env is not None
        columns = _compact(self.env).columns
        network = Network(self.policy, columns)
        inputs = observations.reshape(-1, observations.shape[-1])
        if inputs.shape[1] != len(columns):
            inputs = inputs.take(columns, axis=1)
        with torch.no_grad():
            logits = torch.from_numpy(network.actor(inputs))
            network.critic(inputs)
            policy: Any = self.policy
            if policy.objective == STOCK:
                rewards = shannon_entropy(logits, 1)
            else:
                rewards = policy.entropy_objective[0](logits, dim=1, reduction="none")
        return rewards.numpy(), np.concatenate([network.actor.hidden, network.critic.hidden], axis=1)

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
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
            actions, values, log_probs = _sample(network, obs)
            # before the step, for an environment may write into the arrays that it has returned
            stored[step] = obs
            rollout_buffer.episode_starts[step] = self._last_episode_starts
            new_obs, rewards, dones, infos = compact.step_compact(actions)
            self.num_timesteps += env.num_envs
            callback.update_locals(locals())
            if not callback.on_step():
                self._last_obs = compact.expand(widened(obs, columns, compact.columns))
                return False
            self._update_info_buffer(infos, dones)
            if new_obs.shape[1] > len(columns):  # a column has come into use
                stored = widened(stored, columns, compact.columns)
                columns = compact.columns
                network = Network(self.policy, columns)
            if dones.any():
                self._bootstrap(network, columns, rewards, dones, infos)
            rollout_buffer.actions[step, :, 0] = actions
            rollout_buffer.rewards[step] = rewards
            rollout_buffer.values[step], rollout_buffer.log_probs[step] = values, log_probs
            obs, self._last_episode_starts = new_obs, dones
        self._last_obs = compact.expand(obs)
        rollout_buffer.observations, rollout_buffer.pos, rollout_buffer.full = stored, n_rollout_steps, True
        rollout_buffer.compute_returns_and_advantage(torch.from_numpy(network.critic(obs)[:, 0]), dones)
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
        settings = self._settings()
        network = Network(self.policy, _compact(self.env).columns, with_adam=True)
        epochs = ppo_update(network, _samples(self.rollout_buffer), settings, _term(self.policy))
        network.write_back()
        self._n_updates += len(epochs)
        every = {name: [figures[name] for epoch in epochs for figures in epoch] for name in epochs[-1][-1]}
        entropies = every.pop("entropy")
        if isinstance(self.policy, EntropyObjectivePolicy):
            self.policy.entropy_totals += (-sum(every["entropy_loss"]), sum(entropies), len(entropies))
        # as in SB3, approx_kl is that of the last epoch and loss that of the last minibatch
        every |= {"approx_kl": [figures["approx_kl"] for figures in epochs[-1]], "loss": every["loss"][-1:]}
        self._log({name: np.mean(values) for name, values in every.items()}, settings)

    def _bootstrap(
        self, network: Network, columns: np.ndarray, rewards: np.ndarray, dones: np.ndarray, infos: list[dict[str, Any]]
    ) -> None:
        """Add the value of where an episode was cut off by a time limit, as SB3 does (its issue 633)."""
        for index in np.flatnonzero(dones):
            last = infos[index].get("terminal_observation")
            if last is not None and infos[index].get("TimeLimit.truncated", False):
                rewards[index] += self.gamma * network.critic(last[None].take(columns, axis=1))[0, 0]

    def _settings(self) -> Settings:
        """Schedules as they are now."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(Settings)}
        progress = self._current_progress_remaining
        return Settings(**{name: value(progress) if callable(value) else value for name, value in given.items()})

    def _log(self, means: dict[str, Any], settings: Settings) -> None:
        """Under SB3's names."""
        values, returns = self.rollout_buffer.values.flatten(), self.rollout_buffer.returns.flatten()
        means |= {"explained_variance": explained_variance(values, returns), "clip_range": settings.clip_range}
        if settings.clip_range_vf is not None:
            means["clip_range_vf"] = settings.clip_range_vf
        for name, value in means.items():
            self.logger.record(f"train/{name}", value)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")


def _term(policy: ActorCriticPolicy) -> Term:
    """The entropy term that ``policy.evaluate_actions`` returns while the policy trains."""
    objective = policy.objective if isinstance(policy, EntropyObjectivePolicy) else STOCK
    if objective == STOCK:
        return lambda _logits, log_p, p, entropy: (float(entropy.mean()), entropy_gradient(log_p, p, entropy))
    if objective == NONE:
        return lambda logits, _log_p, _p, _entropy: (0.0, np.zeros_like(logits))
    module = policy.entropy_objective[0]  # type: ignore[index]
    assert isinstance(module, EntropyObjective)
    term = module.numpy_form() or by_equations(module)
    return lambda logits, _log_p, p, _entropy: term(logits, p)


def _samples(buffer: RolloutBuffer) -> RolloutBatch:
    """The rollout, one environment after the other as in SB3."""
    names = ("observations", "actions", "values", "log_probs", "advantages", "returns")
    flat = {name: buffer.swap_and_flatten(getattr(buffer, name)) for name in names}
    flat["actions"] = flat["actions"].astype(np.int64)
    return RolloutBatch(flat.pop("observations"), **{name: array[:, 0] for name, array in flat.items()})


def _sample(network: Network, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Actions, drawn from torch's global generator as SB3's Categorical draws them; values and log-probabilities."""
    log_p, p = log_softmax(network.actor(obs))
    actions = drawn(p)
    return actions, network.critic(obs)[:, 0], log_p[np.arange(len(actions)), actions]


def _compact(env: VecEnv) -> Any:
    """An environment that steps in the columns in use; outside of a CompactNormalize these are all."""
    if isinstance(env, CompactNormalize):
        return env
    columns = np.arange(env.observation_space.shape[0])  # type: ignore[index]
    return SimpleNamespace(columns=columns, step_compact=env.step, expand=lambda observations: observations)


def ppo_update(network: Network, samples: RolloutBatch, settings: Settings, term: Term) -> list[list[Figures]]:
    """Train the network on a rollout, ``settings.n_epochs`` times over; the figures of each epoch's minibatches."""
    epochs: list[list[Figures]] = []
    with torch.no_grad():
        for _ in range(settings.n_epochs):
            epochs.append([])
            for batch in samples.minibatches(settings.batch_size):
                logits, values = network.actor(batch.observations), network.critic(batch.observations)[:, 0]
                losses = ppo_losses(network.kernel, logits, values, batch, settings)
                value, by_logits = term(logits, losses.log_p, losses.p, losses.entropy)
                epochs[-1].append({
                    "policy_gradient_loss": losses.policy, "value_loss": losses.value, "entropy_loss": -value,
                    "clip_fraction": losses.clip_fraction, "approx_kl": losses.divergence,
                    "loss": losses.policy - settings.ent_coef * value + settings.vf_coef * losses.value,
                    "entropy": losses.mean_entropy,
                })  # fmt: skip
                if settings.target_kl is not None and losses.divergence > 1.5 * settings.target_kl:
                    return epochs  # the policy has moved too far
                network.actor.backward(losses.by_logits - np.float32(settings.ent_coef) * by_logits)
                network.critic.backward(losses.by_values[:, None])
                network.step(settings.max_grad_norm)
    return epochs


def ppo_losses(
    kernel: ctypes.CDLL, logits: np.ndarray, values: np.ndarray, batch: RolloutBatch, settings: Settings
) -> Losses:
    """The losses in C++, from logits (B, A) and values (B,)."""
    rows, number = logits.shape
    # one piece of memory with one address: log p, p and the gradient, entropy and the other gradient
    wide, losses = rows * number, np.empty(5)
    made = np.empty(3 * wide + 2 * rows, np.float32)
    begin = address(made)
    places = [begin + 4 * offset for offset in (0, wide, 3 * wide, 2 * wide, 3 * wide + rows)]
    floats = (logits, values, batch.values, batch.log_probs, batch.advantages, batch.returns)
    given = [np.ascontiguousarray(array, np.float32) for array in floats]
    given.insert(2, np.ascontiguousarray(batch.actions, np.int64))
    clip_values = -1.0 if settings.clip_range_vf is None else settings.clip_range_vf
    kernel.ppo_loss(
        rows, number, *map(address, given), settings.normalize_advantage, settings.clip_range, clip_values,
        settings.vf_coef, *places, address(losses),
    )  # fmt: skip
    tables = made[: 3 * wide].reshape(3, rows, number)
    columns = made[3 * wide :].reshape(2, rows)
    policy, value, divergence, clip_fraction, mean_entropy = losses.tolist()
    return Losses(
        policy, value, divergence, clip_fraction, mean_entropy, log_p=tables[0], p=tables[1], entropy=columns[0],
        by_logits=tables[2], by_values=columns[1],
    )  # fmt: skip
