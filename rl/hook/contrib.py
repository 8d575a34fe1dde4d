"""sb3-contrib's part of the hook, where it is installed: masked actions and padded rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import Tensor

try:
    from sb3_contrib import MaskablePPO, RecurrentPPO
    from sb3_contrib.common.maskable.distributions import MaskableDistribution, MaskableMultiCategoricalDistribution
except ImportError:  # it is optional; nothing is an instance or a subclass of ()
    MaskablePPO = RecurrentPPO = MaskableDistribution = MaskableMultiCategoricalDistribution = ()  # type: ignore

#: sb3-contrib's algorithms that the hook supports.
ALGORITHMS: tuple[Any, ...] = (MaskablePPO, RecurrentPPO)


def class_masks(distribution: Distribution, dimensions: int) -> list[Tensor | None]:
    """Per action dimension (rows, choices), True where MaskablePPO's mask forbids; None without a mask.

    ``evaluate_actions`` leaves the masks in the policy's distribution.
    """
    if not isinstance(distribution, MaskableDistribution):
        return [None] * dimensions
    known: Any = distribution
    several = isinstance(distribution, MaskableMultiCategoricalDistribution)
    heads = known.distributions if several else [known.distribution]
    return [None if head.masks is None else ~head.masks for head in heads]


@contextmanager
def padding_left_out(model: OnPolicyAlgorithm) -> Iterator[None]:
    """Inside, ``policy.counted_rows`` says which rows of a batch count, (rows,) bool; None where all do.

    RecurrentPPO pads sequences to one length and drops the padded rows after the policy has seen them.
    """
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
