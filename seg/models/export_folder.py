"""The work of ``python -m seg.export_model``: a run's network as a folder that others load, as ONNX, and a card.

The folder is of segmentation-models-pytorch's ``save_pretrained``, of transformers', or our own.
Shapes: B batch, C classes, H × W the images' size.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dem_apps.errors import InputError, passed_on
from dem_apps.runtime.files import new_folder, read_json
from seg.models.description import write_description
from seg.models.smp_network import SmpNetwork
from seg.models.trained import CONFIG_FILE, OUR_KEY, OUR_VERSION, WEIGHTS_FILE, open_run, write_json
from seg.models.trained_network import TrainedNetwork, Training
from seg.models.transformers_network import TransformersNetwork
from seg.models.weights_file import weights_content

ONNX_FILE, CARD_FILE = "model.onnx", "README.md"
#: By kind of folder: the library that reads it, and how.
_READERS = {
    "smp": (
        "segmentation-models-pytorch",
        "import segmentation_models_pytorch as smp\n\nmodel = smp.from_pretrained(FOLDER).eval()",
    ),
    "transformers": (
        "transformers",
        "from transformers import AutoModelForSemanticSegmentation\n\n"
        "model = AutoModelForSemanticSegmentation.from_pretrained(FOLDER)",
    ),
    "seg": ("dem-apps", "from seg import load\n\npredictor = load(FOLDER)"),
}
#: Of the logits' largest value: what rounding in another order comes to, with room.
_TOLERANCE = 1e-3
_OPSET = 18


def write_model_with_card(
    run: Path, out: Path, checkpoint: str, onnx: bool, size: tuple[int, int] | None = None
) -> Path:
    """Write a run's network into a new folder and print what was written; returns the folder.

    Args:
        run: the run folder.
        out: new or empty.
        checkpoint: which of the run's.
        onnx: whether an ONNX file is written as well.
        size: (width, height) of its images; None is the run's target size, else 512 × 512.

    Raises:
        InputError: a folder in use, or an ONNX file whose logits differ from the network's.
    """
    trained, training = open_run(run, checkpoint)
    with new_folder(out, "--out") as folder:
        kind = _write_model(trained, training, folder)
        lines = [f"{kind:8} {out} for {_READERS[kind][0]}"]
        maps = None
        if onnx:
            width, height = size or trained.description.size or (512, 512)
            difference = write_onnx(trained, folder / ONNX_FILE, (width, height))
            before, after = ((1, count, height, width) for count in (trained.description.channels, trained.num_classes))
            maps = f"images {before}, normalised, to logits {after}"
            lines.append(f"onnx     {out / ONNX_FILE}: {maps}; its logits differ by up to {difference:.2g}")
        (folder / CARD_FILE).write_text(_card(run, trained, training, kind, maps), encoding="utf-8")
    lines.append(f"card     {out / CARD_FILE}: classes, normalisation and scores; the licence is yours to choose")
    print("\n".join(lines))
    return out


def _write_model(trained: TrainedNetwork, training: Training, folder: Path) -> str:
    """Weights and description of a run's network; returns the kind of folder."""
    model = trained.network
    if isinstance(model, SmpNetwork):
        kind = "smp"
        model.save_pretrained(folder)
    elif isinstance(model, TransformersNetwork):
        kind = "transformers"
        model.save_pretrained(folder, trained.class_set.names)
    else:
        kind = "seg"
        bands = {} if trained.description.pixels.is_rgb else {"bands": trained.description.channels}
        document = {
            OUR_KEY: OUR_VERSION, **training.config.model.architecture(), **bands,
            "num_classes": trained.num_classes, "align_corners": trained.description.align_corners,
        }  # fmt: skip
        write_json(folder / CONFIG_FILE, document)
        (folder / WEIGHTS_FILE).write_bytes(weights_content(model.state_dict()))
    write_description(trained.description, folder)
    return kind


def _card(run: Path, trained: TrainedNetwork, training: Training, kind: str, onnx: str | None) -> str:
    """What is needed to use the network, and its scores."""
    names, description, config = trained.class_set.names, trained.description, training.config
    library, snippet = _READERS[kind]
    classes = "\n".join(f"| {index} | {name} |" for index, name in enumerate(names))
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (description.mean, description.std))
    size = "any size" if description.size is None else f"{description.size[0]} × {description.size[1]}"
    pixels = "RGB from 0 to 1" if description.pixels.is_rgb else f"{description.pixels.described} as they are"
    parts = [
        "---", f"library_name: {library}", "pipeline_tag: image-segmentation", "---", "",
        f"# {getattr(trained.network, 'name', config.model.name)} for {len(names)} classes", "",
        f"From the run `{run.name}`, checkpoint `{training.checkpoint}`, step {training.step:,}: "
        f"method {config.method}, objective {config.loss}.", "",
        "```python", snippet, "```", "",
        "## Images", "",
        f"{pixels}, minus ({mean}), divided by ({std}); trained to see {size}. Logits are upsampled to the "
        f"image bilinearly with align_corners={description.align_corners}.", "",
        *([f"`{ONNX_FILE}` maps {onnx}.", ""] if onnx else []),
        "## Classes", "", "| output | class |", "|---|---|", classes, "",
        "## Scores", "", _scores(run, training.checkpoint), "",
        "## Licence", "", "Not set: choose it when you publish the network, with the data's licences in mind.", "",
    ]  # fmt: skip
    return "\n".join(parts)


def _scores(run: Path, checkpoint: str) -> str:
    """Of the run's ``eval.json``, if they are of this checkpoint."""
    file = run / "eval.json"
    scores: Any = read_json(file) if file.is_file() else {}
    if scores.get("checkpoint") != checkpoint or scores.get("miou") is None:
        return "None are known of this checkpoint; `python -m seg.evaluate --run RUN` measures them."
    named = {"mIoU": scores["miou"], "pixel accuracy": scores["pixel_accuracy"]}
    named |= {f"IoU {name}": value for name, value in scores["per_class_iu"].items() if value is not None}
    table = "\n".join(f"| {name} | {100 * value:.2f} % |" for name, value in named.items())
    return f"On the run's target validation images:\n\n| score | |\n|---|---|\n{table}"


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
    shape = (1, trained.description.channels, size[1], size[0])
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with passed_on("--onnx: torch cannot write this network as ONNX"), _silent():
        torch.onnx.export(
            module, (images,), str(file), input_names=["images"], output_names=["logits"], opset_version=_OPSET,
            dynamo=True, external_data=False,
        )  # fmt: skip
    with torch.inference_mode():
        expected = module(images)
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    logits = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
    difference, largest = float((logits - expected).abs().max()), float(expected.abs().max())
    if not difference <= _TOLERANCE * largest:
        raise InputError(
            f"--onnx: the file's logits differ from the network's by up to {difference:.3g}, where these reach "
            f"{largest:.3g}; nothing was written"
        )
    return difference


class _AtImageSize(nn.Module):
    def __init__(self, trained: TrainedNetwork) -> None:
        super().__init__()
        self.network, self._trained = trained.network, trained

    def forward(self, images: Tensor) -> Tensor:
        return self._trained.logits(images)


def _runtime() -> Any:
    try:
        import onnx  # noqa: F401  # what the exporter and the check need, before minutes of work
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(f"--onnx: needs {error.name}, not installed here; pip install 'dem-apps[onnx]'") from error
    return onnxruntime


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """The exporter prints its progress and logs what it tried."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
