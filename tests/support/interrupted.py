"""A training of ``rl.train`` that ends right after one of its checkpoints, as if it were killed there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dem_apps.runtime.run_folder import RunFolder


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
