"""The work of ``python -m seg.export_model``: the folder of a run's network, ONNX, and a card that describes both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dem_apps.runtime.files import new_folder, read_json
from seg.models.model_folder import write_model
from seg.models.onnx_file import write_onnx
from seg.models.smp_network import SmpNetwork
from seg.models.trained import TrainedNetwork, Training, open_run
from seg.models.transformers_network import TransformersNetwork

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
        kind = write_model(trained, folder)
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
    scores: Any = read_json(file) if file.is_file() else None
    if not isinstance(scores, dict):
        return (
            "Unknown: the run folder holds no `eval.json`, which a training writes at its end; `python -m seg.evaluate "
            "--run RUN` shows them."
        )
    rows = _rows(scores) if scores.get("checkpoint") == checkpoint else []
    kept = scores.get("checkpoints")
    own = kept.get(checkpoint) if isinstance(kept, dict) else None
    if not rows and isinstance(own, dict) and isinstance(own.get("miou"), float):
        rows = [("mIoU", own["miou"])]
    if not rows:
        return "None are known of this checkpoint; `python -m seg.evaluate --run RUN` measures them."
    table = "\n".join(f"| {name} | {100 * value:.2f} % |" for name, value in rows)
    target = json.dumps(scores.get("protocol", {}).get("train_size", {}))
    return f"On the run's target validation images ({target}):\n\n| score | |\n|---|---|\n{table}"


def _rows(scores: dict[str, Any]) -> list[tuple[str, float]]:
    named = {"mIoU": scores.get("miou"), "pixel accuracy": scores.get("pixel_accuracy")}
    per_class = scores.get("per_class_iu")
    named |= {f"IoU {name}": value for name, value in (per_class if isinstance(per_class, dict) else {}).items()}
    return [(name, value) for name, value in named.items() if isinstance(value, float)]
