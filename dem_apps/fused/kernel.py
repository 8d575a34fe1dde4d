"""The one pass in C++ (``one_pass.cpp``), called through ctypes; for the CPU, where a compiler was found.

The outputs are described in :mod:`dem_apps.fused.one_pass`. Shapes: O outer, C classes, I inner.
"""

from __future__ import annotations

import ctypes
import importlib.util
from typing import Any

import torch
from torch import Tensor

from dem_apps.entropy import ENTROPY_DELTA_FLOOR, Mask, ObjectiveSpec
from dem_apps.fused.build_kernel import load_kernel

#: The kernel's per-thread tables are C × C and stay in the cache up to about this many classes.
KERNEL_MAX_CLASSES = 256
#: The Triton kernel's tables stay in registers up to this many.
GPU_KERNEL_MAX_CLASSES = 64
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_CALIBRATORS = {"gmc": 0, "mec": 1, "self": 2}
_NORMS = {None: 0, "l1": 1, "l2": 2, "linf": 3}


def supports_kernel(logits: Tensor, num_classes: int) -> bool:
    """Check that a kernel can serve these logits on this machine.

    It is the C++ kernel on a CPU, which the first call builds, or Triton's on a GPU.
    """
    name = _DTYPES.get(logits.dtype)
    if logits.is_cuda and name is not None:
        # the Triton of torch 2.8 and earlier does not compile the kernel
        has_triton = torch.__version__ >= "2.9" and importlib.util.find_spec("triton") is not None
        return has_triton and num_classes <= GPU_KERNEL_MAX_CLASSES
    if name is None or logits.device.type != "cpu" or num_classes > KERNEL_MAX_CLASSES:
        return False
    kernel = load_kernel()
    return kernel is not None and hasattr(kernel, f"pass_{name}")


def kernel_pass(
    rows: Tensor,
    counted: Mask,
    out: tuple[Tensor | None, ...],
    spec: ObjectiveSpec,
    grouped: bool,
) -> Tensor:
    """Run the pass in C++.

    Arguments and result are the same as in :func:`dem_apps.fused.one_pass.chunked_pass`.
    """
    num_classes = rows.shape[1]
    length = 2 * num_classes + (2 * num_classes**2 if spec.calibrator == "mec" else 0)
    sums = torch.empty(length, dtype=torch.float64, device="cpu")
    function = getattr(load_kernel(), f"pass_{_DTYPES[rows.dtype]}")
    function(*_arguments(rows, spec, grouped, counted, *out, sums))
    return sums if grouped else sums[: 2 * num_classes : num_classes]


def kernel_finish(
    rows: Tensor,
    predicted: Tensor,
    inverse_delta: Tensor | None,
    weights: Tensor,
    weighted_rows: Tensor | None,
) -> None:
    """Finish the gradient in C++, in place.

    The arguments are the same as in :func:`dem_apps.fused.one_pass.chunked_finish`.
    """
    weights = weights.float().contiguous()
    weighted_rows = None if weighted_rows is None else weighted_rows.float().contiguous()
    function = getattr(load_kernel(), f"finish_{_DTYPES[rows.dtype]}")
    arrays = (predicted, inverse_delta, weights, weighted_rows)
    function(*_arguments(rows, ObjectiveSpec("gmc"), True, *arrays))


def _arguments(
    rows: Tensor, spec: ObjectiveSpec, grouped: bool, *arrays: Tensor | None
) -> list[Any]:
    """The arguments of a kernel's function: its settings, and the addresses of the rows and of other arrays."""
    shape, strides = tuple(rows.shape), rows.stride()
    settings = pass_settings(shape, strides, spec, grouped, torch.get_num_threads())
    addresses = [0 if array is None else array.data_ptr() for array in (rows, *arrays)]
    return [settings, *map(ctypes.c_void_p, addresses)]


class _Settings(ctypes.Structure):
    """Mirrors ``Settings`` of one_pass.cpp field by field."""

    _fields_ = (
        *[
            (name, ctypes.c_int64)
            for name in (
                "outer",
                "classes",
                "inner",
                "outer_stride",
                "class_stride",
                "inner_stride",
            )
        ],
        *[
            (name, ctypes.c_int32)
            for name in ("calibrator", "norm", "delta_of_entropy", "per_class", "threads")
        ],
        *[(name, ctypes.c_float) for name in ("tau", "alpha", "delta_floor")],
    )


def pass_settings(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    spec: ObjectiveSpec,
    grouped: bool,
    threads: int,
) -> Any:
    """A pointer to the kernel's settings.

    Args:
        shape: the logits' (O, C, I).
        strides: the logits', in elements.
        spec: the member of the family.
        grouped: sum per predicted class.
        threads: the kernel's threads at most.
    """
    settings = _Settings(
        *shape,
        *strides,
        calibrator=_CALIBRATORS[spec.calibrator],
        norm=_NORMS[spec.norm],
        delta_of_entropy=spec.delta == "entropy",
        per_class=grouped,
        threads=threads,
        tau=spec.tau,
        alpha=spec.alpha,
        delta_floor=ENTROPY_DELTA_FLOOR if spec.delta == "entropy" else 0.0,
    )
    return ctypes.byref(settings)
