"""Seeds, random states and ``--deterministic``: what makes a training repeat."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dem_apps.errors import InputError, first_words
from dem_apps.runtime.checkpoint import fitting
from dem_apps.runtime.documents import Document

#: The environment variable that cuBLAS reads when CUDA starts.
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch (every device)."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def random_states() -> Document:
    """Python's, numpy's and torch's global generators, for a checkpoint."""
    states = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_random_states(states: Any) -> None:
    """Put back what :func:`random_states` returned."""
    with fitting("the checkpoint's random states"):
        random.setstate(states["python"])
        np.random.set_state(states["numpy"])
        torch.set_rng_state(states["torch"])
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(states["cuda"])


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Within it, if ``wanted``, torch uses only operations that repeat bit for bit, else there is an InputError."""
    if not wanted:
        yield
        return
    os.environ.setdefault(_CUBLAS, ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise InputError(
            f"--deterministic: {first_words(error)}; leave the flag out, or train with --device cpu"
        ) from error
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]
