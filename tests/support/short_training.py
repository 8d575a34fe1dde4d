"""Short trainings of ``rl.train``: of 320 steps, or ending right after one of their checkpoints, as if killed there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dem_apps.runtime.run_folder import RunFolder


def entry_flags(env: str, folder: Path, algo: str = "ppo", normalize: bool = True) -> list[str]:
    """Hyperparameters are in a file of the Zoo's kind in ``folder``, the run in its folder ``run``."""
    entry = {
        "policy": "MlpPolicy",
        "n_timesteps": 320,
        "n_envs": 2,
        "n_steps": 32,
        "normalize": normalize,
    }
    entry |= {"batch_size": 32, "n_epochs": 1, "learning_rate": 0.01} if algo == "ppo" else {}
    (folder / "entry.yaml").write_text(yaml.safe_dump({env: entry}))
    return [
        "--env",
        env,
        "--algo",
        algo,
        "--hyperparameters-file",
        str(folder / "entry.yaml"),
        "--eval-freq",
        "64",
        "--eval-episodes",
        "1",
        "--final-episodes",
        "1",
        "--run-dir",
        str(folder / "run"),
    ]


def interrupted_at(step: int, monkeypatch: pytest.MonkeyPatch, train: Callable[[], Any]) -> None:
    """Train until the first checkpoint ``last`` at the step or behind it is saved."""
    save = RunFolder.save_checkpoint

    def interrupt(run: RunFolder, name: str, state: dict[str, Any]) -> Path:
        path = save(run, name, state)
        if name == "last" and state["step"] >= step:
            raise KeyboardInterrupt
        return path

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train()
