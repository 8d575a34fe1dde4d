"""The one pass on a GPU in Triton, which torch's GPU builds bring.

Two kernels: :func:`gpu_pass` reads the logits for the sums alone; in backward, when the class marginals are known,
:func:`gpu_gradient` reads them again and writes the finished gradient. Together that is three times the logits' bytes,
the least that marginals of the whole batch allow, and no memory but the gradient's.
Shapes: O outer, C classes, I inner, N = O·I elements. A program takes tiles of ``BLOCK`` elements and goes over their
classes in loops, which find the logits in the cache after the first.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dem_apps.entropy import ENTROPY_DELTA_FLOOR, ObjectiveSpec
from dem_apps.reduction import sums_in

#: elements of a tile, warps of a program: of the sums, of the gradient
_SUMS, _GRADIENT = (128, 4), (128, 2)
#: programs of the sums; each leaves one row of partial sums
_PER_PROCESSOR = 8
#: z/δ is multiplied in two halves of this type: 16 bits, and float32's range
HALF = tl.bfloat16


def gpu_pass(rows: Tensor, counted: Tensor | None, spec: ObjectiveSpec, grouped: bool) -> Tensor:
    """The flat sums of :func:`dem_apps.fused.one_pass.chunked_pass`; nothing else is written."""
    outer, classes, inner = rows.shape
    size, side = (classes if grouped else 1), (classes if spec.calibrator == "mec" else 0)
    tiles = outer * triton.cdiv(inner, _SUMS[0])
    programs = min(tiles, _PER_PROCESSOR * _processors(rows))
    partial = torch.empty(programs, 2 * size + 2 * side**2, dtype=torch.float32, device=rows.device)
    rows = _planes(rows)
    with torch.cuda.device_of(rows):
        _sums_kernel[(programs,)](
            rows, counted, partial, tiles, **_arguments(rows, spec), BLOCK=_SUMS[0], num_warps=_SUMS[1],
            BLOCK_C=max(16, triton.next_power_of_2(classes + 1)), MASKED=counted is not None, GROUPED=grouped,
            HALF=HALF,
        )  # fmt: skip
    return partial.sum(0, dtype=sums_in(rows))


def gpu_gradient(
    rows: Tensor,
    counted: Tensor | None,
    gradient: Tensor,
    spec: ObjectiveSpec,
    weights: Tensor,
    weighted_rows: Tensor | None,
) -> None:
    """Write the weighted gradient (O, C, I); ``weights`` (G,) and ``weighted_rows`` (C, C) as of FusedPass.finish."""
    tiles = rows.shape[0] * triton.cdiv(rows.shape[2], _GRADIENT[0])
    wide = weights.float().contiguous()
    columns = wide if weighted_rows is None else weighted_rows.float().contiguous()
    rows = _planes(rows)
    with torch.cuda.device_of(rows):
        _gradient_kernel[(tiles,)](
            rows, counted, gradient, wide, columns, *gradient.stride(), **_arguments(rows, spec),
            BLOCK=_GRADIENT[0], num_warps=_GRADIENT[1], MASKED=counted is not None, GROUPED=len(weights) > 1,
        )  # fmt: skip


def _planes(rows: Tensor) -> Tensor:
    """One plane a class: neighbouring threads read neighbouring elements, and a copy costs less where they do not."""
    return rows if rows.stride(2) == 1 else rows.contiguous()


def _processors(rows: Tensor) -> int:
    return torch.cuda.get_device_properties(rows.device).multi_processor_count if rows.is_cuda else 1


def _arguments(rows: Tensor, spec: ObjectiveSpec) -> dict[str, Any]:
    """What both kernels take: shape, strides in elements, and the member of the family."""
    return {
        "outer_stride": rows.stride(0), "class_stride": rows.stride(1), "inner": rows.shape[2],
        "tau": spec.tau, "alpha": spec.alpha, "floor": ENTROPY_DELTA_FLOOR, "C": rows.shape[1],
        "CALIBRATOR": spec.calibrator, "NORM": spec.norm or "", "OF_ENTROPY": spec.delta == "entropy",
        "TEMPERED": spec.tau != 1.0,
    }  # fmt: skip


@triton.jit
def _tile(counted, tile, inner, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """Which outer row, which elements, and which of them count."""
    per_row = tl.cdiv(inner, BLOCK)
    outer = (tile // per_row).to(tl.int64)
    element = (tile % per_row) * BLOCK + tl.arange(0, BLOCK)
    counts = element < inner
    if MASKED:
        # NaN in a masked element must not reach a sum
        counts = counts & (tl.load(counted + outer * inner + element, mask=counts, other=0) != 0)
    return outer, element, counts


@triton.jit
def _reward(z, inverse, inverse_softened, mean, tau, TEMPERED: tl.constexpr):
    """p and the reward of one class; z is less the element's maximum."""
    p = tl.exp(z) * inverse
    softened = p
    if TEMPERED:
        softened = tl.exp(z / tau) * inverse_softened
    return p, softened * (z - mean + tau) / tau


@triton.jit
def _elements(
    plane, counts, class_stride, tau, alpha, floor, C: tl.constexpr, CALIBRATOR: tl.constexpr, NORM: tl.constexpr,
    OF_ENTROPY: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Of each element, as the chunk pass of :mod:`dem_apps.fused.one_pass` computes it: the largest logit, 1/Σ exp z,
    the same of z/τ, the mean of z, 1/δ, the marginal-free value, and the predicted class."""
    top = tl.full(counts.shape, float("-inf"), tl.float32)
    predicted = tl.zeros(counts.shape, tl.int32)
    for c in tl.static_range(C):
        z = tl.load(plane + c * class_stride, mask=counts, other=0.0).to(tl.float32)
        predicted = tl.where(z > top, c, predicted)  # the first of the largest, as argmax
        top = tl.where(z > top, z, top)
    total = tl.zeros(counts.shape, tl.float32)
    softened_total = tl.zeros(counts.shape, tl.float32)
    mean = tl.zeros(counts.shape, tl.float32)
    for c in tl.static_range(C):
        z = tl.load(plane + c * class_stride, mask=counts, other=0.0).to(tl.float32) - top
        e = tl.exp(z)
        total += e
        if TEMPERED:
            e = tl.exp(z / tau)
        softened_total += e
        mean += e * z
    inverse = 1.0 / total
    inverse_softened = 1.0 / softened_total
    mean = mean * inverse_softened
    scale = tl.full(counts.shape, 1.0, tl.float32)
    if NORM != "":
        delta = tl.zeros(counts.shape, tl.float32)
        for c in tl.static_range(C):
            z = tl.load(plane + c * class_stride, mask=counts, other=0.0).to(tl.float32) - top
            p, measured = _reward(z, inverse, inverse_softened, mean, tau, TEMPERED)
            if OF_ENTROPY:
                measured = p * (z - mean)
            if NORM == "l1":
                delta += tl.abs(measured)
            elif NORM == "l2":
                delta += measured * measured
            else:
                delta = tl.maximum(delta, tl.abs(measured))
        if NORM == "l2":
            delta = tl.sqrt(delta)
        if OF_ENTROPY:
            delta = tl.maximum(delta, floor)
        scale = 1.0 / delta
    if CALIBRATOR == "gmc":
        value = alpha * tl.log(total) + (alpha - 1.0) * top - mean
    elif CALIBRATOR == "mec":
        value = ((alpha - 1.0) * top - mean) * scale
    else:
        value = (alpha - 1.0) * (mean + top) * scale
    return top, inverse, inverse_softened, mean, scale, tl.where(counts, value, 0.0), predicted


@triton.jit
def _sums_kernel(
    logits, counted, partial, tiles, outer_stride, class_stride, inner, tau, alpha, floor,
    C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK: tl.constexpr, CALIBRATOR: tl.constexpr, NORM: tl.constexpr,
    OF_ENTROPY: tl.constexpr, TEMPERED: tl.constexpr, MASKED: tl.constexpr, GROUPED: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """One row of partial sums a program: products with the one-hot predicted class.

    Column C of the sums of p is the number of elements, and of those of z/δ their value.
    """
    c = tl.arange(0, BLOCK_C)[:, None]
    of_p = tl.zeros((BLOCK_C, BLOCK_C), tl.float32)
    of_z = tl.zeros((BLOCK_C, BLOCK_C), tl.float32)
    number = tl.zeros((BLOCK,), tl.float32)
    values = tl.zeros((BLOCK,), tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        outer, element, counts = _tile(counted, tile, inner, BLOCK, MASKED)
        plane = logits + outer * outer_stride + element
        top, inverse, _, _, scale, value, predicted = _elements(
            plane, counts, class_stride, tau, alpha, floor, C, CALIBRATOR, NORM, OF_ENTROPY, TEMPERED
        )
        if GROUPED:
            one_hot = (c == predicted[None, :]) & counts[None, :]
            p = tl.where(c == C, 1.0, 0.0) + tl.zeros((BLOCK_C, BLOCK), tl.float32)
            z = tl.where(c == C, value[None, :], 0.0)
            if CALIBRATOR == "mec":
                read = tl.load(plane[None, :] + c * class_stride, mask=(c < C) & counts[None, :], other=0.0)
                read = read.to(tl.float32) - top[None, :]
                p = tl.where(c < C, tl.exp(read) * inverse[None, :], p)
                z = tl.where(c < C, read * scale[None, :], z)
            # tensor cores multiply halves: two make 22 bits of p, and 16 of z/δ
            p_high = p.to(tl.float16)
            z_high = z.to(HALF)
            of_p = tl.dot(one_hot.to(tl.float16), tl.trans(p_high), of_p)
            of_z = tl.dot(one_hot.to(HALF), tl.trans(z_high), of_z)
            of_z = tl.dot(one_hot.to(HALF), tl.trans((z - z_high.to(tl.float32)).to(HALF)), of_z)
            if CALIBRATOR == "mec":
                p_low = (p - p_high.to(tl.float32)).to(tl.float16)
                of_p = tl.dot(one_hot.to(tl.float16), tl.trans(p_low), of_p)
        else:
            number += tl.where(counts, 1.0, 0.0)
            values += value
    if GROUPED:
        length: tl.constexpr = 2 * C + (2 * C * C if CALIBRATOR == "mec" else 0)
        out = partial + tl.program_id(0) * length
        column = tl.arange(0, BLOCK_C)[None, :]
        tl.store(out + c + column * 0, of_p, mask=(c < C) & (column == C))
        tl.store(out + C + c + column * 0, of_z, mask=(c < C) & (column == C))
        if CALIBRATOR == "mec":
            inside = (c < C) & (column < C)
            tl.store(out + 2 * C + c * C + column, of_p, mask=inside)
            tl.store(out + 2 * C + C * C + c * C + column, of_z, mask=inside)
    else:
        tl.store(partial + 2 * tl.program_id(0), tl.sum(number, 0))
        tl.store(partial + 2 * tl.program_id(0) + 1, tl.sum(values, 0))


@triton.jit
def _gradient_kernel(
    logits, counted, gradient, weights, weighted_rows, to_outer, to_class, to_inner,
    outer_stride, class_stride, inner, tau, alpha, floor,
    C: tl.constexpr, BLOCK: tl.constexpr, CALIBRATOR: tl.constexpr, NORM: tl.constexpr,
    OF_ENTROPY: tl.constexpr, TEMPERED: tl.constexpr, MASKED: tl.constexpr, GROUPED: tl.constexpr,
):  # fmt: skip
    """``weights[k] · marginal-free gradient + weighted_rows[k]/δ`` of one tile."""
    outer, element, counts = _tile(counted, tl.program_id(0), inner, BLOCK, MASKED)
    plane = logits + outer * outer_stride + element
    top, inverse, inverse_softened, mean, scale, _, predicted = _elements(
        plane, counts, class_stride, tau, alpha, floor, C, CALIBRATOR, NORM, OF_ENTROPY, TEMPERED
    )
    scale = tl.where(counts, scale, 0.0)
    weight = tl.load(weights + (predicted if GROUPED else predicted * 0))
    out = gradient + outer * to_outer + element.to(tl.int64) * to_inner
    for c in tl.static_range(C):
        z = tl.load(plane + c * class_stride, mask=counts, other=0.0).to(tl.float32) - top
        p, reward = _reward(z, inverse, inverse_softened, mean, tau, TEMPERED)
        if CALIBRATOR == "mec":
            finished = tl.load(weighted_rows + predicted * C + c) - weight * reward
        elif CALIBRATOR == "self" and OF_ENTROPY:
            finished = weight * p * (alpha - 1.0 - (z - mean))
        else:
            finished = weight * (alpha * p - reward)
        tl.store(out + c * to_class, (finished * scale).to(gradient.dtype.element_ty), mask=element < inner)
