"""A resumed run draws what the unbroken one would have drawn, also when the states went through a file."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from dem_apps.runtime.checkpoint import load_checkpoint, save_checkpoint
from dem_apps.runtime.reproducibility import random_states, restore_random_states, seed_everything


def draw() -> list[float]:
    # normal draws, because each generator keeps the second number of a pair for the next call
    return [random.gauss(0, 1), random.random(), np.random.randn(), np.random.rand(), *torch.randn(3).tolist()]


def test_the_same_seed_gives_the_same_draws() -> None:
    seed_everything(4)
    first = [draw() for _ in range(3)]
    seed_everything(4)
    assert [draw() for _ in range(3)] == first
    seed_everything(5)
    assert draw() != first[0]


def test_states_in_memory_and_in_a_checkpoint(tmp_path: Path) -> None:
    seed_everything(4)
    draw()
    states = random_states()
    save_checkpoint(tmp_path, "last", {"random": states}, "1")
    expected = [draw() for _ in range(3)]
    restore_random_states(states)
    assert [draw() for _ in range(3)] == expected
    restore_random_states(load_checkpoint(tmp_path, "last")["random"])
    assert [draw() for _ in range(3)] == expected
