"""The one pass on a GPU in Triton, which torch's GPU builds bring.

Two kernels: :func:`gpu_pass` reads the logits for the sums alone; in backward, when the class marginals are known,
:func:`gpu_gradient` reads them again and writes the finished gradient. Together that is three times the logits' bytes,
the least that marginals of the whole batch allow, and no memory but the gradient's.
Shapes: O outer, C classes, I inner, N = O·I elements. A program takes tiles of ``BLOCK`` elements with all their
classes, padded to a power of two.
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

#: elements of a tile and warps of a program, the fastest of benchmarks/gpu_kernel.py on an H200
_SUMS, _GRADIENT = (64, 2), (64, 1)
#: programs of the sums; each leaves one row of partial sums
_PER_PROCESSOR = 8


def gpu_pass(rows: Tensor, counted: Tensor | None, spec: ObjectiveSpec, grouped: bool) -> Tensor:
    """The flat sums of :func:`dem_apps.fused.one_pass.chunked_pass`; nothing else is written."""
    outer, classes, inner = rows.shape
    size, side = (classes if grouped else 1), (classes if spec.calibrator == "mec" else 0)
    tiles = outer * triton.cdiv(inner, _SUMS[0])
    programs = min(tiles, _PER_PROCESSOR * _processors(rows))
    partial = torch.empty(programs, 2 * size + 2 * side**2, dtype=torch.float32, device=rows.device)
    with torch.cuda.device_of(rows):
        _sums_kernel[(programs,)](
            rows, counted, partial, tiles, **_arguments(rows, spec), MASKED=counted is not None, GROUPED=grouped,
            PRECISION="ieee" if torch.version.hip else "tf32x3", BLOCK=_SUMS[0], num_warps=_SUMS[1],
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
    outer, _, inner = rows.shape
    tiles = outer * triton.cdiv(inner, _GRADIENT[0])
    wide = weights.float().contiguous()
    columns = wide if weighted_rows is None else weighted_rows.float().contiguous()
    with torch.cuda.device_of(rows):
        _gradient_kernel[(tiles,)](
            rows, counted, gradient, wide, columns, *gradient.stride(), **_arguments(rows, spec),
            MASKED=counted is not None, GROUPED=len(weights) > 1,
            BLOCK=_GRADIENT[0], num_warps=_GRADIENT[1],
        )  # fmt: skip


def _processors(rows: Tensor) -> int:
    return torch.cuda.get_device_properties(rows.device).multi_processor_count if rows.is_cuda else 1


def _arguments(rows: Tensor, spec: ObjectiveSpec) -> dict[str, Any]:
    """What both kernels take: shape, strides in elements, and the member of the family."""
    strides = dict(zip(("outer_stride", "class_stride", "inner_stride"), rows.stride(), strict=True))
    return strides | {
        "inner": rows.shape[2], "tau": spec.tau, "alpha": spec.alpha,
        "floor": ENTROPY_DELTA_FLOOR if spec.delta == "entropy" else 0.0,
        "C": rows.shape[1], "BLOCK_C": max(16, triton.next_power_of_2(rows.shape[1])),
        "CALIBRATOR": spec.calibrator, "NORM": spec.norm or "", "OF_ENTROPY": spec.delta == "entropy",
        "TEMPERED": spec.tau != 1.0,
    }  # fmt: skip


@triton.jit
def _tile(
    logits, counted, tile, inner, outer_stride, class_stride, inner_stride,
    C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Tile's logits (BLOCK_C, BLOCK), 0 where none is read; which elements count; where the tile is."""
    per_row = tl.cdiv(inner, BLOCK)
    outer = (tile // per_row).to(tl.int64)
    element = (tile % per_row).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    counts = element < inner
    if MASKED:
        # NaN in a masked element must not reach a sum
        counts = counts & (tl.load(counted + outer * inner + element, mask=counts, other=0) != 0)
    c = tl.arange(0, BLOCK_C)
    place = outer * outer_stride + c[:, None] * class_stride + element[None, :] * inner_stride
    z = tl.load(logits + place, mask=(c < C)[:, None] & counts[None, :], other=0.0).to(tl.float32)
    return z, counts, outer, element


@triton.jit
def _equations(
    z, counts, tau, alpha, floor,
    C: tl.constexpr, BLOCK_C: tl.constexpr, CALIBRATOR: tl.constexpr, NORM: tl.constexpr,
    OF_ENTROPY: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """The chunk pass of :mod:`dem_apps.fused.one_pass`, line by line; elements that do not count have scale 0."""
    c = tl.arange(0, BLOCK_C)[:, None]
    is_class = c < C
    top = tl.max(tl.where(is_class, z, float("-inf")), 0)
    z = tl.where(is_class, z - top[None, :], 0.0)
    p = tl.where(is_class, tl.exp(z), 0.0)
    total = tl.sum(p, 0)
    p = p / total[None, :]
    softened = p
    if TEMPERED:
        softened = tl.where(is_class, tl.exp(z / tau), 0.0)
        softened = softened / tl.sum(softened, 0)[None, :]
    mean = tl.sum(softened * z, 0)
    reward = softened * (z - mean[None, :] + tau) / tau
    scale = tl.where(counts, 1.0, 0.0)
    if NORM != "":
        measured = reward
        if OF_ENTROPY:
            measured = p * (z - mean[None, :])
        if NORM == "l1":
            delta = tl.sum(tl.abs(measured), 0)
        elif NORM == "l2":
            delta = tl.sqrt(tl.sum(measured * measured, 0))
        else:
            delta = tl.max(tl.abs(measured), 0)
        if OF_ENTROPY:
            delta = tl.maximum(delta, floor)
        scale = scale / delta
    if CALIBRATOR == "gmc":
        value = alpha * tl.log(total) + (alpha - 1.0) * top - mean
    elif CALIBRATOR == "mec":
        value = (alpha - 1.0) * top - mean
    else:
        value = (alpha - 1.0) * (mean + top)
    if CALIBRATOR == "mec":
        marginal_free = -reward
    elif CALIBRATOR == "self" and OF_ENTROPY:
        marginal_free = p * (alpha - 1.0 - (z - mean[None, :]))
    else:
        marginal_free = alpha * p - reward
    # the first of the largest, as argmax
    predicted = tl.min(tl.where((z == 0.0) & is_class, c, C - 1), 0)
    return z, p, scale, tl.where(counts, value * scale, 0.0), marginal_free, predicted


@triton.jit
def _sums_kernel(
    logits, counted, partial, tiles, outer_stride, class_stride, inner_stride, inner, tau, alpha, floor,
    C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK: tl.constexpr, CALIBRATOR: tl.constexpr, NORM: tl.constexpr,
    OF_ENTROPY: tl.constexpr, TEMPERED: tl.constexpr, MASKED: tl.constexpr, GROUPED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One row of partial sums a program; sums over elements are products with the one-hot predicted class."""
    c = tl.arange(0, BLOCK_C)
    column = tl.arange(0, 16)
    of_class = tl.zeros((BLOCK_C, 16), tl.float32)  # columns: count, value
    of_p = tl.zeros((BLOCK_C, BLOCK_C), tl.float32)
    of_z = tl.zeros((BLOCK_C, BLOCK_C), tl.float32)
    count = tl.zeros((BLOCK,), tl.float32)
    values = tl.zeros((BLOCK,), tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        z, counts, _, _ = _tile(
            logits, counted, tile, inner, outer_stride, class_stride, inner_stride, C, BLOCK_C, BLOCK, MASKED
        )
        z, p, scale, value, _, predicted = _equations(
            z, counts, tau, alpha, floor, C, BLOCK_C, CALIBRATOR, NORM, OF_ENTROPY, TEMPERED
        )
        if GROUPED:
            one_hot = tl.where((c[:, None] == predicted[None, :]) & counts[None, :], 1.0, 0.0)
            both = tl.where(column[None, :] == 0, 1.0, tl.where(column[None, :] == 1, value[:, None], 0.0))
            of_class = tl.dot(one_hot, both, of_class, input_precision=PRECISION)
            if CALIBRATOR == "mec":
                of_p = tl.dot(one_hot, tl.trans(p), of_p, input_precision=PRECISION)
                of_z = tl.dot(one_hot, tl.trans(z * scale[None, :]), of_z, input_precision=PRECISION)
        else:
            count += tl.where(counts, 1.0, 0.0)
            values += value
    if GROUPED:
        length = 2 * C
        if CALIBRATOR == "mec":
            length = 2 * C + 2 * C * C
        out = partial + tl.program_id(0) * length
        tl.store(out + column[None, :] * C + c[:, None], of_class, mask=(c < C)[:, None] & (column < 2)[None, :])
        if CALIBRATOR == "mec":
            square = c[:, None] * C + c[None, :]
            inside = (c < C)[:, None] & (c < C)[None, :]
            tl.store(out + 2 * C + square, of_p, mask=inside)
            tl.store(out + 2 * C + C * C + square, of_z, mask=inside)
    else:
        tl.store(partial + 2 * tl.program_id(0), tl.sum(count, 0))
        tl.store(partial + 2 * tl.program_id(0) + 1, tl.sum(values, 0))


@triton.jit
def _gradient_kernel(
    logits, counted, gradient, weights, weighted_rows, to_outer, to_class, to_inner,
    outer_stride, class_stride, inner_stride, inner, tau, alpha, floor,
    C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK: tl.constexpr, CALIBRATOR: tl.constexpr, NORM: tl.constexpr,
    OF_ENTROPY: tl.constexpr, TEMPERED: tl.constexpr, MASKED: tl.constexpr, GROUPED: tl.constexpr,
):  # fmt: skip
    """``weights[k] · marginal-free gradient + weighted_rows[k]/δ`` of one tile."""
    c = tl.arange(0, BLOCK_C)
    z, counts, outer, element = _tile(
        logits, counted, tl.program_id(0), inner, outer_stride, class_stride, inner_stride, C, BLOCK_C, BLOCK, MASKED
    )
    _, _, scale, _, marginal_free, predicted = _equations(
        z, counts, tau, alpha, floor, C, BLOCK_C, CALIBRATOR, NORM, OF_ENTROPY, TEMPERED
    )
    finished = marginal_free * tl.load(weights + (predicted if GROUPED else predicted * 0))[None, :]
    if CALIBRATOR == "mec":
        place = predicted[None, :] * C + c[:, None]
        finished += tl.load(weighted_rows + place, mask=(c < C)[:, None] & counts[None, :], other=0.0)
    place = outer * to_outer + c[:, None] * to_class + element[None, :] * to_inner
    inside = (c < C)[:, None] & (element < inner)[None, :]
    tl.store(gradient + place, (finished * scale[None, :]).to(gradient.dtype.element_ty), mask=inside)
