"""The process's random states as one value, so that a resumed run draws what the unbroken one would have drawn."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from dem_apps.runtime.load_state import fitting

#: The largest that numpy takes.
LARGEST_SEED = (1 << 32) - 1


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch (every device)."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def random_states() -> dict[str, Any]:
    """Python's, numpy's and torch's global generators, as tensors and JSON values."""
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_random_states(states: Any) -> None:
    """Put back what :func:`random_states` returned.

    Raises:
        InputError: something else.
    """
    with fitting("the checkpoint's random states"):
        # numpy reads beyond its state's end where the position says so
        if not 0 <= states["numpy"][2] <= 624:
            raise ValueError(f"numpy's position {states['numpy'][2]} is outside of its state")
        random.setstate(states["python"])
        np.random.set_state(states["numpy"])
        torch.set_rng_state(states["torch"])
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(states["cuda"])
