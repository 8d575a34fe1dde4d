"""The work of ``python -m seg.export_model``: a network as a folder that others load, and as ONNX.

Shapes: B batch, C classes, H × W the images' size.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.pool2d_same import AvgPool2dSame
from torch import Tensor, nn

from dem_apps.errors import InputError, passed_on
from dem_apps.runtime.files import new_folder
from seg.models.network import needed_package
from seg.models.smp_network import SmpNetwork
from seg.models.tiles import GRID
from seg.models.transformers_network import TransformersNetwork
from seg.trained.open import open_network
from seg.trained.settings import RunSettings
from seg.trained.trained_network import TrainedNetwork

ONNX_FILE = "model.onnx"
#: Largest difference from what the network gives, relative to the largest number.
_TOLERANCE = 1e-4
_OPSET = 18


def export_folder(settings: RunSettings, out: Path, onnx: bool) -> None:
    """Write a network into a new folder, with ``onnx`` as ONNX too, and print what it is."""
    trained = open_network(settings)
    with new_folder(out, "--out") as folder:
        library = _write_folder(trained, folder)
        lines = [
            f"{out} for {library}: {trained.spec}",
            f"seen as: {trained.description.described}",
        ]
        if onnx:
            lines += _write_onnx(trained, folder / ONNX_FILE)
    print("\n".join(lines))


def _write_folder(trained: TrainedNetwork, folder: Path) -> str:
    """Weights and description of a network, a run's in its library's format; returns the library that reads them."""
    model: Any = trained.network
    if trained.training is None:
        trained.write(folder, trained.description)
        return "the format that it came in"
    if isinstance(model, TransformersNetwork):
        names = trained.class_set.names
        model.network.config.id2label = dict(enumerate(names))
        model.network.config.label2id = {name: index for index, name in enumerate(names)}
    model.save_pretrained(folder, config={"align_corners": trained.description.align_corners})
    trained.description.write(folder)
    libraries = {SmpNetwork: "segmentation-models-pytorch", TransformersNetwork: "transformers"}
    return libraries.get(type(model), "dem-apps (seg.load)")


def _write_onnx(trained: TrainedNetwork, file: Path) -> list[str]:
    """Write the network as ONNX and compare its logits; returns lines for the user.

    The file maps normalised images (B, 3, H, W) to logits (B, C, H, W). Sides are multiples of a
    number where the network allows, else the sides of one image. Some parts depend on the size,
    such as adaptive pooling.
    """
    for package in ("onnx", "onnxruntime", "onnxscript"):  # before minutes of work
        needed_package(package, "--onnx", "onnx")
    description, classes = trained.description, trained.num_classes
    step, bands = math.lcm(GRID, description.multiple), description.pixels.bands
    width, height = description.size or (512, 512)
    image = (1, bands, height, width)
    # padding by the size, as in TensorFlow's networks, gives torch's exporter expressions without end
    padding = (AvgPool2dSame, Conv2dSame)
    pads_by_size = any(isinstance(part, padding) for part in trained.network.modules())
    difference = None
    if not pads_by_size and all(side % step == 0 and side > step for side in (width, height)):
        batch = (2, bands, height + step, width + 2 * step)
        with suppress(InputError):
            difference = _exported(trained, file, [batch, image], step)
            images = f"(B, {bands}, H, W), normalised, H and W multiples of {step}"
            shape = f"(B, {classes}, H, W)"
    if difference is None:
        difference = _exported(trained, file, [image])
        images, shape = f"{image}, normalised", f"(1, {classes}, {height}, {width})"
    return [
        f"{file.name}: images {images}, to logits {shape}",
        f"its logits differ from the network's by up to {difference:.2g}",
    ]


def _exported(
    trained: TrainedNetwork, file: Path, shapes: Sequence[Any], step: int | None = None
) -> float:
    """Write for the first of the shapes, with ``step`` for its multiples too; the largest difference over all."""
    module = _AtImageSize(trained).eval()
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    dynamic: Any = None
    if step:
        batch, rows, columns = (
            torch.export.Dim(name, min=1) for name in ("batch", "rows", "columns")
        )
        dynamic = ({0: batch, 2: step * rows, 3: step * columns},)
    with passed_on("--onnx: torch cannot write this network as ONNX"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, about what it tried
        torch.onnx.export(
            module,
            (inputs[0],),
            str(file),
            input_names=["images"],
            output_names=["logits"],
            opset_version=_OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
            dynamic_shapes=dynamic,
        )
    return max(_difference(module, file, images) for images in inputs)


def _difference(module: nn.Module, file: Path, images: Tensor) -> float:
    """The largest difference of the file's logits from the network's; an InputError for a large one."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # an error is raised besides
    with passed_on("--onnx: onnxruntime cannot run the file"):
        session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        logits = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
    with torch.inference_mode():
        expected = module(images)
    difference, largest = float((logits - expected).abs().max()), float(expected.abs().max())
    if not difference <= _TOLERANCE * largest:
        raise InputError(
            f"--onnx: the file's logits differ from the network's by up to {difference:.3g}, where these reach "
            f"{largest:.3g}; nothing was written"
        )
    return difference


class _AtImageSize(nn.Module):
    """Normalised images to logits of their size."""

    def __init__(self, trained: TrainedNetwork) -> None:
        super().__init__()
        self.network, self._trained = trained.network, trained

    def forward(self, images: Tensor) -> Tensor:
        return self._trained.logits(images)
