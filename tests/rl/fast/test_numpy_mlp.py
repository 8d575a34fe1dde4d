"""Actions drawn in numpy: those of torch's own sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl.fast.numpy_mlp import drawn, log_softmax


@pytest.mark.parametrize("scale", [0.1, 3.0, 60.0])
def test_draws_and_generator_are_those_of_multinomial(scale: float) -> None:
    _, p = log_softmax((np.random.default_rng(0).standard_normal((500, 7)) * scale).astype(np.float32))
    torch.manual_seed(3)
    ours, state = drawn(p), torch.get_rng_state()
    torch.manual_seed(3)
    theirs = torch.multinomial(torch.from_numpy(p), 1, replacement=True)[:, 0]
    assert np.array_equal(ours, theirs.numpy())
    assert torch.equal(state, torch.get_rng_state())


def test_an_action_without_probability_is_never_drawn() -> None:
    p = np.tile(np.array([0.0, 0.25, 0.0, 0.75], np.float32), (20_000, 1))
    torch.manual_seed(0)
    counts = np.bincount(drawn(p), minlength=4)
    assert counts[0] == counts[2] == 0
    assert counts[3] / len(p) == pytest.approx(0.75, abs=0.02)
