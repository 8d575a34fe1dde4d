"""Wall time of the whole command ``python -m rl.train`` against a script of SB3's own with as many steps.

    OMP_NUM_THREADS=1 python benchmarks/rl_command.py --rounds 3 --out docs/results/rl_command.json

Both are processes, timed from start to end, in turns. Ours includes imports, environments, training, evaluations,
checkpoints, logs and the final scores. SB3's script is ``PPO(…).learn(…)`` with the same hyperparameters and float32
observations, and saves its model, without evaluation. The ratio is the median over rounds, by wall and by CPU time.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import machine, write_json

from rl.config import TrainConfig, resolve

ROOT = Path(__file__).resolve().parents[1]
#: The Zoo's recipe as a script of SB3, with float32 observations.
SB3_SCRIPT = """
import sys
import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import DtypeObservation
from minigrid.wrappers import FlatObsWrapper
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

torch.set_num_threads(1)
env_id, steps, seed, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def make():
    return Monitor(DtypeObservation(FlatObsWrapper(gym.make(env_id)), np.float32))

envs = VecNormalize(DummyVecEnv([make] * 8), gamma=0.99)
model = PPO("MlpPolicy", envs, n_steps={n_steps}, batch_size=64, n_epochs=10, gamma=0.99, gae_lambda=0.95,
            learning_rate=2.5e-4, clip_range=0.2, ent_coef=0.001, seed=seed, device="cpu")
model.learn(steps)
model.save(out)
"""


def timed(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="MiniGrid-DoorKey-5x5-v0", help="with the Zoo's MiniGrid hyperparameters")
    parser.add_argument("--timesteps", type=int, help="of both; default: rl.train's own for the environment")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    config = resolve(TrainConfig(env=options.env, timesteps=options.timesteps))
    script = SB3_SCRIPT.replace("{n_steps}", str(config.hyperparameters["n_steps"]))
    rows, computer = [], machine(threads=1)
    for seed in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            common = [options.env, str(config.timesteps), str(seed)]
            ours = [sys.executable, "-m", "rl.train", "--env", common[0], "--timesteps", common[1], "--seed", common[2]]
            our_wall, our_cpu = timed([*ours, "--run-dir", f"{folder}/run"])
            wall, cpu = timed([sys.executable, "-c", script, *common, f"{folder}/model.zip"])
        rows.append({
            "seed": seed, "sb3_wall": wall, "sb3_cpu": cpu, "ours_wall": our_wall, "ours_cpu": our_cpu,
            "ratio_wall": wall / our_wall, "ratio_cpu": cpu / our_cpu, "load": os.getloadavg()[0],
        })  # fmt: skip
        print({name: round(value, 2) for name, value in rows[-1].items()}, flush=True)
    summary = {name: statistics.median(row[name] for row in rows) for name in ("ratio_wall", "ratio_cpu")}
    print(f"{config.timesteps:,} steps of {options.env}: {summary['ratio_wall']:.2f} times as fast by the clock, "
          f"{summary['ratio_cpu']:.2f} by CPU time")  # fmt: skip
    document = {"env": options.env, "timesteps": config.timesteps, **summary, "rounds": rows, "machine": computer}
    write_json(options.out, document)


if __name__ == "__main__":
    main()
