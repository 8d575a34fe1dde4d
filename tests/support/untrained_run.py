"""A run folder as training leaves it, made without training."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml

from dem_apps.runtime.checkpoint import save_checkpoint
from seg import build_model
from seg.config import TrainConfig
from seg.data.labels import CITYSCAPES_CLASSES


def write_run(
    path: Path, seed: int, checkpoints: tuple[str, ...] = ("last",), **settings: Any
) -> Path:
    """Random networks whose predictions are neither flat nor certain."""
    config = TrainConfig(**settings)
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(asdict(config)))
    for step, checkpoint in enumerate(checkpoints):
        torch.manual_seed(seed + step)
        model = build_model(
            **config.model.resolved().architecture(), num_classes=len(CITYSCAPES_CLASSES)
        )
        state = {
            name: 30 * value if "main_head" in name else value
            for name, value in model.state_dict().items()
        }
        save_checkpoint(path / "checkpoints", checkpoint, {"model": state, "step": step})
    return path
