"""One of two processes that train together, one of them with a NaN; see seg/training/test_not_finite.py."""

import math
from dataclasses import replace
from pathlib import Path

import torch

from dem_apps.errors import NotFiniteError
from seg.config import TrainConfig
from seg.training.step import training_step
from support.gloo_worker import in_group
from support.training_steps import MODEL, fresh, micro_batch

# shared batch statistics would carry the NaN to every process
CONFIG = TrainConfig(loss="adadem", model=replace(MODEL, batch_norm="frozen"))


def run(_index: int, folder: str, rank: int) -> None:
    """Two steps, the second with the NaN; writes how it ended and whether the weights are those of the first."""
    with in_group(folder, rank):
        training, batch = fresh(CONFIG), micro_batch(rank, images=1)
        batch.target["name"] = [f"target-{rank}.png"]
        training_step(training, [batch])
        before = {name: value.clone() for name, value in training.model.named_parameters()}
        if rank == 1:
            batch.target["image"][0, 0, 0, 0] = math.nan
        sentence = "no end"
        try:
            training_step(training, [batch])
        except NotFiniteError as stopped:
            sentence = str(stopped)
        same = all(torch.equal(before[name], value) for name, value in training.model.named_parameters())
    Path(folder, f"{rank}.txt").write_text(f"{same}\n{sentence}")
