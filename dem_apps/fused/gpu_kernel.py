"""The one pass on a GPU in Triton, which torch's GPU builds bring.

Two kernels: :func:`gpu_pass` reads the logits for the sums alone; in backward, when the class marginals are known,
:func:`gpu_gradient` reads them again and writes the finished gradient. Together that is three times the logits' bytes,
the least that marginals of the whole batch allow, and no memory but the gradient's.
Shapes: O outer, C classes, I inner, N = O·I elements. A program takes tiles of ``BLOCK`` elements; a thread has all
classes of its elements in registers, as tuples of C columns (BLOCK,).
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
# mypy: disable-error-code="assignment"

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from dem_apps.entropy import ENTROPY_DELTA_FLOOR, Mask, ObjectiveSpec
from dem_apps.reduction import sums_in

#: elements of a tile, warps of a program and stages of its loop, the fastest of benchmarks/gpu_kernel.py on an H200
_SUMS, _GRADIENT = (64, 1, 3), (128, 2, 1)
#: the same of both for more classes than these, of which a thread's registers hold one element instead of two
_MANY, _FEW_CLASSES = (128, 4, 1), 32
#: programs of the sums; each leaves one row of partial sums
_PER_PROCESSOR = 8


def gpu_pass(rows: Tensor, counted: Mask, spec: ObjectiveSpec, grouped: bool) -> Tensor:
    """Sum over the logits; nothing but the sums is written.

    Returns:
        the flat sums of :func:`dem_apps.fused.one_pass.chunked_pass`.
    """
    outer, classes, inner = rows.shape
    size, side = (classes if grouped else 1), (classes if spec.calibrator == "mec" else 0)
    block, warps, stages = _SUMS if classes <= _FEW_CLASSES else _MANY
    tiles = outer * triton.cdiv(inner, block)
    programs = min(tiles, _PER_PROCESSOR * _processors(rows.device))
    partial = torch.empty(programs, 2 * size + 2 * side**2, dtype=torch.float32, device=rows.device)
    with torch.cuda.device_of(rows):
        _sums_kernel[(programs,)](
            rows,
            counted,
            partial,
            tiles,
            *rows.stride(),
            **_arguments(rows, spec),
            MASKED=counted is not None,
            GROUPED=grouped,
            BLOCK=block,
            num_warps=warps,
            num_stages=stages,
        )
    return partial.sum(0, dtype=sums_in(rows))


def gpu_gradient(
    rows: Tensor,
    counted: Mask,
    gradient: Tensor,
    spec: ObjectiveSpec,
    weights: Tensor,
    weighted_rows: Tensor | None,
) -> None:
    """Write the weighted gradient (O, C, I).

    ``weights`` (G,) and ``weighted_rows`` (C, C) are arguments of FusedPass.finish.
    """
    outer, classes, inner = rows.shape
    block, warps, stages = _GRADIENT if classes <= _FEW_CLASSES else _MANY
    wide = weights.float().contiguous()
    columns = wide if weighted_rows is None else weighted_rows.float().contiguous()
    with torch.cuda.device_of(rows):
        _gradient_kernel[(outer * triton.cdiv(inner, block),)](
            rows,
            counted,
            gradient,
            wide,
            columns,
            *gradient.stride(),
            *rows.stride(),
            **_arguments(rows, spec),
            MASKED=counted is not None,
            GROUPED=len(weights) > 1,
            CLASSES_LAST=gradient.stride(1) == 1,
            BLOCK=block,
            num_warps=warps,
            num_stages=stages,
        )


@cache
def _processors(device: torch.device) -> int:
    return (
        torch.cuda.get_device_properties(device).multi_processor_count
        if device.type == "cuda"
        else 1
    )


@cache
def _takes_ptx(device: torch.device) -> bool:
    """Not Triton's interpreter, nor AMD's GPUs, nor NVIDIA's without bfloat16 (before 8.0)."""
    compiled = isinstance(_sums_kernel, triton.JITFunction) and not torch.version.hip
    return compiled and torch.cuda.get_device_capability(device) >= (8, 0)


def _arguments(rows: Tensor, spec: ObjectiveSpec) -> dict[str, Any]:
    """Return the arguments of both kernels besides the strides in elements.

    They are the shape and the member of the family.
    """
    return {
        "inner": rows.shape[2],
        "tau": spec.tau,
        "alpha": spec.alpha,
        "floor": ENTROPY_DELTA_FLOOR if spec.delta == "entropy" else 0.0,
        "C": rows.shape[1],
        "BLOCK_C": max(16, triton.next_power_of_2(rows.shape[1])),
        "CALIBRATOR": spec.calibrator,
        "NORM": spec.norm or "",
        "OF_ENTROPY": spec.delta == "entropy",
        "TEMPERED": spec.tau != 1.0,
        "PTX": _takes_ptx(rows.device),
    }


@triton.jit
def _side_by_side(columns, first: constexpr, step: constexpr, BLOCK: constexpr, N: constexpr):
    """Join N of the columns to a table (BLOCK, N).

    The columns are ``first``, ``first + step``, …. A thread has one row, so nothing is moved.
    """
    if N == 2:
        table = tl.join(columns[first], columns[first + step])
    else:
        even = _side_by_side(columns, first, 2 * step, BLOCK, N // 2)
        odd = _side_by_side(columns, first + step, 2 * step, BLOCK, N // 2)
        table = tl.join(even, odd).reshape(BLOCK, N)
    return table


@triton.jit
def _exp(z, PTX: constexpr):
    """e^z; in PTX without the handling of results below 1e-38."""
    if PTX:
        e = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [z * 1.4426950408889634], tl.float32, True, 1
        )
    else:
        e = tl.exp(z)
    return e


@triton.jit
def _add(sums, one_hot, x, PTX: constexpr):
    """Add x (BLOCK, columns) to ``sums`` (classes, columns), per class of the elements.

    In PTX x is split in two bfloat16 for the tensor cores, together 16 bits.
    """
    if PTX:
        high, low = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 first, second;
            cvt.rn.bf16x2.f32 $0, $3, $2;
            shl.b32 first, $0, 16;
            and.b32 second, $0, 0xffff0000;
            sub.f32 first, $2, first;
            sub.f32 second, $3, second;
            cvt.rn.bf16x2.f32 $1, second, first;
            }
            """,
            "=r,=r,r,r",
            [x],
            (tl.bfloat16, tl.bfloat16),
            False,
            2,
        )
        sums = tl.dot(one_hot, low, tl.dot(one_hot, high, sums))
    else:
        sums = tl.dot(one_hot, x, sums, input_precision="ieee")
    return sums


@triton.jit
def _read(
    logits,
    counted,
    tile,
    inner,
    outer_stride,
    class_stride,
    inner_stride,
    C: constexpr,
    BLOCK: constexpr,
    MASKED: constexpr,
):
    """Read a tile.

    Returns:
        its logits, 0 where none is read; which elements count; where the tile is.
    """
    per_row = tl.cdiv(inner, BLOCK)
    outer = (tile // per_row).to(tl.int64)
    element = (tile % per_row) * BLOCK + tl.arange(0, BLOCK)
    counts = element < inner
    if MASKED:
        # NaN in a masked element must not reach a sum
        counts = counts & (tl.load(counted + outer * inner + element, mask=counts, other=0) != 0)
    z = ()
    plane = logits + outer * outer_stride + element.to(tl.int64) * inner_stride
    for _c in tl.static_range(C):
        z += (tl.load(plane, mask=counts, other=0.0).to(tl.float32),)
        plane += class_stride  # a product could overflow 32 bits
    return z, counts, outer, element


@triton.jit
def _norm(columns, C: constexpr, NORM: constexpr):
    """The norm of C columns in each element; 0 without a norm."""
    norm = tl.zeros(columns[0].shape, tl.float32)
    for c in tl.static_range(C):
        if NORM == "l1":
            norm += tl.abs(columns[c])
        elif NORM == "l2":
            norm += columns[c] * columns[c]
        elif NORM == "linf":
            norm = tl.maximum(norm, tl.abs(columns[c]))
    if NORM == "l2":
        norm = tl.sqrt(norm)
    return norm


@triton.jit
def _one_hot(predicted, C: constexpr, BLOCK_C: constexpr, BLOCK: constexpr, PTX: constexpr):
    """Return (BLOCK_C, BLOCK), 1 at each element's class and 0 elsewhere.

    An element of class -1 has zeros alone.
    """
    zero = tl.zeros((BLOCK,), tl.float32)
    hot = ()
    for c in tl.static_range(BLOCK_C):
        hot += (tl.where(predicted == c, 1.0, 0.0) if c < C else zero,)
    one_hot = _side_by_side(hot, 0, 1, BLOCK, BLOCK_C)
    if PTX:
        # volatile, which hides the joins: for their sake Triton would choose an operand layout that moves
        # registers before each product
        narrow: constexpr = "cvt.rn.bf16x2.f32 $0, $2, $1;"
        one_hot = tl.inline_asm_elementwise(narrow, "=r,r,r", [one_hot], tl.bfloat16, False, 2)
    return tl.trans(one_hot)


@triton.jit
def _store_sums(
    partial,
    sums,
    C: constexpr,
    BLOCK_C: constexpr,
    USED: constexpr,
    WIDE: constexpr,
    GROUPS: constexpr,
):
    """Store counts and values (C,), then the two (C, C) tables.

    They come from GROUPS sums of WIDE columns each.
    """
    out = partial + tl.program_id(0) * (USED * C)
    c = tl.arange(0, BLOCK_C)[:, None]
    for g in tl.static_range(GROUPS):
        column = g * WIDE + tl.arange(0, WIDE)[None, :]
        square = column - 2
        in_table = 2 * C + square // C * (C * C) + c * C + square % C
        place = tl.where(column < 2, column * C + c, in_table)
        tl.store(out + place, sums[g], mask=(c < C) & (column < USED))


@triton.jit
def _equations(
    logits,
    tau,
    alpha,
    floor,
    C: constexpr,
    CALIBRATOR: constexpr,
    NORM: constexpr,
    OF_ENTROPY: constexpr,
    TEMPERED: constexpr,
    PTX: constexpr,
):
    """Compute the chunk pass of :mod:`dem_apps.fused.one_pass`.

    p and R are without their divisors; the inverses of the divisors are returned, too.
    """
    top = logits[0]
    predicted = tl.zeros(top.shape, tl.int32)
    for c in tl.static_range(1, C):
        predicted = tl.where(logits[c] > top, c, predicted)  # the first of the largest, as argmax
        top = tl.maximum(top, logits[c])
    z, p, softened = (), (), ()
    zero = tl.zeros(top.shape, tl.float32)
    total, softened_total, mean = zero, zero, zero
    for c in tl.static_range(C):
        z += (logits[c] - top,)
        p += (_exp(z[c], PTX),)
        softened += (_exp(z[c] / tau, PTX) if TEMPERED else p[c],)
        total += p[c]
        softened_total += softened[c]
        mean += softened[c] * z[c]
    inverse = 1.0 / softened_total
    mean = mean * inverse
    reward, measured = (), ()
    for c in tl.static_range(C):
        reward += (softened[c] * (z[c] - (mean - tau)),)
        measured += (p[c] * (z[c] - mean) if OF_ENTROPY else reward[c],)
    delta = _norm(measured, C, NORM)
    scale = zero + 1.0
    if NORM != "":
        scale = (
            1.0 / tl.maximum(delta / total, floor) if OF_ENTROPY else softened_total * tau / delta
        )
    if CALIBRATOR == "gmc":
        value = alpha * tl.log(total) + (alpha - 1.0) * top - mean
    elif CALIBRATOR == "mec":
        value = (alpha - 1.0) * top - mean
    else:
        value = (alpha - 1.0) * (mean + top)
    return z, p, 1.0 / total, reward, inverse / tau, mean, scale, value * scale, predicted


@triton.jit
def _sums_kernel(
    logits,
    counted,
    partial,
    tiles,
    outer_stride,
    class_stride,
    inner_stride,
    inner,
    tau,
    alpha,
    floor,
    C: constexpr,
    BLOCK_C: constexpr,
    BLOCK: constexpr,
    CALIBRATOR: constexpr,
    NORM: constexpr,
    OF_ENTROPY: constexpr,
    TEMPERED: constexpr,
    MASKED: constexpr,
    GROUPED: constexpr,
    PTX: constexpr,
):
    """One row of partial sums a program: products with the one-hot predicted class, of ``WIDE`` columns each."""
    USED: constexpr = 2 * C + 2 if CALIBRATOR == "mec" else 2  # 1, the value, p, z/δ
    WIDE: constexpr = 8 if PTX else 16
    GROUPS: constexpr = (USED + WIDE - 1) // WIDE if GROUPED else 0
    sums = ()
    for _g in tl.static_range(GROUPS):
        sums += (tl.zeros((BLOCK_C, WIDE), tl.float32),)
    zero = tl.zeros((BLOCK,), tl.float32)
    count, values = zero, zero
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        read, counts, _outer, _element = _read(
            logits, counted, tile, inner, outer_stride, class_stride, inner_stride, C, BLOCK, MASKED
        )
        z, p, of_p, _reward, _of_reward, _mean, scale, value, predicted = _equations(
            read, tau, alpha, floor, C, CALIBRATOR, NORM, OF_ENTROPY, TEMPERED, PTX
        )
        value = tl.where(counts, value, 0.0)
        if GROUPED:
            predicted = tl.where(counts, predicted, -1)
            one_hot = _one_hot(predicted, C, BLOCK_C, BLOCK, PTX)
            columns = (zero + 1.0, value)
            if CALIBRATOR == "mec":
                scaled = ()
                for c in tl.static_range(C):
                    columns += (p[c] * of_p,)
                    scaled += (z[c] * scale,)
                columns += scaled
            for _c in tl.static_range(GROUPS * WIDE - USED):
                columns += (zero,)
            added = ()
            for g in tl.static_range(GROUPS):
                added += (
                    _add(sums[g], one_hot, _side_by_side(columns, g * WIDE, 1, BLOCK, WIDE), PTX),
                )
            sums = added
        else:
            count += tl.where(counts, 1.0, 0.0)
            values += value
    if GROUPED:
        _store_sums(partial, sums, C, BLOCK_C, USED, WIDE, GROUPS)
    else:
        tl.store(partial + 2 * tl.program_id(0), tl.sum(count, 0))
        tl.store(partial + 2 * tl.program_id(0) + 1, tl.sum(values, 0))


@triton.jit
def _gradient_kernel(
    logits,
    counted,
    gradient,
    weights,
    weighted_rows,
    to_outer,
    to_class,
    to_inner,
    outer_stride,
    class_stride,
    inner_stride,
    inner,
    tau,
    alpha,
    floor,
    C: constexpr,
    BLOCK_C: constexpr,
    BLOCK: constexpr,
    CALIBRATOR: constexpr,
    NORM: constexpr,
    OF_ENTROPY: constexpr,
    TEMPERED: constexpr,
    MASKED: constexpr,
    GROUPED: constexpr,
    CLASSES_LAST: constexpr,
    PTX: constexpr,
):
    """``weights[k] · marginal-free gradient + weighted_rows[k]/δ`` of one tile."""
    read, counts, outer, element = _read(
        logits,
        counted,
        tl.program_id(0),
        inner,
        outer_stride,
        class_stride,
        inner_stride,
        C,
        BLOCK,
        MASKED,
    )
    z, p, of_p, reward, of_reward, mean, scale, _value, predicted = _equations(
        read, tau, alpha, floor, C, CALIBRATOR, NORM, OF_ENTROPY, TEMPERED, PTX
    )
    scale = tl.where(counts, scale, 0.0)
    weight = tl.load(weights + (predicted if GROUPED else predicted * 0)) * scale
    of_p *= weight
    of_reward *= weight
    row = weighted_rows + predicted * C
    finished = ()
    for c in tl.static_range(C):
        if CALIBRATOR == "mec":
            finished += (tl.load(row + c) * scale - of_reward * reward[c],)
        elif CALIBRATOR == "self" and OF_ENTROPY:
            # α p − R without near equals, whose difference 1/δ magnifies
            finished += (of_p * p[c] * (alpha - 1.0 - (z[c] - mean)),)
        else:
            finished += (of_p * alpha * p[c] - of_reward * reward[c],)
    out = gradient + outer * to_outer
    element = element.to(tl.int64)
    if CLASSES_LAST:
        for _c in tl.static_range(BLOCK_C - C):
            finished += (scale,)
        c = tl.arange(0, BLOCK_C)[None, :]
        table = _side_by_side(finished, 0, 1, BLOCK, BLOCK_C).to(gradient.dtype.element_ty)
        tl.store(
            out + element[:, None] * to_inner + c, table, mask=(c < C) & (element < inner)[:, None]
        )
    else:
        out += element * to_inner
        for c in tl.static_range(C):
            tl.store(out, finished[c].to(gradient.dtype.element_ty), mask=element < inner)
            out += to_class
