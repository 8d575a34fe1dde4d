"""Training steps per second of PPO on one thread: ours, SB3 as published, a CleanRL-style loop, and SBX if installed.

    OMP_NUM_THREADS=1 python benchmarks/rl_throughput.py --rounds 5 --out docs/results/rl_throughput.json

All arms have the Zoo's hyperparameters for the environment and float32 observations, and take turns in one process. A
turn is a number of rollouts with their updates; the first turn of each arm warms up. A rate is steps per CPU second of
the process, the median over turns.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import stable_baselines3
import torch
from gymnasium.wrappers import (
    DtypeObservation,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    TransformObservation,
    TransformReward,
)
from measuring import machine, write_json
from minigrid.wrappers import FlatObsWrapper
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from dem_apps.report.tables import markdown
from rl.config import TrainConfig, resolve
from rl.training.run import untrained_model

#: Trains for a number of rollouts; returns the steps.
Turn = Callable[[int], int]


def turn_of(model: Any) -> Turn:
    """Turns of a model with SB3's methods: SB3 itself, SBX, or ours."""

    def turn(rollouts: int) -> int:
        steps: int = rollouts * model.n_steps * model.n_envs
        model.learn(steps, reset_num_timesteps=model.num_timesteps == 0, log_interval=None)
        return steps

    return turn


class CleanRlStyleLoop:
    """One plain loop in PyTorch, as CleanRL's ppo.py is organised, with the same hyperparameters."""

    def __init__(self, env_id: str, entry: dict[str, Any], ent_coef: float) -> None:
        self._env_id, self._entry, self._ent_coef = env_id, entry, ent_coef
        self._envs = gym.vector.SyncVectorEnv([self._make_env] * int(entry["n_envs"]))
        size = self._envs.single_observation_space.shape[0]
        self._actor, self._critic = _mlp(size, self._envs.single_action_space.n, 0.01), _mlp(size, 1, 1.0)
        parameters = [*self._actor.parameters(), *self._critic.parameters()]
        self._parameters = parameters
        self._optimizer = torch.optim.Adam(parameters, lr=float(entry["learning_rate"]), eps=1e-5)
        self._obs = torch.tensor(self._envs.reset(seed=0)[0], dtype=torch.float32)
        self._done = torch.zeros(int(entry["n_envs"]))

    def turn(self, rollouts: int) -> int:
        """Train; returns the steps."""
        for _ in range(rollouts):
            self._update(*self._collect())
        return rollouts * int(self._entry["n_steps"]) * int(self._entry["n_envs"])

    def _make_env(self) -> gym.Env:
        env = RecordEpisodeStatistics(DtypeObservation(FlatObsWrapper(gym.make(self._env_id)), np.float32))
        env = TransformObservation(NormalizeObservation(env), lambda o: np.clip(o, -10, 10), env.observation_space)
        return TransformReward(NormalizeReward(env, gamma=self._entry["gamma"]), lambda r: float(np.clip(r, -10, 10)))

    @torch.no_grad()
    def _collect(self) -> tuple[torch.Tensor, ...]:
        obs, actions, log_probs, rewards, dones, values = [], [], [], [], [], []
        for _ in range(int(self._entry["n_steps"])):
            policy = torch.distributions.Categorical(logits=self._actor(self._obs))
            action = policy.sample()
            obs.append(self._obs)
            dones.append(self._done)
            actions.append(action)
            log_probs.append(policy.log_prob(action))
            values.append(self._critic(self._obs).flatten())
            new_obs, reward, terminated, truncated, _ = self._envs.step(action.numpy())
            rewards.append(torch.tensor(reward, dtype=torch.float32))
            self._obs = torch.tensor(new_obs, dtype=torch.float32)
            self._done = torch.tensor(terminated | truncated, dtype=torch.float32)
        dones.append(self._done)
        values.append(self._critic(self._obs).flatten())
        advantages, last = [], torch.zeros_like(self._done)
        for t in reversed(range(len(rewards))):
            goes_on = 1 - dones[t + 1]
            delta = rewards[t] + self._entry["gamma"] * values[t + 1] * goes_on - values[t]
            last = delta + self._entry["gamma"] * self._entry["gae_lambda"] * goes_on * last
            advantages.insert(0, last)
        flat = [torch.stack(part).flatten(0, 1) for part in (obs, actions, log_probs, advantages, values[:-1])]
        return (*flat[:4], flat[3] + flat[4])

    def _update(self, *rollout: torch.Tensor) -> None:
        size, clip = int(self._entry["batch_size"]), self._entry["clip_range"]
        for _ in range(int(self._entry["n_epochs"])):
            for rows in torch.randperm(len(rollout[0])).split(size):
                obs, actions, old, advantages, returns = (part[rows] for part in rollout)
                policy = torch.distributions.Categorical(logits=self._actor(obs))
                ratio = (policy.log_prob(actions) - old).exp()
                advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
                surrogate = torch.min(advantages * ratio, advantages * ratio.clamp(1 - clip, 1 + clip)).mean()
                value_loss = (self._critic(obs).flatten() - returns).square().mean()
                loss = 0.5 * value_loss - surrogate - self._ent_coef * policy.entropy().mean()
                self._optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self._parameters, 0.5)
                self._optimizer.step()


def _mlp(size: int, outputs: int, gain: float) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
    for layer, scale in ((net[0], 2**0.5), (net[2], 2**0.5), (net[4], gain)):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return net


def arms(env_id: str, loss: str) -> dict[str, Turn]:
    """Name to arm; those whose packages are missing are left out."""
    config = resolve(TrainConfig(env=env_id, loss=loss, hyperparameters={}))
    entry, ent_coef = config.hyperparameters, 0.001

    def published(algorithm: type) -> Any:
        def make_env() -> gym.Env:
            return Monitor(DtypeObservation(FlatObsWrapper(gym.make(env_id)), np.float32))

        envs = VecNormalize(DummyVecEnv([make_env] * int(entry["n_envs"])), gamma=entry["gamma"])
        names = ("n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "learning_rate", "clip_range")
        return algorithm("MlpPolicy", envs, seed=0, device="cpu", ent_coef=ent_coef, **{n: entry[n] for n in names})

    found = {
        "SB3 as published": turn_of(published(PPO)),
        "CleanRL-style loop": CleanRlStyleLoop(env_id, entry, ent_coef).turn,
        f"ours, {loss}": turn_of(untrained_model(resolve(TrainConfig(env=env_id, loss=loss)))),
    }
    try:
        import sbx

        found["SBX"] = turn_of(published(sbx.PPO))
    except ImportError:
        print("SBX is not installed and left out")
    return found


def measure(turns: dict[str, Turn], rounds: int, rollouts: int) -> dict[str, dict[str, Any]]:
    """Steps per second of the CPU and of the clock, and the former over SB3's."""
    rates: dict[str, list[float]] = {name: [] for name in turns}
    walls: dict[str, list[float]] = {name: [] for name in turns}
    for turn in turns.values():
        turn(1)
    for _ in range(rounds):
        for name, turn in turns.items():
            cpu, wall = time.process_time(), time.perf_counter()
            steps = turn(rollouts)
            rates[name].append(steps / (time.process_time() - cpu))
            walls[name].append(steps / (time.perf_counter() - wall))
    reference = rates["SB3 as published"]
    return {
        name: {
            "steps_per_cpu_second": statistics.median(own),
            "turns": [round(rate, 1) for rate in own],
            "steps_per_second_of_the_clock": statistics.median(walls[name]),
            # of each round, since a round's turns lie closest together
            "times_sb3": statistics.median(a / b for a, b in zip(own, reference, strict=True)),
        }
        for name, own in rates.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="MiniGrid-DoorKey-5x5-v0")
    parser.add_argument("--loss", default="adadem", help="entropy term of our arms")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each arm")
    parser.add_argument("--rollouts", type=int, default=2, help="rollouts and updates per turn")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="gymnasium")
    torch.set_num_threads(1)
    document = {
        "env": options.env,
        "machine": machine(numpy=np.__version__, stable_baselines3=stable_baselines3.__version__),
        "results": measure(arms(options.env, options.loss), options.rounds, options.rollouts),
    }
    rows = [
        [name, f"{found['steps_per_cpu_second']:,.0f}", f"{found['times_sb3']:.2f}"]
        for name, found in document["results"].items()
    ]
    print(markdown(["", "steps per CPU second", "× SB3"], rows), end="")
    print(", ".join(f"{name}: {value}" for name, value in document["machine"].items()))
    write_json(options.out, document)


if __name__ == "__main__":
    main()
