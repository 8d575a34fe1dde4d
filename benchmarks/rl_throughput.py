"""Training steps per second of PPO on one thread: ours, SB3 as published, a CleanRL-style loop, and SBX if installed.

    OMP_NUM_THREADS=1 python benchmarks/rl_throughput.py --rounds 5 --markdown --out docs/results/rl_throughput.json

All arms have the Zoo's hyperparameters for the environment and float32 observations, and take turns in one process. A
turn is a number of rollouts with their updates; the first turn of each arm warms up. A rate is steps per CPU second of
the process, the median over turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
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
from minigrid.wrappers import FlatObsWrapper
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from dem_apps.runtime.device import processor
from dem_apps.runtime.files import write_atomically
from rl.config import TrainConfig, resolve
from rl.training.run import untrained_model

PARTS = ("environment", "normalisation", "rollout", "update")


class Clock:
    """CPU seconds of this process by part; a part that is inside another one is taken off the outer one."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def timed(self, part: str, function: Callable[..., Any], outer: str | None = None) -> Callable[..., Any]:
        """``function``, with its time counted."""

        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            result = function(*args, **kwargs)
            spent = time.process_time() - start
            self.seconds[part] += spent
            if outer is not None:
                self.seconds[outer] -= spent
            return result

        return run


class Sb3Arm:
    """A model with SB3's methods: SB3 itself, SBX, or ours."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.clock, self._make, self._model = Clock(), make, None

    def start(self) -> None:
        """Make the model and put clocks around its methods."""
        model = self._model = self._make()
        timed, envs = self.clock.timed, model.get_vec_normalize_env()
        model.train = timed("update", model.train)
        model.collect_rollouts = timed("rollout", model.collect_rollouts)
        for name in ("step", "step_compact"):
            if hasattr(envs, name):
                setattr(envs, name, timed("normalisation", getattr(envs, name), "rollout"))
        envs.venv.step_wait = timed("environment", envs.venv.step_wait, "normalisation")

    def turn(self, rollouts: int) -> int:
        """Train; returns the steps."""
        assert self._model is not None
        steps = rollouts * self._model.n_steps * self._model.n_envs
        self._model.learn(steps, reset_num_timesteps=self._model.num_timesteps == 0, log_interval=None)
        return steps


class CleanRlStyleArm:
    """One plain loop in PyTorch, as CleanRL's ppo.py is organised, with the same hyperparameters."""

    def __init__(self, env_id: str, entry: dict[str, Any], ent_coef: float) -> None:
        self.clock, self._env_id, self._entry, self._ent_coef = Clock(), env_id, entry, ent_coef

    def start(self) -> None:
        """Environments, networks and optimiser."""
        entry = self._entry
        self._envs = gym.vector.SyncVectorEnv([self._make_env] * int(entry["n_envs"]))
        self._envs.step = self.clock.timed("environment", self._envs.step, "rollout")  # normalisation included
        size = self._envs.single_observation_space.shape[0]
        self._actor, self._critic = _mlp(size, self._envs.single_action_space.n, 0.01), _mlp(size, 1, 1.0)
        parameters = [*self._actor.parameters(), *self._critic.parameters()]
        self._parameters = parameters
        self._optimizer = torch.optim.Adam(parameters, lr=float(entry["learning_rate"]), eps=1e-5)
        self._obs = torch.tensor(self._envs.reset(seed=0)[0], dtype=torch.float32)
        self._done = torch.zeros(int(entry["n_envs"]))

    def turn(self, rollouts: int) -> int:
        """Train; returns the steps."""
        collect, update = self.clock.timed("rollout", self._collect), self.clock.timed("update", self._update)
        for _ in range(rollouts):
            update(*collect())
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


def arms(env_id: str, loss: str) -> dict[str, Any]:
    """Name to arm; those whose packages are missing are left out."""
    config = resolve(TrainConfig(env=env_id, loss=loss, hyperparameters={}))
    entry, ent_coef = config.hyperparameters, 0.001

    def published(algorithm: type) -> Any:
        def make_env() -> gym.Env:
            return Monitor(DtypeObservation(FlatObsWrapper(gym.make(env_id)), np.float32))

        envs = VecNormalize(DummyVecEnv([make_env] * int(entry["n_envs"])), gamma=entry["gamma"])
        names = ("n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "learning_rate", "clip_range")
        return algorithm("MlpPolicy", envs, seed=0, device="cpu", ent_coef=ent_coef, **{n: entry[n] for n in names})

    def ours() -> Any:
        return untrained_model(resolve(TrainConfig(env=env_id, loss=loss)))

    found: dict[str, Any] = {
        "SB3 as published": Sb3Arm(lambda: published(PPO)),
        "CleanRL-style loop": CleanRlStyleArm(env_id, entry, ent_coef),
        f"ours, {loss}": Sb3Arm(ours),
    }
    try:
        import sbx

        found["SBX"] = Sb3Arm(lambda: published(sbx.PPO))
    except ImportError:
        print("SBX is not installed and left out")
    return found


def measure(runs: dict[str, Any], rounds: int, rollouts: int) -> dict[str, dict[str, Any]]:
    """Steps per CPU second of every turn, and the share of each part over all turns."""
    rates: dict[str, list[float]] = {name: [] for name in runs}
    walls: dict[str, list[float]] = {name: [] for name in runs}
    for arm in runs.values():
        arm.start()
        arm.turn(1)
        arm.clock.seconds.update(dict.fromkeys(PARTS, 0.0))
    for _ in range(rounds):
        for name, arm in runs.items():
            cpu, wall = time.process_time(), time.perf_counter()
            steps = arm.turn(rollouts)
            rates[name].append(steps / (time.process_time() - cpu))
            walls[name].append(steps / (time.perf_counter() - wall))
    results = {}
    for name, arm in runs.items():
        total = sum(arm.clock.seconds.values())
        results[name] = {
            "steps_per_cpu_second": statistics.median(rates[name]),
            "turns": [round(rate, 1) for rate in rates[name]],
            "steps_per_second_of_the_clock": statistics.median(walls[name]),
            "share": {part: round(seconds / total, 3) for part, seconds in arm.clock.seconds.items()},
        }
    reference = results["SB3 as published"]["turns"]
    for result in results.values():  # of each round, since a round's turns lie closest together
        result["times_sb3"] = statistics.median(a / b for a, b in zip(result["turns"], reference, strict=True))
    return results


def table(results: dict[str, dict[str, Any]]) -> str:
    """A Markdown table."""
    lines = ["| | steps per CPU second | × SB3 | " + " | ".join(PARTS) + " |", "|---|---|---|" + "---|" * len(PARTS)]
    for name, result in results.items():
        shares = " | ".join(f"{result['share'][part]:.0%}" for part in PARTS)
        lines.append(f"| {name} | {result['steps_per_cpu_second']:,.0f} | {result['times_sb3']:.2f} | {shares} |")
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "processor": processor()[0], "cores": os.cpu_count(), "load": os.getloadavg()[0], "threads": 1,
        "python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__,
        "stable_baselines3": stable_baselines3.__version__,
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="MiniGrid-DoorKey-5x5-v0")
    parser.add_argument("--loss", default="adadem", help="entropy term of our arms")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each arm")
    parser.add_argument("--rollouts", type=int, default=2, help="rollouts and updates per turn")
    parser.add_argument("--markdown", action="store_true", help="print the machine as well, for the docs")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="gymnasium")
    torch.set_num_threads(1)
    results = measure(arms(options.env, options.loss), options.rounds, options.rollouts)
    document = {"env": options.env, "machine": machine(), "results": results}
    print(table(results))
    if options.markdown:
        print("\n" + ", ".join(f"{name} {value}" for name, value in document["machine"].items()))
    if options.out is not None:
        write_atomically(options.out, (json.dumps(document, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
