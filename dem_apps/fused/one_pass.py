"""Value and gradient of an objective in one pass over the logits, without a copy of them.

The class marginals enter AdaDEM linearly: everything but MECₖ/δ can be computed before they are known. One pass over
the logits computes

- the part of each logit's gradient that is free of the marginals, written where the gradient will be returned,
- each element's predicted class k and 1/δ,
- per predicted class, the count, the sum of the marginal-free values, and the (C, C) sums of p and of z/δ (with the
  element's maximum taken out of z).

The loss follows from the sums alone, and backward adds MECₖ/δ while it scales the gradient by the class's weight.

Three forms of the same computation: :func:`chunked_pass` in PyTorch over chunks that stay in the cache (any device and
dtype), ``one_pass.cpp`` for the CPU, called by :mod:`dem_apps.fused.kernel`, and :mod:`dem_apps.fused.gpu_kernel`,
which takes the sums in forward and makes the whole gradient in backward: there computing twice costs less than memory.
Shapes: O outer, C classes, I inner, N = O·I elements; n elements of a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dem_apps.entropy import (
    ENTROPY_DELTA_FLOOR,
    Mask,
    ObjectiveSpec,
    are_ordinary,
    computed_in,
    forbidden_below,
)
from dem_apps.errors import InputError
from dem_apps.fused.kernel import kernel_finish, kernel_pass
from dem_apps.reduction import sums_in

#: The outputs of a pass besides its sums, None where one is not needed:
#: the gradient (O, C, I),
#: each element's predicted class (O, I),
#: and 1/δ (O, I).
Outputs = tuple[Tensor | None, Tensor | None, Tensor | None]

#: Elements per chunk. On a CPU it is no power of two, because the rows of a (C, chunk) buffer would
#: then share the same cache sets.
_CPU_CHUNK = 8192 + 16
_GPU_CHUNK = 1 << 20
#: No sum of scores reaches it.
HUGE = 1e28


@dataclass
class FusedSums:
    """The result of one pass. G is C where elements are grouped by predicted class, else 1; sums are float64."""

    counts: Tensor  # (G,)
    values: Tensor  # (G,) sums of the marginal-free values
    probabilities: Tensor  # (C, C) sums of p; (0, 0) without class marginals
    scaled_logits: Tensor  # (C, C) sums of (z − max z)/δ; (0, 0) without class marginals
    gradient: Tensor | None  # like the logits, not yet weighted; None on a GPU's kernel
    out: Outputs  # the same as (O, C, I); the predicted class int32, where grouped; 1/δ with class marginals
    #: False where a logit is NaN or infinite or forbids a class: the class marginals no longer enter linearly then
    ordinary: bool


@dataclass(frozen=True)
class FusedPass:
    """One way to go over logits."""

    spec: ObjectiveSpec  #: the member of the family
    dim: int  #: the class dimension, not negative
    #: boolean, the logits' shape without ``dim``; False elements are left out of every sum
    mask: Mask
    grouped: bool  #: counts and values by predicted class, as class marginals need
    compiled: bool  #: the C++ kernel (CPU) or Triton's (GPU) instead of plain PyTorch

    def __call__(self, logits: Tensor, with_gradient: bool) -> FusedSums:
        """Go over the logits once; they are copied only where their memory is not dense."""
        logits, rows, counted = self.views(logits)
        elements = (rows.shape[0], rows.shape[2])
        with_marginals = self.spec.calibrator == "mec"
        gradient = predicted = inverse_delta = None
        if with_gradient and not self._in_gpu_kernel(rows):
            gradient = torch.empty_like(logits)
            if self.grouped:
                predicted = logits.new_empty(elements, dtype=torch.int32)
            if with_marginals:
                inverse_delta = logits.new_empty(elements, dtype=computed_in(logits.dtype))
        out = (None if gradient is None else _rows(gradient, self.dim), predicted, inverse_delta)
        sums = self._sums(rows, counted, out)
        size = rows.shape[1] if self.grouped else 1
        side = rows.shape[1] if with_marginals else 0
        counts, values, p, z = sums.split([size, size, side**2, side**2])
        return FusedSums(
            counts,
            values,
            p.view(side, side),
            z.view(side, side),
            gradient,
            out,
            _is_ordinary(logits, sums, z, rows.shape[1]),
        )

    def _sums(self, rows: Tensor, counted: Mask, out: Outputs) -> Tensor:
        """Return the flat sums of :func:`chunked_pass`, by the form that serves here."""
        # inside autocast the sums' matrix products would be made, and overflow, in half precision
        with torch.autocast(rows.device.type, enabled=False):
            if self._in_kernel(rows):
                return kernel_pass(rows, counted, out, self.spec, self.grouped)
            if self._in_gpu_kernel(rows):
                from dem_apps.fused.gpu_kernel import gpu_pass  # Triton takes a second to import

                return gpu_pass(rows, counted, self.spec, self.grouped)
            return chunked_pass(rows, counted, out, self.spec, self.grouped)

    def finish(
        self,
        sums: FusedSums,
        weights: Tensor,
        weighted_rows: Tensor | None,
        logits: Callable[[], Tensor],
    ) -> Tensor:
        """Weight the gradient by class and add the marginals' part, in place; the sums are used up.

        ``weights`` (G,) are of an element by its predicted class, times the incoming gradient; ``weighted_rows`` (C, C)
        are ``weights[k] · α · MECₖ``, with class marginals only. ``logits`` gives those of the pass again, for
        a GPU's kernel.
        """
        if sums.gradient is None:
            from dem_apps.fused.gpu_kernel import gpu_gradient

            dense, rows, counted = self.views(logits())
            gradient = torch.empty_like(dense)
            gpu_gradient(
                rows, counted, _rows(gradient, self.dim), self.spec, weights, weighted_rows
            )
            return gradient
        written, predicted, inverse_delta = sums.out
        if predicted is None or written is None:
            # a float32 factor, since 1/N may be too small for half precision
            factor = weights.to(computed_in(sums.gradient.dtype))
            return torch.mul(sums.gradient, factor, out=sums.gradient)
        finish = kernel_finish if self._in_kernel(written) else chunked_finish
        finish(written, predicted, inverse_delta, weights, weighted_rows)
        return sums.gradient

    def views(self, logits: Tensor) -> tuple[Tensor, Tensor, Mask]:
        """Arrange the logits and the mask for a pass.

        Returns:
            the dense logits, the same logits as (O, C, I), and the mask as (O, I).
        """
        logits = logits.detach()
        if not (logits.is_contiguous() or logits.movedim(self.dim, -1).is_contiguous()):
            logits = logits.contiguous()
        rows = _rows(logits, self.dim)
        if self.mask is None:
            return logits, rows, None
        return logits, rows, self.mask.contiguous().view(rows.shape[0], rows.shape[2])

    def _in_kernel(self, rows: Tensor) -> bool:
        return self.compiled and rows.device.type == "cpu"

    def _in_gpu_kernel(self, rows: Tensor) -> bool:
        return self.compiled and rows.is_cuda


def weighted_loss(
    logits: Tensor,
    one_pass: FusedPass,
    sums: FusedSums,
    weights: Tensor,
    rows: Tensor | None,
    with_gradient: bool,
) -> Tensor:
    """The loss, with the gradient that was made with it; ``one_pass`` makes it again for a second backward.

    ``weights`` (G,) are of an element by its predicted class, ``rows`` (C, C) float64 are ``α · MECₖ``.
    """
    values, weighted_rows = sums.values, None
    if rows is not None:
        values = values + (rows * sums.scaled_logits).sum(1)
        weighted_rows = rows * weights.unsqueeze(1)
    value = (weights * values).sum().to(computed_in(logits.dtype))
    if not with_gradient:
        return value
    loss: Tensor = _ReadyGradient.apply(logits, value, one_pass, sums, weights, weighted_rows)
    return loss


class _ReadyGradient(torch.autograd.Function):
    """A value whose gradient has been computed with it."""

    @staticmethod
    def forward(ctx, logits, value, one_pass, sums, weights, weighted_rows):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(logits)
        ctx.one_pass, ctx.sums = one_pass, sums
        ctx.weights, ctx.weighted_rows = weights, weighted_rows
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
        weighted_rows = None if ctx.weighted_rows is None else ctx.weighted_rows * incoming
        gradient = ctx.one_pass.finish(
            sums, ctx.weights * incoming, weighted_rows, lambda: ctx.saved_tensors[0]
        )
        return gradient, None, None, None, None, None


def _is_ordinary(logits: Tensor, sums: Tensor, scaled_logits: Tensor, num_classes: int) -> bool:
    """Check that no logit is NaN or infinite.

    With class marginals no logit may forbid a class either.
    """
    lowest = scaled_logits.amin() if scaled_logits.numel() else sums.new_zeros(())
    total, least = torch.stack([sums.sum(), lowest]).tolist()  # one wait for the device
    if not abs(total) < HUGE:  # NaN is not either
        return False
    # as δ ≤ 2 H + 1, a single forbidden class makes a sum of z/δ this low
    suspicious = least <= forbidden_below(logits.dtype) / (4 * math.log(num_classes) + 2)
    return not suspicious or are_ordinary(logits)


def _rows(tensor: Tensor, dim: int) -> Tensor:
    """A view (O, C, I) of a dense tensor with the classes in the middle, elements in their original order."""
    moved = tensor.movedim(dim, -1)
    if moved.is_contiguous():
        return moved.view(-1, tensor.shape[dim]).t().unsqueeze(0)
    return tensor.view(math.prod(tensor.shape[:dim]), tensor.shape[dim], -1)


def chunked_pass(
    rows: Tensor,
    counted: Mask,
    out: Outputs,
    spec: ObjectiveSpec,
    grouped: bool,
) -> Tensor:
    """Go over the logits chunk by chunk.

    Args:
        rows: the logits (O, C, I).
        counted: (O, I), False where an element counts nowhere.
        out: the outputs, written where they are not None.
        spec: the member of the family.
        grouped: sum per predicted class.

    Returns:
        the flat float64 sums, in the order of :class:`FusedSums`.
    """
    num_classes = rows.shape[1]
    size = num_classes if grouped else 1
    length = 2 * size + (2 * num_classes**2 if spec.calibrator == "mec" else 0)
    sums = torch.zeros(length, dtype=sums_in(rows), device=rows.device)
    for chunk in _chunks(rows):
        counted_n, *outputs = (None if each is None else each[chunk] for each in (counted, *out))
        sums += _chunk_pass(rows[chunk], counted_n, outputs, spec, grouped)
    return sums


def chunked_finish(
    rows: Tensor,
    predicted: Tensor,
    inverse_delta: Tensor | None,
    weights: Tensor,
    weighted_rows: Tensor | None,
) -> None:
    """Make ``weights[k] · gradient + weighted_rows[k]/δ`` of the gradient, in place.

    See :meth:`FusedPass.finish`.

    Args:
        rows: the gradient (O, C, I).
        predicted: k (O, I).
        inverse_delta: 1/δ (O, I), with class marginals only.
        weights: (C,).
        weighted_rows: (C, C), with class marginals only.
    """
    wide = computed_in(rows.dtype)
    weights = weights.to(wide)
    columns = None if weighted_rows is None else weighted_rows.to(wide).t().contiguous()
    for chunk in _chunks(rows):
        k = predicted[chunk].long()
        finished = rows[chunk] * weights[k]
        if columns is not None and inverse_delta is not None:
            finished += columns[:, k] * inverse_delta[chunk]
        rows[chunk] = finished


def _chunks(rows: Tensor) -> Iterator[Any]:
    """Yield the indices of the chunks of a tensor (O, C, I) or (O, I)."""
    size = _GPU_CHUNK if rows.is_cuda else _CPU_CHUNK
    for o in range(rows.shape[0]):
        for start in range(0, rows.shape[2], size):
            yield o, ..., slice(start, start + size)


def _chunk_pass(
    logits_cn: Tensor,
    counted_n: Mask,
    out: Sequence[Tensor | None],
    spec: ObjectiveSpec,
    grouped: bool,
) -> Tensor:
    """The PyTorch form on one chunk: writes the three outputs, returns the flat float64 sums."""
    gradient_cn, predicted_n, inverse_delta_n = out
    z = logits_cn.to(computed_in(logits_cn.dtype))
    if counted_n is not None:
        # NaN in a masked element must not reach a sum
        z = torch.where(counted_n, z, 0.0)
    top = z.amax(0)
    z = z - top
    p, mean, reward, scale, value = _terms(z, top, spec)
    if counted_n is not None:
        scale, value = torch.where(counted_n, scale, 0.0), torch.where(counted_n, value, 0.0)
    if gradient_cn is not None:
        gradient_cn.copy_(_marginal_free(z, p, mean, reward, spec) * scale)
    if inverse_delta_n is not None:
        inverse_delta_n.copy_(scale)
    if not grouped:
        number = value.new_full((), value.numel()) if counted_n is None else counted_n.sum()
        return torch.stack([number.to(sums_in(value)), value.sum(dtype=sums_in(value))])
    classes = torch.arange(z.shape[0], dtype=torch.int32, device=z.device).unsqueeze(1)
    # the first of the largest, as argmax
    predicted = torch.where(z == 0, classes, z.shape[0] - 1).amin(0)
    if predicted_n is not None:
        predicted_n.copy_(predicted)
    one_hot = classes == predicted
    if counted_n is not None:
        one_hot = one_hot & counted_n
    one_hot = one_hot.to(z.dtype)
    sums = [one_hot.sum(1), one_hot @ value]
    if spec.calibrator == "mec":
        sums += [(one_hot @ p.t()).flatten(), ((one_hot * scale) @ z.t()).flatten()]
    return torch.cat(sums).to(sums_in(value))


def _marginal_free(
    z: Tensor, p: Tensor, mean: Tensor, reward: Tensor, spec: ObjectiveSpec
) -> Tensor:
    """The part of the gradient (C, n) that needs no class marginals, times δ."""
    if spec.calibrator == "mec":
        return -reward
    if spec.calibrator == "self" and spec.delta == "entropy":
        # α p − R without near equals, whose difference 1/δ magnifies
        return p * (spec.alpha - 1.0 - (z - mean))
    return spec.alpha * p - reward


def _terms(z: Tensor, top: Tensor, spec: ObjectiveSpec) -> tuple[Tensor, ...]:
    """Compute the terms of the objective.

    Args:
        z: the logits (C, n) without their maximum.
        top: the maximum (n,).
        spec: the member of the family.

    Returns:
        p (C, n), Σ p_τ z (n,), the reward R_T (C, n), 1/δ (n,), and the marginal-free value (n,).
    """
    p = z.exp()
    total = p.sum(0)
    p = p / total
    softened = p if spec.tau == 1.0 else (z / spec.tau).softmax(0)
    mean = (softened * z).sum(0)
    reward = softened * (z - mean + spec.tau) / spec.tau
    scale = torch.ones_like(mean)
    if spec.norm is not None:
        measured = p * (z - mean) if spec.delta == "entropy" else reward
        scale = 1.0 / _delta(measured, spec)
    if spec.calibrator == "gmc":
        value = -mean + spec.alpha * total.log() + (spec.alpha - 1.0) * top
    elif spec.calibrator == "mec":
        value = scale * ((spec.alpha - 1.0) * top - mean)
    else:
        value = scale * (spec.alpha - 1.0) * (mean + top)
    return p, mean, reward, scale, value


def _delta(measured: Tensor, spec: ObjectiveSpec) -> Tensor:
    """The norm (n,) of a reward (C, n)."""
    if spec.norm == "l1":
        delta = measured.abs().sum(0)
    elif spec.norm == "l2":
        delta = measured.square().sum(0).sqrt()
    else:
        delta = measured.abs().amax(0)
    return delta.clamp_min(ENTROPY_DELTA_FLOOR) if spec.delta == "entropy" else delta
