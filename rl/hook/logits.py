"""The logits that a policy acts by: those by which its ``evaluate_actions`` scores the actions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution
from torch import Tensor

from dem_apps.errors import InputError

#: The logit that sb3-contrib's MaskableCategorical gives a masked action.
MASKED = -1e8
#: A distribution with the raw logits (rows, choices of all dimensions) that it was made from, or None.
Made = tuple[Tensor | None, Any]
#: Logits (rows, choices) of an action dimension, and its class mask of the same shape, or None.
Head = tuple[Tensor, Tensor | None]


@contextmanager
def distributions_made(distribution: Distribution) -> Iterator[list[Made]]:
    """Collect the raw logits that ``distribution`` is made of; it keeps normalised ones, whose CADF is the entropy."""
    made: list[Made] = []
    make: Any = distribution.proba_distribution

    def make_and_note(action_logits: Tensor, *args: Any, **kwargs: Any) -> Distribution:
        result: Distribution = make(action_logits, *args, **kwargs)
        made.append((action_logits, result))
        return result

    distribution.proba_distribution = make_and_note  # type: ignore[method-assign]
    try:
        yield made
    finally:
        del distribution.proba_distribution


def acting_heads(
    made: list[Made], space: spaces.Space[Any], actions: Tensor, log_prob: Tensor
) -> list[Head] | None:
    """The head of each action dimension with a choice, by which ``actions`` (rows, …) have ``log_prob`` (rows,).

    A policy may change its logits at any place between its last layer and its score (a mask, a temperature, a prior).
    So the raw logits count only where they give the score, else those of the distribution itself; None if neither do.
    """
    sizes = action_sizes(space)
    chosen = actions.detach().long().reshape(-1, len(sizes))
    shapes = [(len(chosen), size) for size in sizes]
    for logits, masks in _candidates(made, sizes):
        if [tuple(part.shape) for part in logits] != shapes:
            continue
        heads = list(zip(logits, masks, strict=True))
        score = _score(heads, chosen).to(log_prob)
        # relative too: the rounding of a sum over many dimensions; NaN is another check's
        if torch.allclose(score, log_prob.detach(), rtol=1e-5, atol=1e-4, equal_nan=True):
            return [
                (head, _with_impossible(head, mask)) for head, mask in heads if head.shape[1] > 1
            ]
    return None


def _candidates(
    made: list[Made], sizes: list[int]
) -> Iterator[tuple[list[Tensor], list[Tensor | None]]]:
    """Logits and class masks by dimension, the last made first: the raw ones, then the distribution's own."""
    for raw, distribution in reversed(made):
        # torch's distributions, one per dimension; sb3-contrib's plural has them under another name
        parts = getattr(distribution, "distributions", None)
        parts = parts or getattr(distribution, "distribution", None)
        if not isinstance(parts, list):
            parts = [parts] * len(sizes)
        allowed = [getattr(part, "masks", None) for part in parts]  # of MaskablePPO
        masks = [None if mask is None else ~mask for mask in allowed]
        if raw is not None:
            yield list(raw.reshape(-1, sum(sizes)).split(sizes, dim=1)), masks
        yield [getattr(part, "logits", torch.empty(0)) for part in parts], masks


@torch.no_grad()
def _score(heads: list[Head], chosen: Tensor) -> Tensor:
    """Log-probabilities (rows,) of the actions ``chosen`` (rows, dimensions).

    Rounded as torch, SB3 and sb3-contrib round them, however large the logits are and however many the dimensions.
    """
    scores = []
    for (head, mask), index in zip(heads, chosen.split(1, dim=1), strict=True):
        head = head - head.logsumexp(1, keepdim=True)
        if mask is not None:
            head = head.masked_fill(mask, MASKED)
            head = head - head.logsumexp(1, keepdim=True)
        scores.append(head.gather(1, index)[:, 0])
    return torch.stack(scores, dim=1).sum(1)


def _with_impossible(logits: Tensor, class_mask: Tensor | None) -> Tensor | None:
    """Return the class mask with the actions that the policy masks by their logit.

    The logit of such an action is -inf, or about :data:`MASKED` and below.
    """
    impossible = logits <= MASKED / 10
    if not impossible.any():
        return class_mask
    return impossible if class_mask is None else class_mask | impossible


def action_sizes(space: spaces.Space[Any]) -> list[int]:
    """The number of choices of each action dimension; an InputError for a space without (Box, MultiBinary)."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return [int(size) for size in space.nvec]
    raise InputError(
        f"the entropy objectives act on logits over choices: Discrete and one-dimensional MultiDiscrete action spaces "
        f"are supported, not {type(space).__name__} of shape {space.shape}; 'entropy' and 'none' take any "
        "on which the plain algorithm trains"
    )
