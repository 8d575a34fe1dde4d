"""Flags of a training of ``rl.train`` of 320 steps."""

from pathlib import Path

import yaml


def entry_flags(env: str, folder: Path, algo: str = "ppo", normalize: bool = True) -> list[str]:
    """Hyperparameters are in a file of the Zoo's kind in ``folder``, the run in its folder ``run``."""
    entry = {"policy": "MlpPolicy", "n_timesteps": 320, "n_envs": 2, "n_steps": 32, "normalize": normalize}
    entry |= {"batch_size": 32, "n_epochs": 1, "learning_rate": 0.01} if algo == "ppo" else {}
    (folder / "entry.yaml").write_text(yaml.safe_dump({env: entry}))
    return [
        "--env", env, "--algo", algo, "--hyperparameters-file", str(folder / "entry.yaml"), "--eval-freq", "64",
        "--eval-episodes", "1", "--final-episodes", "1", "--run-dir", str(folder / "run"),
    ]  # fmt: skip
