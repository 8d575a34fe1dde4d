"""A chain of linear layers with its gradient in C++ (``mlp.cpp``), where a compiler was found."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from dem_apps.fused.build_kernel import address, load_kernel

_SOURCE = Path(__file__).with_name("mlp.cpp")
_POINTER, _NUMBER, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_ARGUMENTS = {
    "mlp_forward": (_POINTER, _NUMBER, _NUMBER, _POINTER, _POINTER, _NUMBER, _POINTER, _POINTER),
    "mlp_backward": (_POINTER, _NUMBER, _NUMBER, _POINTER, _POINTER, _POINTER, _NUMBER, _POINTER, _POINTER),
    "ppo_loss": (*(_NUMBER,) * 2, *(_POINTER,) * 7, _NUMBER, *(_REAL,) * 3, *(_POINTER,) * 6),
    "adam_step": (_NUMBER, *(_POINTER,) * 4, *(_REAL,) * 6),
}


def load_mlp_kernel() -> ctypes.CDLL | None:
    """The library, built by the first call on a machine; None where it cannot be."""
    kernel = load_kernel(_SOURCE)
    if kernel is not None:
        for name, arguments in _ARGUMENTS.items():
            function = getattr(kernel, name)
            function.argtypes, function.restype = arguments, None
    return kernel


class KernelChain:
    """As :class:`rl.fast.numpy_mlp.Chain`.

    Args:
        kernel: of :func:`load_mlp_kernel`.
        is_tanh: whether the activation is tanh; else it is ReLU.
        widths: D, those of the hidden layers, and that of the outputs.
        weights: flat float32: per layer (out, in) and (out,).
        gradient: likewise.
    """

    def __init__(
        self, kernel: ctypes.CDLL, is_tanh: bool, widths: Sequence[int], weights: Tensor, gradient: Tensor
    ) -> None:
        self._kernel, self._is_tanh = kernel, is_tanh
        self._widths, self._layers = np.array(widths, np.int64), len(widths) - 1
        self._tensors = weights, gradient  # whose memory is pointed to
        self._units, self._out = sum(widths[1:-1]), widths[-1]
        self._shape = address(self._widths), self._layers, int(is_tanh), weights.data_ptr()
        self._gradient = gradient.data_ptr()
        self._inputs, self._hidden = np.empty((0, widths[0]), np.float32), np.empty(0, np.float32)
        self._at_inputs, self._at_hidden = address(self._inputs), address(self._hidden)

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """The outputs (B, out) for inputs (B, D) float32; what :meth:`backward` needs is kept."""
        self._inputs = np.ascontiguousarray(inputs)
        self._at_inputs = address(self._inputs)
        rows = len(inputs)
        needed = rows * self._units
        if len(self._hidden) < needed:
            self._hidden = np.empty(needed, np.float32)
            self._at_hidden = address(self._hidden)
        outputs = np.empty((rows, self._out), np.float32)
        self._kernel.mlp_forward(*self._shape, self._at_inputs, rows, self._at_hidden, address(outputs))
        return outputs

    def backward(self, incoming: np.ndarray) -> None:
        """Fill the gradient from that of the outputs, (B, out) float32."""
        incoming = np.ascontiguousarray(incoming)
        self._kernel.mlp_backward(
            *self._shape, self._gradient, self._at_inputs, len(incoming), self._at_hidden, address(incoming)
        )
