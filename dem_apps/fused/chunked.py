"""The one pass in PyTorch, over chunks that stay in the cache; any device and dtype, compiled on a GPU.

Outputs as of :mod:`dem_apps.fused.one_pass`. Shapes: O outer, C classes, I inner, n elements of a chunk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from dem_apps.entropy import ENTROPY_DELTA_FLOOR, ObjectiveSpec, computed_in
from dem_apps.reduction import sums_in

#: Not a power of two: rows of a (C, chunk) buffer would then share the same cache sets.
_CPU_CHUNK = 8192 + 16
_GPU_CHUNK = 1 << 20


def chunked_pass(
    rows: Tensor,
    counted: Tensor | None,
    out: tuple[Tensor | None, Tensor | None, Tensor | None],
    spec: ObjectiveSpec,
    grouped: bool,
    compiled: bool,
) -> Tensor:
    """Go over the logits (O, C, I) chunk by chunk; the sums in the order of :class:`dem_apps.fused.one_pass.FusedSums`.

    ``counted``, (O, I), is False where an element counts nowhere. ``out`` is the gradient (O, C, I), the predicted
    class (O, I) int32 and 1/δ (O, I), written where not None. The sums are flat, float64, ``grouped`` per predicted
    class.
    """
    num_classes = rows.shape[1]
    size = num_classes if grouped else 1
    length = 2 * size + (2 * num_classes**2 if spec.calibrator == "mec" else 0)
    sums = torch.zeros(length, dtype=sums_in(rows), device=rows.device)
    chunk_pass: Callable[..., Tensor] = _compiled_chunk_pass() if compiled else _chunk_pass
    for o, start, stop in _chunks(rows):
        parts = (None if each is None else each[o, ..., start:stop] for each in (rows, counted, *out))
        sums += chunk_pass(*parts, spec, grouped)
    return sums


def chunked_finish(
    rows: Tensor, predicted: Tensor, inverse_delta: Tensor | None, weights: Tensor, weighted_rows: Tensor | None
) -> None:
    """``weights[k] · gradient + weighted_rows[k]/δ`` in place; see :meth:`dem_apps.fused.one_pass.FusedPass.finish`.

    Of the gradient (O, C, I), k (O, I), 1/δ (O, I) and weights (C,); the last and ``weighted_rows`` (C, C) with
    marginals.
    """
    wide = computed_in(rows.dtype)
    weights = weights.to(wide)
    columns = None if weighted_rows is None else weighted_rows.to(wide).t().contiguous()
    for o, start, stop in _chunks(rows):
        k = predicted[o, start:stop].long()
        part = rows[o, :, start:stop]
        finished = part * weights[k]
        if columns is not None and inverse_delta is not None:
            finished += columns[:, k] * inverse_delta[o, start:stop]
        part.copy_(finished)


def _chunks(rows: Tensor) -> list[tuple[int, int, int]]:
    size = _GPU_CHUNK if rows.is_cuda else _CPU_CHUNK
    inner = rows.shape[2]
    return [(o, start, min(start + size, inner)) for o in range(rows.shape[0]) for start in range(0, inner, size)]


def _chunk_pass(
    logits_cn: Tensor,
    counted_n: Tensor | None,
    gradient_cn: Tensor | None,
    predicted_n: Tensor | None,
    inverse_delta_n: Tensor | None,
    spec: ObjectiveSpec,
    grouped: bool,
) -> Tensor:
    """The PyTorch form on one chunk: writes the three outputs, returns the flat float64 sums."""
    z = logits_cn.to(computed_in(logits_cn.dtype))
    if counted_n is not None:
        # NaN in a masked element must not reach a sum
        z = torch.where(counted_n, z, 0.0)
    top = z.amax(0)
    z = z - top
    p = z.exp()
    total = p.sum(0)
    p = p / total
    softened = p if spec.tau == 1.0 else (z / spec.tau).softmax(0)
    mean = (softened * z).sum(0)
    reward = softened * (z - mean + spec.tau) / spec.tau
    scale = torch.ones_like(mean) if spec.norm is None else 1.0 / _delta(reward, p * (z - mean), spec)
    if spec.calibrator == "gmc":
        value = -mean + spec.alpha * total.log() + (spec.alpha - 1.0) * top
    elif spec.calibrator == "mec":
        value = scale * ((spec.alpha - 1.0) * top - mean)
    else:
        value = scale * (spec.alpha - 1.0) * (mean + top)
    if counted_n is not None:
        scale = torch.where(counted_n, scale, 0.0)
        value = torch.where(counted_n, value, 0.0)
    if gradient_cn is not None:
        if spec.delta == "entropy" and spec.calibrator == "self":
            # α p − R without near equals, whose difference 1/δ magnifies
            marginal_free = p * (spec.alpha - 1.0 - (z - mean))
        else:
            marginal_free = -reward if spec.calibrator == "mec" else spec.alpha * p - reward
        gradient_cn.copy_(marginal_free * scale)
    if inverse_delta_n is not None:
        inverse_delta_n.copy_(scale)
    if not grouped:
        count = torch.full_like(value.sum(), value.numel()) if counted_n is None else counted_n.sum()
        return torch.stack([count.to(sums_in(value)), value.sum(dtype=sums_in(value))])
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


def _delta(reward: Tensor, entropy_reward: Tensor, spec: ObjectiveSpec) -> Tensor:
    measured = entropy_reward if spec.delta == "entropy" else reward
    if spec.norm == "l1":
        delta = measured.abs().sum(0)
    elif spec.norm == "l2":
        delta = measured.square().sum(0).sqrt()
    else:
        delta = measured.abs().amax(0)
    return delta.clamp_min(ENTROPY_DELTA_FLOOR) if spec.delta == "entropy" else delta


@functools.cache
def _compiled_chunk_pass() -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = torch.compile(_chunk_pass, dynamic=True)
    return compiled
