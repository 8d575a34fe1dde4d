"""The published configuration on files as downloaded: real layouts, real sizes, palette labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seg.data.labels import LABEL_ID_PALETTE

REPOSITORY = Path(__file__).parents[3]
GTA5_SIZE, CITYSCAPES_SIZE = (1914, 1052), (2048, 1024)


def write(image: Path, label: Path | None, size: tuple[int, int], palette: bool = False) -> None:
    generator = np.random.default_rng(0)
    for file, values in (
        (image, generator.integers(0, 256, (26, 48, 3))),
        (label, generator.integers(0, 34, (26, 48))),
    ):
        if file is not None:
            picture = Image.fromarray(values.astype(np.uint8)).resize(size, Image.Resampling.NEAREST)
            if palette and file is label:
                picture.putpalette(LABEL_ID_PALETTE)
            file.parent.mkdir(parents=True, exist_ok=True)
            picture.save(file, compress_level=1)


@pytest.mark.slow
def test_the_published_configuration_trains_and_scores_at_full_size(tmp_path, run_command):
    gta5, cityscapes = tmp_path / "GTA5", tmp_path / "Cityscapes"
    for name in ("00001.png", "00002.png"):
        write(gta5 / "images" / name, gta5 / "labels" / name, GTA5_SIZE, palette=True)
    # the training image has no label
    for frame, labelled in (("train/aachen/aachen", False), ("val/frankfurt/frankfurt", True)):
        label = cityscapes / "gtFine" / f"{frame}_000000_000019_gtFine_labelIds.png" if labelled else None
        write(cityscapes / "leftImg8bit" / f"{frame}_000000_000019_leftImg8bit.png", label, CITYSCAPES_SIZE)
    # a small encoder instead of ResNet-101, which takes a minute per step here; everything else as published
    process = run_command(
        "seg.train", "--config", str(REPOSITORY / "configs/seg/gta5_cityscapes_minent.yaml"), "--loss", "adadem",
        "--source.root", str(gta5), "--target.root", str(cityscapes), "--run-dir", str(tmp_path / "run"),
        "--model.encoder", "resnet18", "--model.encoder-weights", "null", "--max-steps", "1", "--workers", "0",
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    scores = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert scores["protocol"]["train_size"] == {"source": [1280, 720], "target": [1024, 512]}
    assert scores["protocol"]["batch_norm"].startswith("affine-frozen")
    assert scores["protocol"]["loss"] == "adadem"
    assert 0 < scores["mean_entropy_normalised"] <= 1
    out = tmp_path / "predictions"
    process = run_command(
        "seg.evaluate", "--run", str(tmp_path / "run"), "--checkpoint", "last", "--save-predictions", str(out)
    )
    assert process.returncode == 0, process.stderr
    (file,) = out.glob("*.png")
    assert file.name == "frankfurt_000000_000019_leftImg8bit_pred_labelIds.png"
    assert Image.open(file).size == CITYSCAPES_SIZE
