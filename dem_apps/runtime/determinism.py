"""``--deterministic``: for the time of a training torch may only use operations that repeat bit for bit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dem_apps.errors import InputError

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_FIXED_WORKSPACES = (":4096:8", ":16:8")
_NO_SUCH_OPERATION = " does not have a deterministic implementation"


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Within it ``torch.use_deterministic_algorithms`` is on, cuDNN's search for the fastest convolution off.

    cuBLAS gets a workspace of fixed size, and keeps it. Without ``wanted`` nothing is changed. torch's settings are
    put back at the end.

    Raises:
        InputError: CUDA has started without a fixed workspace, or an operation has no deterministic implementation.
    """
    if not wanted:
        yield
        return
    _fix_cublas_workspace()
    before = torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    except RuntimeError as error:
        operation, found, _ = str(error).partition(_NO_SUCH_OPERATION)
        if not found:
            raise
        raise InputError(
            f"--deterministic: torch has no deterministic form of {operation.split()[-1]} on this device; leave the "
            "flag out, or train with --device cpu"
        ) from error
    finally:
        torch.set_deterministic_debug_mode(before[0])
        torch.backends.cudnn.benchmark = before[1]


def _fix_cublas_workspace() -> None:
    """cuBLAS reads the variable when CUDA starts: later it would be set and do nothing."""
    if os.environ.get(_CUBLAS) in _FIXED_WORKSPACES:
        return
    if torch.cuda.is_initialized():
        raise InputError(
            f"--deterministic: CUDA has started in this process already; set {_CUBLAS}={_FIXED_WORKSPACES[0]} in the "
            "environment before"
        )
    os.environ[_CUBLAS] = _FIXED_WORKSPACES[0]
