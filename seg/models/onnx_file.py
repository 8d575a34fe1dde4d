"""A network as an ONNX file (extra ``onnx``), compared with the network itself before it is called written.

Shapes: B batch, C classes, H × W the images' size.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dem_apps.errors import InputError, first_words
from seg.models.trained_network import TrainedNetwork

#: Of the logits' largest value: what rounding in another order comes to, with room.
_TOLERANCE = 1e-3
_OPSET = 18


class _AtImageSize(nn.Module):
    def __init__(self, trained: TrainedNetwork) -> None:
        super().__init__()
        self.network, self._trained = trained.network, trained

    def forward(self, images: Tensor) -> Tensor:
        return self._trained.logits(images)


def write_onnx(trained: TrainedNetwork, file: Path, size: tuple[int, int]) -> float:
    """Write a file that maps ``images`` (1, 3, H, W), normalised, to ``logits`` (1, C, H, W), for one size of images.

    Args:
        trained: on the CPU.
        file: to write.
        size: (width, height).

    Returns:
        the largest difference between the file's logits, in onnxruntime, and the network's, on an image of noise.

    Raises:
        InputError: the extra is not installed, torch cannot export the network, or the logits differ.
    """
    runtime = _runtime()
    module = _AtImageSize(trained).eval()
    images = torch.randn(
        1, trained.preprocessing.channels, size[1], size[0], generator=torch.Generator().manual_seed(0)
    )
    try:
        with _silent():
            torch.onnx.export(
                module, (images,), str(file), input_names=["images"], output_names=["logits"], opset_version=_OPSET,
                dynamo=True, external_data=False,
            )  # fmt: skip
    except Exception as error:  # the exporter raises nearly anything on an operation that it does not know
        raise InputError(f"--onnx: torch cannot write this network as ONNX ({first_words(error, 200)})") from error
    with torch.inference_mode():
        expected = module(images)
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    logits = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
    difference = float((logits - expected).abs().max())
    if logits.shape != expected.shape or not difference <= _TOLERANCE * float(expected.abs().max()):
        file.unlink()
        raise InputError(
            f"--onnx: the file's logits differ from the network's by up to {difference:.3g}, where these reach "
            f"{float(expected.abs().max()):.3g}; it was not kept"
        )
    return difference


def _runtime() -> Any:
    try:
        import onnx  # noqa: F401  # what the exporter and the check need, before minutes of work
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(f"--onnx: needs {error.name}, not installed here; pip install 'dem-apps[onnx]'") from error
    return onnxruntime


@contextlib.contextmanager
def _silent() -> Any:
    """The exporter prints its progress and logs what it tried."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
