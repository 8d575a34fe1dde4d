"""Value and gradient of an objective in one pass over the logits, without a copy of them.

The class marginals enter AdaDEM linearly: everything but MECₖ/δ can be computed before they are known. One pass over
the logits computes

- the part of each logit's gradient that is free of the marginals, written where the gradient will be returned,
- each element's predicted class k and 1/δ,
- per predicted class, the count, the sum of the marginal-free values, and the (C, C) sums of p and of z/δ (with the
  element's maximum taken out of z).

The loss follows from the sums alone, and backward adds MECₖ/δ while it scales the gradient by the class's weight.

Two forms of the same computation: :mod:`dem_apps.fused.chunked` in PyTorch over chunks that stay in the cache (any
device and dtype; compiled on a GPU), and ``one_pass.cpp`` for the CPU, called by :mod:`dem_apps.fused.kernel`.
Shapes: O outer, C classes, I inner, N = O·I elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor, is_legacy_batchedtensor

from dem_apps.entropy import ObjectiveSpec, are_ordinary, computed_in, forbidden_below
from dem_apps.errors import InputError
from dem_apps.fused.chunked import chunked_finish, chunked_pass
from dem_apps.fused.kernel import kernel_finish, kernel_pass

#: No sum of scores reaches it.
HUGE = 1e28


@dataclass
class FusedSums:
    """The result of one pass. G is C where elements are grouped by predicted class, else 1; sums are float64."""

    counts: Tensor  # (G,)
    values: Tensor  # (G,) sums of the marginal-free values
    probabilities: Tensor  # (C, C) sums of p; (0, 0) without class marginals
    scaled_logits: Tensor  # (C, C) sums of (z − max z)/δ; (0, 0) without class marginals
    gradient: Tensor | None  # like the logits, not yet weighted
    predicted: Tensor | None  # (O, I) int32, where grouped
    inverse_delta: Tensor | None  # (O, I), with class marginals only
    #: False where a logit is NaN or infinite or forbids a class: the class marginals no longer enter linearly then
    ordinary: bool


@dataclass(frozen=True)
class FusedPass:
    """One way to go over logits."""

    spec: ObjectiveSpec  #: the member of the family
    dim: int  #: the class dimension, not negative
    mask: Tensor | None  #: boolean, the logits' shape without ``dim``; False elements are left out of every sum
    per_class: bool  #: group counts and values by predicted class (always so with class marginals)
    compiled: bool  #: the C++ kernel (CPU) or the compiled chunk function (GPU) instead of plain PyTorch

    def __call__(self, logits: Tensor, with_gradient: bool) -> FusedSums:
        """Go over the logits once; they are copied only where their memory is not dense."""
        logits = logits.detach()
        if not (logits.is_contiguous() or logits.movedim(self.dim, -1).is_contiguous()):
            logits = logits.contiguous()
        rows = _rows(logits, self.dim)
        elements = (rows.shape[0], rows.shape[2])
        with_marginals = self.spec.calibrator == "mec"
        grouped = self.per_class or with_marginals
        gradient = torch.empty_like(logits) if with_gradient else None
        predicted = logits.new_empty(elements, dtype=torch.int32) if grouped and with_gradient else None
        inverse_delta = None
        if with_marginals and with_gradient:
            inverse_delta = logits.new_empty(elements, dtype=computed_in(logits.dtype))
        counted = None if self.mask is None else self.mask.contiguous().view(elements)
        out = (None if gradient is None else _rows(gradient, self.dim), predicted, inverse_delta)
        # inside autocast the sums' matrix products would be made, and overflow, in half precision
        with torch.autocast(rows.device.type, enabled=False):
            if self._in_kernel(rows):
                sums = kernel_pass(rows, counted, out, self.spec, grouped)
            else:
                sums = chunked_pass(rows, counted, out, self.spec, grouped, self.compiled)
        size, side = (rows.shape[1] if grouped else 1), (rows.shape[1] if with_marginals else 0)
        counts, values, p, z = sums.split([size, size, side**2, side**2])
        square, ordinary = (side, side), abs(sums.sum().item()) < HUGE
        # forbidden classes matter to class marginals alone; as δ ≤ 2 H + 1, a single one makes a sum of z/δ this low
        lowest = forbidden_below(logits.dtype) / (4 * math.log(rows.shape[1]) + 2)
        if with_marginals and ordinary and z.amin().item() <= lowest:
            ordinary = are_ordinary(logits)
        return FusedSums(counts, values, p.view(square), z.view(square), gradient, predicted, inverse_delta, ordinary)

    def finish(self, sums: FusedSums, weights: Tensor, weighted_rows: Tensor | None) -> Tensor:
        """Weight the gradient by class and add the marginals' part, in place; the sums are used up.

        ``weights`` (G,) are of an element by its predicted class, times the incoming gradient; ``weighted_rows`` (C, C)
        are ``weights[k] · α · MECₖ``, with class marginals only.
        """
        assert sums.gradient is not None  # the caller asked for one
        if sums.predicted is None:
            # a float32 factor, since 1/N may be too small for half precision
            factor = weights.to(computed_in(sums.gradient.dtype))
            return torch.mul(sums.gradient, factor, out=sums.gradient)
        rows = _rows(sums.gradient, self.dim)
        finish = kernel_finish if self._in_kernel(rows) else chunked_finish
        finish(rows, sums.predicted, sums.inverse_delta, weights, weighted_rows)
        return sums.gradient

    def _in_kernel(self, rows: Tensor) -> bool:
        return self.compiled and rows.device.type == "cpu"


def weighted_loss(logits: Tensor, one_pass: FusedPass, sums: FusedSums, weights: Tensor, rows: Tensor | None) -> Tensor:
    """The loss, with the gradient that was made with it; ``one_pass`` makes it again for a second backward.

    ``weights`` (G,) are of an element by its predicted class, ``rows`` (C, C) float64 are ``α · MECₖ``.
    """
    values, weighted_rows = sums.values, None
    if rows is not None:
        values = values + (rows * sums.scaled_logits).sum(1)
        weighted_rows = rows * weights.unsqueeze(1)
    value = (weights * values).sum().to(computed_in(logits.dtype))
    if sums.gradient is None:
        return value
    loss: Tensor = _ReadyGradient.apply(logits, value, one_pass, sums, weights, weighted_rows)
    return loss


class _ReadyGradient(torch.autograd.Function):
    """A value whose gradient has been computed with it."""

    @staticmethod
    def forward(ctx, logits, value, one_pass, sums, weights, weighted_rows):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(logits)
        ctx.one_pass, ctx.sums, ctx.weights, ctx.weighted_rows = one_pass, sums, weights, weighted_rows
        return value

    @staticmethod
    def backward(ctx, incoming):  # type: ignore[no-untyped-def]
        if torch.is_grad_enabled():
            raise InputError(
                "create_graph=True: the one-pass forms have no second derivative, and would be taken for constants; "
                "build the objective with backend='reference'"
            )
        # The gradient is finished in place, so a second backward (retain_graph) computes it again.
        sums, ctx.sums = ctx.sums or ctx.one_pass(*ctx.saved_tensors, with_gradient=True), None
        batched = is_batchedtensor(incoming) or is_legacy_batchedtensor(incoming)
        scale = 1.0 if batched else incoming  # no kernel takes the batches of is_grads_batched
        weighted_rows = None if ctx.weighted_rows is None else ctx.weighted_rows * scale
        gradient = ctx.one_pass.finish(sums, ctx.weights * scale, weighted_rows)
        return gradient * incoming if batched else gradient, None, None, None, None, None


def _rows(tensor: Tensor, dim: int) -> Tensor:
    """A view (O, C, I) of a dense tensor with the classes in the middle, elements in their original order."""
    moved = tensor.movedim(dim, -1)
    if moved.is_contiguous():
        return moved.view(-1, tensor.shape[dim]).t().unsqueeze(0)
    return tensor.view(math.prod(tensor.shape[:dim]), tensor.shape[dim], -1)
