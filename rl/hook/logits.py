"""The logits that a policy acts by: those that its action distribution is made from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution
from torch import Tensor

from dem_apps.errors import InputError
from rl.hook.contrib import class_masks

#: A logit at or below which an action is masked; the number of sb3-contrib's MaskableCategorical.
MASKED = -1e8


@contextmanager
def acting_logits(distribution: Distribution) -> Iterator[list[Tensor]]:
    """Inside, collects the logits that the distribution is made from, (rows, choices), in order.

    The distribution itself keeps normalised logits only, on which CADF would be the entropy.
    """
    made_from: list[Tensor] = []
    make: Any = distribution.proba_distribution

    def make_and_note(action_logits: Tensor, *args: Any, **kwargs: Any) -> Distribution:
        made_from.append(action_logits)
        made: Distribution = make(action_logits, *args, **kwargs)
        return made

    distribution.proba_distribution = make_and_note  # type: ignore[method-assign]
    try:
        yield made_from
    finally:
        del distribution.proba_distribution


def heads_with_masks(
    logits: Tensor, distribution: Distribution, space: spaces.Space[Any]
) -> list[tuple[Tensor, Tensor | None]]:
    """Logits (rows, choices) of each action dimension with a choice, and its class mask of the same shape, or None.

    ``logits`` are those of all dimensions, of which the distribution was made (:func:`acting_logits`).
    """
    sizes = action_sizes(space)
    heads = logits.reshape(-1, sum(sizes)).split(sizes, dim=1)
    masks = class_masks(distribution, len(heads))
    return [(head, _with_impossible(head, mask)) for head, mask in zip(heads, masks, strict=True) if head.shape[1] > 1]


def _with_impossible(logits: Tensor, class_mask: Tensor | None) -> Tensor | None:
    """The class mask with the actions that the policy masks by their logit: -inf, or :data:`MASKED` and below."""
    impossible = logits <= MASKED
    if not impossible.any():
        return class_mask
    return impossible if class_mask is None else class_mask | impossible


def action_sizes(space: spaces.Space[Any]) -> list[int]:
    """The number of choices of each action dimension.

    Raises:
        InputError: an action space without logits over choices (Box, MultiBinary).
    """
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return [int(size) for size in space.nvec]
    raise InputError(
        f"the entropy objectives act on logits over choices: Discrete and one-dimensional MultiDiscrete action spaces "
        f"are supported, not {type(space).__name__}; with 'entropy' or 'none' any action space works"
    )
