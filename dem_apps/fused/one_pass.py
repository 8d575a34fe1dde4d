"""Value and gradient of an objective in one pass over the logits, without a copy of them.

The class table enters AdaDEM linearly: everything but MECₖ/δ can be made before the table is known. So one pass
over the logits makes

- the table-free part of each logit's gradient, written where the gradient will be returned,
- each element's predicted class k and 1/δ,
- per predicted class, the count, the sum of the table-free values, and the (C, C) sums of p and of z/δ (with the
  element's maximum taken out of z).

The loss follows from the sums alone, and backward adds MECₖ/δ while it scales the gradient by the class's weight.

Two forms of the same computation: :func:`_chunk_pass` in PyTorch over chunks that stay in the cache (any device
and dtype; compiled on a GPU), and ``one_pass.cpp`` for the CPU. Shapes: O outer, C classes, I inner, N = O·I.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dem_apps.entropy import ENTROPY_DELTA_FLOOR, ObjectiveSpec, computed_in
from dem_apps.fused.build_kernel import load_kernel

#: Not a power of two: rows of a (C, chunk) buffer would then share the same cache sets.
_CPU_CHUNK = 8192 + 16
_GPU_CHUNK = 1 << 20
#: The kernel's per-thread tables are C × C and stay in the cache up to about this many classes.
KERNEL_MAX_CLASSES = 256
_KERNEL_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_CALIBRATORS = {"gmc": 0, "mec": 1, "self": 2}
_NORMS = {None: 0, "l1": 1, "l2": 2, "linf": 3}


@dataclass
class PassResult:
    """What one pass makes. G is C where elements are grouped by predicted class, else 1; sums are float64."""

    counts: Tensor  # (G,)
    values: Tensor  # (G,) sums of the table-free values
    probabilities: Tensor  # (C, C) sums of p; (0, 0) without a table
    scaled_logits: Tensor  # (C, C) sums of (z − max z)/δ; (0, 0) without a table
    gradient: Tensor | None  # like the logits, not yet weighted
    predicted: Tensor | None  # (O, I) int32, where grouped
    inverse_delta: Tensor | None  # (O, I), with a table only


def supports_kernel(logits: Tensor, num_classes: int) -> bool:
    """Whether the C++ kernel can serve these logits on this machine (the first call builds it)."""
    name = _KERNEL_DTYPES.get(logits.dtype)
    if name is None or logits.device.type != "cpu" or num_classes > KERNEL_MAX_CLASSES:
        return False
    kernel = load_kernel()
    return kernel is not None and hasattr(kernel, f"pass_{name}")


def one_pass(
    logits: Tensor,
    dim: int,
    mask: Tensor | None,
    terms: ObjectiveSpec,
    per_class: bool,
    compiled: bool,
    with_gradient: bool,
) -> PassResult:
    """Go over the logits once.

    Args:
        logits: any floating dtype, classes on ``dim``; copied only where their memory is not dense.
        dim: the class dimension, not negative.
        mask: boolean, the logits' shape without ``dim``; False elements are left out of every sum.
        terms: the member of the family.
        per_class: group counts and values by predicted class (always so with a table).
        compiled: the C++ kernel (CPU) or the compiled chunk function (GPU) instead of plain PyTorch.
        with_gradient: make the gradient as well.
    """
    num_classes = logits.shape[dim]
    logits = logits.detach()
    if not (logits.is_contiguous() or logits.movedim(dim, -1).is_contiguous()):
        logits = logits.contiguous()
    rows = _rows(logits, dim)
    elements = (rows.shape[0], rows.shape[2])
    has_table = terms.calibrator == "mec"
    grouped = per_class or has_table
    wide = computed_in(logits.dtype)
    gradient = torch.empty_like(logits) if with_gradient else None
    predicted = logits.new_empty(elements, dtype=torch.int32) if grouped and with_gradient else None
    inverse_delta = logits.new_empty(elements, dtype=wide) if has_table and with_gradient else None
    counted = None if mask is None else mask.contiguous().view(elements)
    out = [None if gradient is None else _rows(gradient, dim), predicted, inverse_delta]
    run = _kernel_pass if compiled and logits.device.type == "cpu" else _chunked_pass
    chunk_pass = _compiled_chunk_pass() if compiled and run is _chunked_pass else _chunk_pass
    # inside autocast the sums' matrix products would be made, and overflow, in half precision
    with torch.autocast(rows.device.type, enabled=False):
        sums = run(rows, counted, out, terms, grouped, chunk_pass)
    size = num_classes if grouped else 1
    side = num_classes if has_table else 0
    return PassResult(
        counts=sums[:size],
        values=sums[size : 2 * size],
        probabilities=sums[2 * size : 2 * size + side**2].view(side, side),
        scaled_logits=sums[2 * size + side**2 :].view(side, side),
        gradient=gradient,
        predicted=predicted,
        inverse_delta=inverse_delta,
    )


def finish_gradient(
    result: PassResult, dim: int, weights: Tensor, weighted_rows: Tensor | None, compiled: bool
) -> Tensor:
    """Weight the gradient by class and add the table's part, in place.

    Args:
        result: of :func:`one_pass` with a gradient, used up by this call.
        dim: the class dimension of the logits.
        weights: (G,) weight of an element by its predicted class, times the incoming gradient.
        weighted_rows: (C, C) ``weights[k] · α · MECₖ``, with a table only.
        compiled: as for :func:`one_pass`.
    """
    assert result.gradient is not None  # the caller asked for one
    if result.predicted is None:
        # a float32 factor, since 1/N may be too small for half precision
        factor = weights.to(computed_in(result.gradient.dtype))
        return torch.mul(result.gradient, factor, out=result.gradient)
    rows = _rows(result.gradient, dim)
    if compiled and rows.device.type == "cpu":
        _kernel_finish(rows, result, weights, weighted_rows)
        return result.gradient
    wide = computed_in(rows.dtype)
    weights = weights.to(wide)
    columns = None if weighted_rows is None else weighted_rows.to(wide).t().contiguous()
    for o, start, stop in _chunks(rows):
        k = result.predicted[o, start:stop].long()
        part = rows[o, :, start:stop]
        finished = part * weights[k]
        if columns is not None and result.inverse_delta is not None:
            finished += columns[:, k] * result.inverse_delta[o, start:stop]
        part.copy_(finished)
    return result.gradient


def _rows(tensor: Tensor, dim: int) -> Tensor:
    """A view (O, C, I) of a dense tensor with the classes in the middle, elements in their original order."""
    moved = tensor.movedim(dim, -1)
    if moved.is_contiguous():
        return moved.view(-1, tensor.shape[dim]).t().unsqueeze(0)
    return tensor.view(math.prod(tensor.shape[:dim]), tensor.shape[dim], -1)


def _chunks(rows: Tensor) -> list[tuple[int, int, int]]:
    size = _GPU_CHUNK if rows.is_cuda else _CPU_CHUNK
    inner = rows.shape[2]
    return [(o, start, min(start + size, inner)) for o in range(rows.shape[0]) for start in range(0, inner, size)]


def _chunked_pass(
    rows: Tensor,
    counted: Tensor | None,
    out: list[Tensor | None],
    terms: ObjectiveSpec,
    grouped: bool,
    chunk_pass: Callable[..., Tensor],
) -> Tensor:
    """Run the PyTorch form over chunks; returns the sums in the order of :class:`PassResult`, flattened."""
    num_classes = rows.shape[1]
    size = num_classes if grouped else 1
    length = 2 * size + (2 * num_classes**2 if terms.calibrator == "mec" else 0)
    sums = torch.zeros(length, dtype=torch.float64, device=rows.device)
    gradient, predicted, inverse_delta = out
    for o, start, stop in _chunks(rows):
        sums += chunk_pass(
            rows[o, :, start:stop],
            None if counted is None else counted[o, start:stop],
            None if gradient is None else gradient[o, :, start:stop],
            None if predicted is None else predicted[o, start:stop],
            None if inverse_delta is None else inverse_delta[o, start:stop],
            terms,
            grouped,
        )
    return sums


def _chunk_pass(
    logits_cn: Tensor,
    counted_n: Tensor | None,
    gradient_cn: Tensor | None,
    predicted_n: Tensor | None,
    inverse_delta_n: Tensor | None,
    terms: ObjectiveSpec,
    grouped: bool,
) -> Tensor:
    """The PyTorch form on one chunk: writes the three outputs, returns the flat float64 sums."""
    z = logits_cn.to(computed_in(logits_cn.dtype))
    if counted_n is not None:
        # whatever stands at a masked element, NaN included, must not reach a sum
        z = torch.where(counted_n, z, 0.0)
    top = z.amax(0)
    z = z - top
    p = z.exp()
    total = p.sum(0)
    p = p / total
    softened = p if terms.tau == 1.0 else (z / terms.tau).softmax(0)
    mean = (softened * z).sum(0)
    reward = softened * (z - mean + terms.tau) / terms.tau
    scale = torch.ones_like(mean) if terms.norm is None else 1.0 / _delta(reward, p * (z - mean), terms)
    if terms.calibrator == "gmc":
        value = -mean + terms.alpha * total.log() + (terms.alpha - 1.0) * top
    elif terms.calibrator == "mec":
        value = scale * ((terms.alpha - 1.0) * top - mean)
    else:
        value = scale * (terms.alpha - 1.0) * (mean + top)
    if counted_n is not None:
        scale = torch.where(counted_n, scale, 0.0)
        value = torch.where(counted_n, value, 0.0)
    if gradient_cn is not None:
        table_free = -reward if terms.calibrator == "mec" else terms.alpha * p - reward
        gradient_cn.copy_(table_free * scale)
    if inverse_delta_n is not None:
        inverse_delta_n.copy_(scale)
    if not grouped:
        count = torch.full_like(value.sum(), value.numel()) if counted_n is None else counted_n.sum()
        return torch.stack([count.double(), value.sum(dtype=torch.float64)])
    classes = torch.arange(z.shape[0], dtype=torch.int32, device=z.device).unsqueeze(1)
    # the first of the largest, as argmax has it
    predicted = torch.where(z == 0, classes, z.shape[0] - 1).amin(0)
    if predicted_n is not None:
        predicted_n.copy_(predicted)
    one_hot = classes == predicted
    if counted_n is not None:
        one_hot = one_hot & counted_n
    one_hot = one_hot.to(z.dtype)
    sums = [one_hot.sum(1), one_hot @ value]
    if terms.calibrator == "mec":
        sums += [(one_hot @ p.t()).flatten(), ((one_hot * scale) @ z.t()).flatten()]
    return torch.cat(sums).double()


def _delta(reward: Tensor, entropy_reward: Tensor, terms: ObjectiveSpec) -> Tensor:
    measured = entropy_reward if terms.delta == "entropy" else reward
    if terms.norm == "l1":
        delta = measured.abs().sum(0)
    elif terms.norm == "l2":
        delta = measured.square().sum(0).sqrt()
    else:
        delta = measured.abs().amax(0)
    return delta.clamp_min(ENTROPY_DELTA_FLOOR) if terms.delta == "entropy" else delta


@functools.cache
def _compiled_chunk_pass() -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = torch.compile(_chunk_pass, dynamic=True)
    return compiled


class _Settings(ctypes.Structure):
    """Mirrors ``Settings`` of one_pass.cpp field by field."""

    _fields_ = (
        *[(name, ctypes.c_int64) for name in ("outer", "classes", "inner")],
        *[(name, ctypes.c_int64) for name in ("outer_stride", "class_stride", "inner_stride")],
        *[(name, ctypes.c_int32) for name in ("calibrator", "norm", "delta_of_entropy", "per_class", "threads")],
        *[(name, ctypes.c_float) for name in ("tau", "alpha", "delta_floor")],
    )


def _settings(rows: Tensor, terms: ObjectiveSpec, grouped: bool) -> _Settings:
    outer_stride, class_stride, inner_stride = rows.stride()
    return _Settings(
        outer=rows.shape[0],
        classes=rows.shape[1],
        inner=rows.shape[2],
        outer_stride=outer_stride,
        class_stride=class_stride,
        inner_stride=inner_stride,
        calibrator=_CALIBRATORS[terms.calibrator],
        norm=_NORMS[terms.norm],
        delta_of_entropy=terms.delta == "entropy",
        per_class=grouped,
        threads=torch.get_num_threads(),
        tau=terms.tau,
        alpha=terms.alpha,
        delta_floor=ENTROPY_DELTA_FLOOR if terms.delta == "entropy" else 0.0,
    )


def _kernel_pass(
    rows: Tensor,
    counted: Tensor | None,
    out: list[Tensor | None],
    terms: ObjectiveSpec,
    grouped: bool,
    _chunk_pass: Callable[..., Tensor],
) -> Tensor:
    """The C++ form; same arguments and result as :func:`_chunked_pass`."""
    num_classes = rows.shape[1]
    length = 2 * num_classes + (2 * num_classes**2 if terms.calibrator == "mec" else 0)
    sums = torch.empty(length, dtype=torch.float64)
    function = getattr(load_kernel(), f"pass_{_KERNEL_DTYPES[rows.dtype]}")
    settings = _settings(rows, terms, grouped)
    function(ctypes.byref(settings), *map(_pointer, [rows, counted, *out, sums]))
    return sums if grouped else sums[: 2 * num_classes : num_classes]


def _kernel_finish(rows: Tensor, result: PassResult, weights: Tensor, weighted_rows: Tensor | None) -> None:
    function = getattr(load_kernel(), f"finish_{_KERNEL_DTYPES[rows.dtype]}")
    settings = _settings(rows, ObjectiveSpec("gmc"), True)
    weights = weights.float().contiguous()
    weighted_rows = None if weighted_rows is None else weighted_rows.float().contiguous()
    parts = [rows, result.predicted, result.inverse_delta, weights, weighted_rows]
    function(ctypes.byref(settings), *map(_pointer, parts))


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())
