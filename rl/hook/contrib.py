"""What sb3-contrib's algorithms need of the hook, where sb3-contrib is installed: masked actions and padded rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

#: Of sb3-contrib, which the hook serves.
ALGORITHMS: tuple[Any, ...] = (MaskablePPO, RecurrentPPO)


def class_masks(distribution: Distribution, dimensions: int) -> list[Tensor | None]:
    """Per action dimension (rows, choices), True where MaskablePPO's mask forbids; None without a mask.

    Args:
        distribution: the policy's, just after ``evaluate_actions``, which leaves the masked ones there whichever way
            the masks were passed.
        dimensions: the number of action dimensions.
    """
    if not isinstance(distribution, MaskableDistribution):
        return [None] * dimensions
    if isinstance(distribution, MaskableMultiCategoricalDistribution):
        distributions = distribution.distributions
    else:
        distributions = [distribution.distribution]  # type: ignore[list-item]  # the class for Discrete
    return [None if head.masks is None else ~head.masks for head in distributions]


@contextmanager
def padding_told(model: OnPolicyAlgorithm, tell: Callable[[Tensor], None]) -> Iterator[None]:
    """Inside, ``tell`` hears of each batch which of its rows count, (rows,) bool, before the policy sees it.

    RecurrentPPO pads sequences to one length and drops the padded rows after the policy has seen them. Of other
    algorithms all rows count, and nothing is told.
    """
    if not isinstance(model, RecurrentPPO):
        yield
        return
    buffer: Any = model.rollout_buffer
    get = buffer.get

    def get_and_tell(batch_size: int | None = None) -> Iterator[Any]:
        for samples in get(batch_size):
            tell(samples.mask > 1e-8)
            yield samples

    buffer.get = get_and_tell
    try:
        yield
    finally:
        del buffer.get
