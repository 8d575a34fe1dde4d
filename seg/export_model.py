"""``python -m seg.export_model``: a run's network as a folder that others load, and as ONNX.

What is written depends on the network: an architecture of segmentation-models-pytorch becomes a folder of its
``save_pretrained``, one of transformers a folder of theirs, and networks of our own (``deeplabv2``) a folder that
``seg.load`` reads: safetensors with a description.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from dem_apps.errors import InputError
from dem_apps.runtime.command import run_command
from dem_apps.runtime.files import new_folder, read_json
from dem_apps.runtime.settings import option, parse_config
from dem_apps.runtime.validate import check_settings
from seg.data.image_io import LARGEST_SIDE
from seg.models.formats.trained_network import TrainedNetwork
from seg.models.load_model import LoadedModel, open_trained
from seg.models.model_folder import write_model
from seg.models.onnx_file import write_onnx
from seg.models.preprocessing import Preprocessing
from seg.models.smp_network import SmpNetwork
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


@dataclass(frozen=True)
class ExportModelConfig:
    """Write a run's network as a folder that others load."""

    run: str = option("", "run folder", value="RUN", group="what is read and written", needed=True)
    out: str = option("", "folder to write to, new or empty", value="DIR", needed=True)
    checkpoint: Literal["auto", "last", "selected", "best"] = option(
        "auto", "which of its checkpoints; auto: selected, else last; best was chosen with target labels"
    )
    onnx: bool = option(False, f"write {ONNX_FILE} as well, compared with the network (extra onnx)", group="ONNX")
    size: list[int] | None = option(
        None, "width and height of its images; default: the run's target size, else 512,512",
        at_least=1, at_most=LARGEST_SIDE, value="W,H",
    )  # fmt: skip


def export_model(config: ExportModelConfig) -> Path:
    """Do what the command does; returns the folder.

    Raises:
        InputError: a flag is missing, a folder is in use, or a check between two forms of the network failed.
    """
    check_settings(config)
    if config.size is not None and (len(config.size) != 2 or not config.onnx):
        raise InputError("--size: expected W,H such as 1024,512, together with --onnx, which is made for one size")
    run, out = Path(config.run), Path(config.out)
    loaded = open_trained(run, config.checkpoint, torch.device("cpu"))
    size = loaded.config.target.size
    preprocessing = Preprocessing.of(loaded.pixels, None if size is None else (size[0], size[1]), Preprocessing.origin)
    with new_folder(out, "--out") as folder:
        kind = write_model(loaded, preprocessing, folder)
        lines = [f"{kind:8} {out} for {_LIBRARIES[kind]}"]
        onnx = None
        if config.onnx:
            width, height = config.size or size or (512, 512)
            trained = _trained(loaded, preprocessing)
            difference = write_onnx(trained, folder / ONNX_FILE, (width, height))
            before, after = ((1, count, height, width) for count in (loaded.pixels.bands, len(loaded.classes)))
            onnx = f"images {before}, normalised, to logits {after}"
            lines.append(f"onnx     {out / ONNX_FILE}: {onnx}; its logits differ by up to {difference:.2g}")
        card = _card(run, loaded, preprocessing, kind, onnx)
        (folder / CARD_FILE).write_bytes(card.encode())
    lines.append(f"card     {out / CARD_FILE}: classes, normalisation and scores; the licence is yours to choose")
    print("\n".join(lines))
    return out


def _trained(loaded: LoadedModel, preprocessing: Preprocessing) -> TrainedNetwork:
    def write(_folder: Path) -> None:
        raise NotImplementedError

    settings = loaded.config.model
    return TrainedNetwork(
        "--run", "run", loaded.model, len(loaded.classes), loaded.classes, preprocessing, settings.align_corners, write
    )


def _card(run: Path, loaded: LoadedModel, preprocessing: Preprocessing, kind: str, onnx: str | None) -> str:
    """What somebody needs to use the network, and what is known of it."""
    classes = "\n".join(f"| {index} | {name} |" for index, name in enumerate(loaded.classes.names))
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (preprocessing.mean, preprocessing.std))
    size = "any size" if preprocessing.size is None else f"{preprocessing.size[0]} × {preprocessing.size[1]}"
    config = loaded.config
    pixels = "RGB from 0 to 1" if loaded.pixels.is_rgb else f"{loaded.pixels.described} as they are"
    parts = [
        "---", f"library_name: {_LIBRARIES[kind]}", "pipeline_tag: image-segmentation", "---", "",
        f"# {_architecture(loaded)} for {len(loaded.classes)} classes", "",
        f"From the run `{run.name}`, checkpoint `{loaded.checkpoint}`, step {loaded.step:,}: method {config.method}, "
        f"objective {config.loss}.", "",
        "```python", _SNIPPETS[kind], "```", "",
        "## Images", "",
        f"{pixels}, minus ({mean}), divided by ({std}); trained to see {size}. Logits are upsampled to the "
        f"image bilinearly with align_corners={config.model.align_corners}.", "",
        *([f"`{ONNX_FILE}` maps {onnx}.", ""] if onnx else []),
        "## Classes", "", "| output | class |", "|---|---|", classes, "",
        "## Scores", "", _scores(run, loaded.checkpoint), "",
        "## Licence", "", "Not set: whoever publishes the network chooses it, with the data's licences in mind.", "",
    ]  # fmt: skip
    return "\n".join(parts)


def _architecture(loaded: LoadedModel) -> str:
    """What the network is called where it comes from."""
    model = loaded.model
    if isinstance(model, SmpNetwork):
        return f"{model.architecture} with encoder {model.arguments['encoder_name']}"
    return type(model.network).__name__ if isinstance(model, TransformersNetwork) else loaded.config.model.name


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


def _main() -> None:
    example = "python -m seg.export_model --run runs/a --out models/a"
    export_model(parse_config(ExportModelConfig, "python -m seg.export_model", example))


if __name__ == "__main__":
    run_command(_main)
