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


def picture(size: tuple[int, int], seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (26, 48, 3), np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def label(size: tuple[int, int], seed: int) -> Image.Image:
    ids = np.random.default_rng(seed).integers(0, 34, (26, 48), np.uint8)
    return Image.fromarray(ids).resize(size, Image.Resampling.NEAREST)


@pytest.fixture(scope="module")
def downloads(tmp_path_factory) -> tuple[Path, Path]:
    """GTA5 with two images; Cityscapes with one image to train on, without its label, and one to score."""
    root = tmp_path_factory.mktemp("downloads")
    gta5, cityscapes = root / "GTA5", root / "Cityscapes"
    for folder in ("images", "labels"):
        (gta5 / folder).mkdir(parents=True)
    for number in (1, 2):
        picture(GTA5_SIZE, number).save(gta5 / "images" / f"0000{number}.png", compress_level=1)
        palette = label(GTA5_SIZE, number)
        palette.putpalette(LABEL_ID_PALETTE)
        palette.save(gta5 / "labels" / f"0000{number}.png", compress_level=1)
    for split, city in (("train", "aachen"), ("val", "frankfurt")):
        images = cityscapes / "leftImg8bit" / split / city
        images.mkdir(parents=True)
        picture(CITYSCAPES_SIZE, 3).save(images / f"{city}_000000_000019_leftImg8bit.png", compress_level=1)
    labels = cityscapes / "gtFine" / "val" / "frankfurt"
    labels.mkdir(parents=True)
    label(CITYSCAPES_SIZE, 3).save(labels / "frankfurt_000000_000019_gtFine_labelIds.png")
    return gta5, cityscapes


@pytest.mark.slow
def test_the_published_configuration_trains_and_scores_at_full_size(downloads, tmp_path, run_command):
    gta5, cityscapes = downloads
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
