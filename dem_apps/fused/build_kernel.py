"""Builds a C++ file once per machine and loads it; without a C++ compiler there is no kernel.

The build takes a few seconds and is kept in the cache folder. Its name depends on the source, the compiler, its flags
and the processor, so several machines can share a home.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from dem_apps.errors import NotWritten
from dem_apps.runtime.device import processor
from dem_apps.runtime.files import cache_dir, whole_file

#: The one pass over an objective's logits, :mod:`dem_apps.fused.kernel`.
ONE_PASS = Path(__file__).with_name("one_pass.cpp")
# Not -ffast-math: it assumes that there is no NaN, and switches denormal numbers off for the whole process.
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fopenmp",
    "-shared",
    "-fPIC",
)

_log = logging.getLogger(__name__)


@functools.cache
def load_kernel(source: Path = ONE_PASS) -> ctypes.CDLL | None:
    """The library of a C++ file with a C interface, or None where it cannot be built; the reason is logged once."""
    compilers = (shutil.which(name) for name in ("g++", "clang++", "c++"))
    compiler = os.environ.get("CXX") or next(filter(None, compilers), None)
    if compiler is None:
        _log.info("no C++ compiler found: %s is not used, PyTorch computes the same", source.name)
        return None
    try:
        return ctypes.CDLL(str(_built(source, compiler)))
    except (OSError, subprocess.SubprocessError, NotWritten) as error:
        reason = getattr(error, "stderr", None) or error  # what the compiler said
        _log.warning(
            "the kernel %s could not be built, and PyTorch is used instead: %.500s",
            source.name,
            reason,
        )
    return None


def address(array: np.ndarray) -> int:
    """The address of an array's memory."""
    # three times as fast as numpy's own, which on a minibatch of PPO takes as long as the kernel
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # read-only, in another order, or empty
        begin: int = array.__array_interface__["data"][0]
        return begin


def _built(source: Path, compiler: str) -> Path:
    identity = "\n".join([source.read_text(), compiler, *_FLAGS, repr(processor())])
    name = f"{source.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.so"
    folder = cache_dir() / "kernels"
    if (folder / name).is_file():
        return folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a read-only home: build for this process alone
        folder = Path(tempfile.mkdtemp(prefix="dem-apps-"))
    with whole_file(folder / name) as library:  # no process loads half a file
        command = [*compiler.split(), *_FLAGS, str(source), "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return folder / name
