"""Short trainings of ``seg.train`` in float64, on pictures of whole numbers."""

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import seg.train
from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.run_reader import read_metrics
from seg.config import TrainConfig
from seg.data.labels import CITYSCAPES_CLASSES
from seg.data.settings import SourceConfig, TargetDataConfig
from seg.methods.advent import DiscriminatorConfig
from seg.methods.settings import OptimizerConfig, WeightConfig
from seg.models.settings import ModelConfig
from seg.training import setup

WIDTH, HEIGHT = 64, 32
CONFIG = TrainConfig(
    reduction="mean",
    max_steps=6,
    eval_every=6,
    log_every=1,
    maps=0,
    device="cpu",
    batch_size=2,
    model=ModelConfig("deeplabv2", "resnet18", output_stride=8, batch_norm="trainable"),
    optimizer=OptimizerConfig(name="sgd", lr=0.002, head_factor=2.0),
    weights=WeightConfig(target_main=1.0, aux=0.5),
)
ADVENT = {
    "method": "advent",
    "weights": WeightConfig(target_main=1.0, adversarial_main=100.0, aux=0.5),
    "discriminator": DiscriminatorConfig(lr=1e-4, channels=32),
}
RUNS: dict[str, dict[str, Any]] = {
    "source": {"method": "source"},
    "minent adadem balanced": {"loss": "adadem", "reduction": "balanced"},
    "minent dem": {"loss": "dem"},
    "advent entropy": {**ADVENT, "loss": "entropy"},
    "advent adadem": {**ADVENT, "loss": "adadem"},
}
SCORES = ("miou", "pixel_accuracy", "mean_entropy", "calibration_error")


def train(**changes: Any) -> dict[str, list[float]]:
    """Losses of every step, scores of the last one, and the diagonals of the class tables."""
    with (
        tempfile.TemporaryDirectory() as folder,
        in_float64(),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        pair = write_pair(Path(folder) / "pair")
        # augmentation and rare class sampling would draw random numbers
        source = SourceConfig(root=str(pair / "gta5"), augmentation=[], rare_class_temperature=None)
        target = TargetDataConfig(root=str(pair / "cityscapes"), augmentation=[])
        run_dir = str(Path(folder) / "run")
        run = seg.train.train(
            replace(CONFIG, source=source, target=target, run_dir=run_dir, **changes)
        )
        lines = [line for line in read_metrics(run) if "source/cross_entropy_main" in line]
        result = json.loads((run / "eval.json").read_text())
        state = load_checkpoint(run / "checkpoints", "last")
    values = {name: [line[name] for line in lines] for name in lines[0] if name != "step"}
    values["scores"] = [result[name] for name in SCORES]
    values["label-free scores"] = list(result["label_free"].values())
    for name, table in state.get("minent", {}).items():
        if name.endswith("class_marginals"):
            values[name] = table.diagonal().tolist()
    return values


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Networks are built with float64 weights, and the segmentation network converts its images."""

    def build(*arguments: Any, **options: Any) -> torch.nn.Module:
        network = build_network(*arguments, **options)
        network.register_forward_pre_hook(lambda _, inputs: inputs[0].double())
        return network

    build_network = setup.build_network
    torch.set_default_dtype(torch.float64)
    try:
        with patch.object(setup, "build_network", build):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def write_pair(root: Path) -> Path:
    """Two images of each set: a batch holds all of them, so that their random order does not matter."""
    for number in (1, 2):
        save(root / f"gta5/images/{number:05}.png", picture(number, light=0))
        save(root / f"gta5/labels/{number:05}.png", label(number))
        for split, index in (("train", number + 2), ("val", number + 4)):
            frame = f"{split}/city/city_{number:06}_000019"
            save(root / f"cityscapes/leftImg8bit/{frame}_leftImg8bit.png", picture(index, light=60))
            save(root / f"cityscapes/gtFine/{frame}_gtFine_labelIds.png", label(index))
    return root


def save(file: Path, values: NDArray[np.int64]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint8)).save(file)


def train_ids(index: int) -> NDArray[np.int64]:
    """Blocks of 8 × 8 pixels."""
    row, column = np.indices((HEIGHT, WIDTH)) // 8
    return (row * row + 3 * column + 5 * index) % len(CITYSCAPES_CLASSES)


def label(index: int) -> NDArray[np.int64]:
    """Label ids; the first two rows are ``unlabeled``."""
    ids = np.array(CITYSCAPES_CLASSES.ids)[train_ids(index)]
    ids[:2] = 0
    return ids


def picture(index: int, light: int) -> NDArray[np.int64]:
    """A colour for each class, a texture, and more light in the target."""
    row, column = np.indices((HEIGHT, WIDTH))
    texture = (7 * row * column + 11 * index * row) % 41
    return (
        np.stack([train_ids(index) * step % 160 + texture + light for step in (37, 59, 83)], axis=2)
        % 256
    )
