"""The work of ``python -m seg.export_model``: a network as a folder that others load, and as ONNX.

Shapes: B batch, C classes, H × W the images' size.
"""

from __future__ import annotations

import json
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
from seg.models.smp_network import SmpNetwork
from seg.models.tiles import GRID
from seg.models.transformers_network import TransformersNetwork
from seg.trained.open import open_network
from seg.trained.settings import NetworkSettings
from seg.trained.trained_network import TrainedNetwork

ONNX_FILE = "model.onnx"
#: Largest difference from what the network gives, relative to the largest number.
_TOLERANCE = 1e-4
_OPSET = 18


def export_folder(settings: NetworkSettings, run: str | None, out: Path, onnx: str | None) -> None:
    """Write a network into a new folder, and as ONNX of an output, and print what it is."""
    trained = open_network(settings, run)
    description, classes = trained.description, trained.num_classes
    with new_folder(out, "--out") as folder:
        origin = trained.spec if trained.training is None else trained.training.described
        lines = [
            f"{out} for {_write_folder(trained, folder)}: {origin}",
            f"seen as: {description.said}",
        ]
        if onnx is not None:
            width, height = description.size or (512, 512)
            if onnx == "probabilities" and width != height:
                width = height = 512
            difference, step = _write_onnx(trained, folder / ONNX_FILE, (width, height), onnx)
            sides = "".join(f", {side}" for side in (("H", "W") if step else (height, width)))
            before, after = (
                f"({'B' if step else 1}, {n}{sides})" for n in (description.pixels.bands, classes)
            )
            seen = f"normalised, H and W multiples of {step}" if step else "normalised"
            seen = seen if onnx == "logits" else "RGB from 0 to 1"
            lines.append(f"{out / ONNX_FILE}: images {before}, {seen}, to {onnx} {after}")
            lines.append(f"its {onnx} differ from the network's by up to {difference:.2g}")
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


def _write_onnx(
    trained: TrainedNetwork, file: Path, size: tuple[int, int], output: str
) -> tuple[float, int | None]:
    """Write (B, 3, H, W) → (B, C, H, W) for sides of any multiple of a number, else for one image of one size.

    Returns the largest difference from the network's output, on noise, and the number. One size is for probabilities,
    as Deepness reads them, and for networks with parts that depend on it, such as adaptive pooling.
    """
    try:
        import onnx  # what the exporter and the check need, before minutes of work
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"--onnx: needs {error.name}, not installed here; pip install 'dem-apps[onnx]'"
        ) from error
    module = _AtImageSize(trained, output == "probabilities").eval()
    step, image = (
        math.lcm(GRID, trained.description.multiple),
        (trained.description.pixels.bands, size[1], size[0]),
    )
    # of padding that depends on the size, as in TensorFlow's networks, torch's exporter derives expressions without end
    padded = any(
        isinstance(part, (AvgPool2dSame, Conv2dSame)) for part in trained.network.modules()
    )
    if output == "logits" and not padded and all(side % step == 0 and side > step for side in size):
        batch = (2, image[0], size[1] + step, size[0] + 2 * step)
        with suppress(InputError):
            difference = _exported(module, file, output, [batch, (1, *image)], step)
            _add_metadata(onnx, file, {"sides": f"multiples of {step}"})
            return difference, step
    difference = _exported(module, file, output, [(1, *image)])
    # what Deepness's source reads; below seg_thresh, 0.5 there, a pixel gets class 0
    if output == "probabilities":
        names = {str(index): name for index, name in enumerate(trained.class_set.names)}
        values = {
            "model_type": "Segmentor",
            "class_names": names,
            "tile_size": size[0],
            "seg_thresh": 0.0,
        }
        _add_metadata(onnx, file, {key: json.dumps(value) for key, value in values.items()})
    return difference, None


def _exported(
    module: nn.Module, file: Path, output: str, shapes: Sequence[Any], step: int | None = None
) -> float:
    """Write for the first of the shapes, with ``step`` for its multiples too; the largest difference over all."""
    import onnxruntime

    generator, difference = torch.Generator().manual_seed(0), 0.0
    made = torch.randn if output == "logits" else torch.rand
    inputs = [made(shape, generator=generator) for shape in shapes]
    dynamic: Any = None
    if step:
        batch, rows, columns = (
            torch.export.Dim(name, min=1) for name in ("batch", "rows", "columns")
        )
        dynamic = ({0: batch, 2: step * rows, 3: step * columns},)
    with passed_on("--onnx: torch cannot write this network as ONNX"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about what it tried
        torch.onnx.export(
            module,
            (inputs[0],),
            str(file),
            input_names=["images"],
            output_names=[output],
            opset_version=_OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
            dynamic_shapes=dynamic,
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # an error is raised besides
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    for images in inputs:
        with torch.inference_mode():
            expected = module(images)
        with passed_on("--onnx: onnxruntime cannot run the file"):
            found = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
        own, largest = float((found - expected).abs().max()), float(expected.abs().max())
        if not own <= _TOLERANCE * largest:
            said = f"differ from the network's by up to {own:.3g}, where these reach {largest:.3g}"
            raise InputError(f"--onnx: the file's {output} {said}; nothing was written")
        difference = max(difference, own)
    return difference


def _add_metadata(onnx: Any, file: Path, values: dict[str, str]) -> None:
    model = onnx.load(file)
    onnx.helper.set_model_props(model, values)
    onnx.save(model, file)


class _AtImageSize(nn.Module):
    """Normalised images to logits of their size, or RGB images from 0 to 1 to probabilities."""

    mean: Tensor
    std: Tensor

    def __init__(self, trained: TrainedNetwork, probabilities: bool) -> None:
        super().__init__()
        self.network, self._trained, self._probabilities = trained.network, trained, probabilities
        pixels = trained.description.pixels
        if probabilities and not pixels.is_rgb:
            raise InputError(
                f"--onnx-output: probabilities are of 8-bit RGB, and this network sees {pixels.described}"
            )
        for name in ("mean", "std"):
            self.register_buffer(
                name, torch.tensor(getattr(pixels, name)).view(1, -1, 1, 1), persistent=False
            )

    def forward(self, images: Tensor) -> Tensor:
        if not self._probabilities:
            return self._trained.logits(images)
        return self._trained.logits(
            self._trained.description.reordered((images - self.mean) / self.std)
        ).softmax(1)
