"""One of two processes that train together, one of them with a NaN; see seg/training/test_not_finite.py."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from dem_apps.errors import NotFiniteError
from dem_apps.runtime.reproducibility import seed_everything
from seg.config import ModelConfig, TrainConfig
from seg.step import training_step
from seg.training.loop import build_state
from seg.training.optimization import MicroBatch
from support.gloo_worker import in_group

CLASSES = 4
# shared batch statistics would carry the NaN to every process
CONFIG = TrainConfig(
    loss="adadem", model=ModelConfig(encoder="resnet18", depth=3, output_stride=8, batch_norm="frozen")
)


def micro_batches(rank: int, poisoned: bool) -> list[MicroBatch]:
    """A source and a target image; with ``poisoned`` the target image of the second process has a NaN."""
    generator = torch.Generator().manual_seed(rank)
    source = {
        "image": torch.randn(1, 3, 32, 64, generator=generator),
        "label": torch.randint(0, CLASSES, (1, 32, 64), generator=generator),
        "name": [f"source-{rank}.png"],
    }
    target = {"image": torch.randn(1, 3, 32, 64, generator=generator), "name": [f"target-{rank}.png"]}
    if poisoned and rank == 1:
        target["image"][0, 0, 0, 0] = math.nan
    return [MicroBatch(source, target)]


def run(_index: int, folder: str, rank: int) -> None:
    """Two steps, the second with the NaN; writes how it ended and whether the weights are those of the first."""
    with in_group(folder, rank):
        AcceleratorState._reset_state()
        accelerator = Accelerator(cpu=True)
        seed_everything(0)
        training = build_state(CONFIG, CLASSES, accelerator)
        training_step(training, micro_batches(rank, poisoned=False))
        before = {name: value.clone() for name, value in training.model.named_parameters()}
        sentence = "no end"
        try:
            training_step(training, micro_batches(rank, poisoned=True))
        except NotFiniteError as stopped:
            sentence = str(stopped)
        same = all(torch.equal(before[name], value) for name, value in training.model.named_parameters())
    Path(folder, f"{rank}.txt").write_text(f"{same}\n{sentence}")
