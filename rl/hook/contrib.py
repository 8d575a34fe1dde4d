"""sb3-contrib's part of the hook, where it is installed: its algorithms and padded rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

try:
    from sb3_contrib import MaskablePPO, RecurrentPPO
except ImportError:  # it is optional; nothing is an instance or a subclass of ()
    MaskablePPO = RecurrentPPO = ()  # type: ignore

#: sb3-contrib's algorithms that the hook supports.
ALGORITHMS: tuple[Any, ...] = (MaskablePPO, RecurrentPPO)


@contextmanager
def padding_left_out(model: OnPolicyAlgorithm) -> Iterator[None]:
    """Inside, ``policy.counted_rows``, (rows,) bool or None, says which rows count: not RecurrentPPO's padding."""
    if not isinstance(model, RecurrentPPO):
        yield
        return
    buffer: Any = model.rollout_buffer
    policy: Any = model.policy
    get = buffer.get

    def get_and_note(batch_size: int | None = None) -> Iterator[Any]:
        for samples in get(batch_size):
            policy.counted_rows = samples.mask > 1e-8
            yield samples

    buffer.get = get_and_note
    try:
        yield
    finally:
        del buffer.get
        policy.counted_rows = None
