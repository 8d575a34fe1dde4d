"""Speed of PPO on one thread beside SB3 and SBX, for docs/benchmarks.md: the training loop, and the whole command.

    OMP_NUM_THREADS=1 python benchmarks/rl_throughput.py --rounds 5 --out docs/results/rl_throughput.json
    OMP_NUM_THREADS=1 python benchmarks/rl_throughput.py --command --rounds 3 --out docs/results/rl_command.json

The loop: all arms have the Zoo's hyperparameters for the environment and float32 observations, and take turns in one
process. A turn is a number of rollouts with their updates; the first turn of each arm warms up. A rate is steps per CPU
second of the process, the median over turns.

``--command``: ``python -m rl.train`` against a script of SB3's own with as many steps, processes that are timed from
start to end, in turns. Ours includes imports, environments, training, evaluations, checkpoints, logs and the final
scores. SB3's script is ``PPO(…).learn(…)`` with the same hyperparameters and float32 observations, and saves its model,
without evaluation. The ratio is the median over rounds, by wall and by CPU time.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import stable_baselines3
import torch
from csv_rows import parser_of
from measuring import machine, write_json

from dem_apps.report.tables import markdown
from rl.config import TrainConfig, resolve
from rl.training.run import untrained_model

#: The Zoo's recipe as a script of SB3, with float32 observations.
SB3_MODEL = """
import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import DtypeObservation
from minigrid.wrappers import FlatObsWrapper
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

torch.set_num_threads(1)

def make():
    return Monitor(DtypeObservation(FlatObsWrapper(gym.make(env_id)), np.float32))

envs = VecNormalize(DummyVecEnv([make] * 8), gamma=0.99)
model = PPO("MlpPolicy", envs, n_steps=n_steps, batch_size=64, n_epochs=10, gamma=0.99, gae_lambda=0.95,
            learning_rate=2.5e-4, clip_range=0.2, ent_coef=0.001, seed=seed, device="cpu")
"""
SB3_SCRIPT = f"""
import sys
env_id, (steps, seed, n_steps), out = sys.argv[1], map(int, sys.argv[2:5]), sys.argv[5]
{SB3_MODEL}
model.learn(steps)
model.save(out)
"""
#: Trains for a number of rollouts; returns the steps.
Turn = Callable[[int], int]


def arms(env_id: str, loss: str) -> dict[str, Turn]:
    """Name to arm; those whose packages are missing are left out."""

    def published(library: str) -> Turn:
        n_steps = resolve(TrainConfig(env=env_id, loss=loss)).hyperparameters["n_steps"]
        names: dict[str, Any] = {"env_id": env_id, "seed": 0, "n_steps": n_steps}
        exec(
            SB3_MODEL.replace("from stable_baselines3 import PPO", f"from {library} import PPO"),
            names,
        )
        return partial(turn, names["model"])

    found: dict[str, Turn] = {
        "SB3 as published": published("stable_baselines3"),
        f"ours, {loss}": partial(
            turn, untrained_model(resolve(TrainConfig(env=env_id, loss=loss)))
        ),
    }
    try:
        found["SBX"] = published("sbx")
    except ImportError:
        print("SBX is not installed and left out")
    return found


def turn(model: Any, rollouts: int) -> int:
    """Train a model with SB3's methods, which is SB3's, SBX's or ours; the steps."""
    steps: int = rollouts * model.n_steps * model.n_envs
    model.learn(steps, reset_num_timesteps=model.num_timesteps == 0, log_interval=None)
    return steps


def measure(turns: dict[str, Turn], rounds: int, rollouts: int) -> dict[str, dict[str, Any]]:
    """Steps per second of the CPU, and over SB3's."""
    rates: dict[str, list[float]] = {name: [] for name in turns}
    for arm in turns.values():
        arm(1)
    for _ in range(rounds):
        for name, arm in turns.items():
            began, steps = time.process_time(), arm(rollouts)
            rates[name].append(steps / (time.process_time() - began))
    reference = rates["SB3 as published"]
    return {
        name: {
            "steps_per_cpu_second": statistics.median(own),
            "turns": [round(rate, 1) for rate in own],
            # of each round, since a round's turns lie closest together
            "times_sb3": statistics.median(a / b for a, b in zip(own, reference, strict=True)),
        }
        for name, own in rates.items()
    }


def timed(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a process."""
    own = {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
    }
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        command,
        env=os.environ | own,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_command(env: str, timesteps: int | None, rounds: int) -> dict[str, Any]:
    """Seconds of both processes by round, and the median ratios."""
    config = resolve(TrainConfig(env=env, timesteps=timesteps))
    steps, n_steps, rows = str(config.timesteps), str(config.hyperparameters["n_steps"]), []
    for seed in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            ours = ["-m", "rl.train", "--env", env, "--timesteps", steps, "--seed", str(seed)]
            our_wall, our_cpu = timed([sys.executable, *ours, "--run-dir", f"{folder}/run"])
            wall, cpu = timed(
                [
                    sys.executable,
                    "-c",
                    SB3_SCRIPT,
                    env,
                    steps,
                    str(seed),
                    n_steps,
                    f"{folder}/m.zip",
                ]
            )
        rows.append(
            {
                "seed": seed,
                "sb3_wall": wall,
                "sb3_cpu": cpu,
                "ours_wall": our_wall,
                "ours_cpu": our_cpu,
                "ratio_wall": wall / our_wall,
                "ratio_cpu": cpu / our_cpu,
                "load": os.getloadavg()[0],
            }
        )
        print({name: round(value, 2) for name, value in rows[-1].items()}, flush=True)
    ratios = {
        name: statistics.median(row[name] for row in rows) for name in ("ratio_wall", "ratio_cpu")
    }
    print(
        f"{config.timesteps:,} steps of {env}: {ratios['ratio_wall']:.2f} times as fast by the clock, "
        f"{ratios['ratio_cpu']:.2f} by CPU time"
    )
    return {"timesteps": config.timesteps, **ratios, "rounds": rows}


def main() -> None:
    """Measure, print, save."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--command", action="store_true", help="the whole command, and not the loop"
    )
    parser.add_argument(
        "--env", default="MiniGrid-DoorKey-5x5-v0", help="with the Zoo's MiniGrid hyperparameters"
    )
    parser.add_argument("--loss", default="adadem", help="entropy term of our arm in the loop")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each arm")
    parser.add_argument(
        "--rollouts", type=int, default=2, help="rollouts and updates per turn of the loop"
    )
    parser.add_argument(
        "--timesteps", type=int, help="of the command; default: rl.train's own for the environment"
    )
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="gymnasium")
    torch.set_num_threads(1)
    computer = machine(numpy=np.__version__, stable_baselines3=stable_baselines3.__version__)
    if options.command:
        found = measure_command(options.env, options.timesteps, options.rounds)
    else:
        found = {
            "results": measure(arms(options.env, options.loss), options.rounds, options.rollouts)
        }
        keys = ("steps_per_cpu_second", "times_sb3")
        rows = [
            [name, *(f"{own[key]:,.2f}" for key in keys)] for name, own in found["results"].items()
        ]
        print(markdown(["", "steps per CPU second", "× SB3"], rows), end="")
    print(", ".join(f"{name}: {value}" for name, value in computer.items()))
    write_json(options.out, {"env": options.env, "machine": computer, **found})


if __name__ == "__main__":
    main()
