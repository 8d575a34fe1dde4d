"""The work of ``python -m seg.export_model``: a run's network as a folder that others load, as ONNX, and a card.

The folder is of segmentation-models-pytorch's ``save_pretrained``, of transformers', or our own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import segmentation_models_pytorch as smp
import torch
from torch import nn

from dem_apps.errors import InputError
from dem_apps.runtime.files import new_folder, read_json
from seg.data.pixel_format import PIXELS_FILE
from seg.models.folders import CONFIG_FILE, OUR_KEY, OUR_VERSION, WEIGHTS_FILE, write_json
from seg.models.load_model import CLASSES_FILE
from seg.models.onnx_file import write_onnx
from seg.models.predictor import upsampled
from seg.models.preprocessing import PREPROCESSOR_FILE, preprocessor_document
from seg.models.smp_network import SmpNetwork
from seg.models.trained import TrainedNetwork, Training, open_run
from seg.models.transformers_network import TransformersNetwork, quiet
from seg.models.weights_file import weights_content

#: Of an image for the comparison, in pixels: a size that every architecture takes.
_SIDE = 256
_TOLERANCE = 1e-4
ONNX_FILE, CARD_FILE = "model.onnx", "README.md"
_LIBRARIES = {"smp": "segmentation-models-pytorch", "transformers": "transformers", "seg": "dem-apps"}
_SNIPPETS = {
    "smp": "import segmentation_models_pytorch as smp\n\nmodel = smp.from_pretrained(FOLDER).eval()",
    "transformers": (
        "from transformers import AutoModelForSemanticSegmentation\n\n"
        "model = AutoModelForSemanticSegmentation.from_pretrained(FOLDER)"
    ),
    "seg": "from seg import load\n\npredictor = load(FOLDER)",
}


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
        InputError: a folder in use, or two forms of the network whose logits differ.
    """
    trained, training = open_run(run, checkpoint)
    classes, pixels = trained.class_set, trained.preprocessing.pixels
    with new_folder(out, "--out") as folder:
        kind = _write_model(trained, folder)
        lines = [f"{kind:8} {out} for {_LIBRARIES[kind]}"]
        maps = None
        if onnx:
            width, height = size or trained.preprocessing.size or (512, 512)
            difference = write_onnx(trained, folder / ONNX_FILE, (width, height))
            before, after = ((1, count, height, width) for count in (pixels.bands, len(classes)))
            maps = f"images {before}, normalised, to logits {after}"
            lines.append(f"onnx     {out / ONNX_FILE}: {maps}; its logits differ by up to {difference:.2g}")
        (folder / CARD_FILE).write_text(_card(run, trained, training, kind, maps), encoding="utf-8")
    lines.append(f"card     {out / CARD_FILE}: classes, normalisation and scores; the licence is yours to choose")
    print("\n".join(lines))
    return out


def _card(run: Path, trained: TrainedNetwork, training: Training, kind: str, onnx: str | None) -> str:
    """What is needed to use the network, and what is known of it."""
    classes_of, preprocessing, config = trained.class_set, trained.preprocessing, training.config
    classes = "\n".join(f"| {index} | {name} |" for index, name in enumerate(classes_of.names))
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (preprocessing.mean, preprocessing.std))
    size = "any size" if preprocessing.size is None else f"{preprocessing.size[0]} × {preprocessing.size[1]}"
    pixels = "RGB from 0 to 1" if preprocessing.pixels.is_rgb else f"{preprocessing.pixels.described} as they are"
    parts = [
        "---", f"library_name: {_LIBRARIES[kind]}", "pipeline_tag: image-segmentation", "---", "",
        f"# {_architecture(trained, config.model.name)} for {len(classes_of)} classes", "",
        f"From the run `{run.name}`, checkpoint `{training.checkpoint}`, step {training.step:,}: "
        f"method {config.method}, objective {config.loss}.", "",
        "```python", _SNIPPETS[kind], "```", "",
        "## Images", "",
        f"{pixels}, minus ({mean}), divided by ({std}); trained to see {size}. Logits are upsampled to the "
        f"image bilinearly with align_corners={config.model.align_corners}.", "",
        *([f"`{ONNX_FILE}` maps {onnx}.", ""] if onnx else []),
        "## Classes", "", "| output | class |", "|---|---|", classes, "",
        "## Scores", "", _scores(run, training.checkpoint), "",
        "## Licence", "", "Not set: choose it when you publish the network, with the data's licences in mind.", "",
    ]  # fmt: skip
    return "\n".join(parts)


def _architecture(trained: TrainedNetwork, name: str) -> str:
    """What the network is called where it comes from."""
    model = trained.network
    if isinstance(model, SmpNetwork):
        return f"{model.architecture} with encoder {model.arguments['encoder_name']}"
    return type(model.network).__name__ if isinstance(model, TransformersNetwork) else name


def _scores(run: Path, checkpoint: str) -> str:
    """Of the run's ``eval.json``, if they are of this checkpoint."""
    file = run / "eval.json"
    scores: Any = read_json(file) if file.is_file() else {}
    if not isinstance(scores, dict) or scores.get("checkpoint") != checkpoint or scores.get("miou") is None:
        return "None are known of this checkpoint; `python -m seg.evaluate --run RUN` measures them."
    named = {"mIoU": scores["miou"], "pixel accuracy": scores["pixel_accuracy"]}
    named |= {f"IoU {name}": value for name, value in scores["per_class_iu"].items() if value is not None}
    table = "\n".join(f"| {name} | {100 * value:.2f} % |" for name, value in named.items())
    target = json.dumps(scores["protocol"]["train_size"])
    return f"On the run's target validation images ({target}):\n\n| score | |\n|---|---|\n{table}"


def _write_model(trained: TrainedNetwork, folder: Path) -> str:
    """Write weights, description, classes and normalisation of a run's network into an empty folder.

    Returns:
        the library that reads it, ``smp``, ``transformers`` or ``seg``.

    Raises:
        InputError: the library's own network gives other logits.
    """
    model, classes, preprocessing = trained.network, trained.class_set, trained.preprocessing
    pixels = preprocessing.pixels
    if isinstance(model, SmpNetwork):
        kind = "smp"
        _as_smp(model, len(classes), folder)
    elif isinstance(model, TransformersNetwork):
        kind = "transformers"
        _as_transformers(model, classes.names, folder)
    else:
        kind = "seg"
        _as_ours(trained, folder)
    write_json(folder / PREPROCESSOR_FILE, preprocessor_document(preprocessing))
    write_json(folder / CLASSES_FILE, classes.document())
    if not pixels.is_rgb:
        write_json(folder / PIXELS_FILE, pixels.document())
    return kind


def _as_ours(trained: TrainedNetwork, folder: Path) -> None:
    assert trained.training is not None  # of every run
    bands = {} if trained.preprocessing.pixels.is_rgb else {"bands": trained.preprocessing.channels}
    document = {
        OUR_KEY: OUR_VERSION, **trained.training.config.model.architecture(), **bands,
        "num_classes": trained.num_classes, "align_corners": trained.align_corners,
    }  # fmt: skip
    write_json(folder / CONFIG_FILE, document)
    (folder / WEIGHTS_FILE).write_bytes(weights_content(trained.network.state_dict()))


def _as_smp(model: SmpNetwork, num_classes: int, folder: Path) -> None:
    """By the library's own network, which is asked whether it says the same."""
    bands = model.arguments.get("in_channels", 3)
    images = torch.randn(1, bands, _SIDE, _SIDE, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        logits = model(images)["main"]
    arguments = dict(model.arguments)
    if "upsampling" in arguments:
        arguments["upsampling"] = _SIDE // logits.shape[2]
    library = smp.create_model(
        model.architecture, encoder_weights=None, classes=num_classes, **arguments, **model.encoder_options
    )
    library.load_state_dict(model.state_dict())
    with torch.inference_mode():
        theirs = library.eval()(images)
        ours = upsampled(logits, (_SIDE, _SIDE))
    difference = float((theirs - ours).abs().max()) if theirs.shape == ours.shape else float("inf")
    if not difference <= _TOLERANCE * float(ours.abs().max()) + 1e-6:
        raise InputError(
            f"{model.architecture}: segmentation-models-pytorch's own network gives logits that differ by up to "
            f"{difference:.3g}; nothing was written"
        )
    library.save_pretrained(folder)


def _as_transformers(model: TransformersNetwork, names: tuple[str, ...], folder: Path) -> None:
    network: nn.Module = model.network
    settings = network.config
    settings.id2label = dict(enumerate(names))  # type: ignore[union-attr]  # of a class that is not known here
    settings.label2id = {name: index for index, name in enumerate(names)}  # type: ignore[union-attr]
    with quiet():
        network.save_pretrained(folder)  # type: ignore[operator]
