"""``--tile`` in the commands: the same scores and maps as of whole images, and a protocol that says so."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import seg.evaluate
import seg.export
from dem_apps.errors import InputError
from seg import load
from seg.config import ModelConfig, SourceConfig, TargetDataConfig, TrainConfig
from seg.train import train


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_pair) -> Path:
    """A network of stride 8 with a small field: its encoder is cut short."""
    return train(
        TrainConfig(
            run_dir=str(tmp_path_factory.mktemp("runs") / "run"),
            maps=0,
            max_steps=3,
            eval_every=3,
            device="cpu",
            model=ModelConfig("unet", "resnet18", depth=3),
            source=SourceConfig(str(tiny_pair.source_root)),
            target=TargetDataConfig(str(tiny_pair.target_root)),
        )
    )


def evaluated(run: Path, out: Path, monkeypatch, *flags: str) -> dict:
    monkeypatch.setattr(sys, "argv", ["seg.evaluate", "--run", str(run), "--out", str(out), *flags])
    seg.evaluate.main()
    return json.loads(out.read_text())


def test_scores_by_tiles_are_those_of_the_whole(run: Path, tmp_path: Path, monkeypatch) -> None:
    whole = evaluated(run, tmp_path / "whole.json", monkeypatch)
    tiled = evaluated(run, tmp_path / "tiled.json", monkeypatch, "--tile", "64", "--tile-overlap", "32")
    assert tiled["mean_entropy"] == pytest.approx(whole["mean_entropy"], rel=0.05)
    assert tiled["mean_entropy"] != whole["mean_entropy"]
    assert (tiled["protocol"]["tile"], tiled["protocol"]["tile_overlap"]) == (64, 32)
    assert "tile" not in whole["protocol"]
    one = evaluated(run, tmp_path / "one.json", monkeypatch, "--tile", "512")
    assert one["mean_entropy"] == whole["mean_entropy"]


def test_an_export_by_tiles(run: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    image = np.random.default_rng(0).integers(0, 256, (150, 170, 3)).astype(np.uint8)
    Image.fromarray(image).save(tmp_path / "images" / "a.png")
    means = []
    for name, tile in (("whole", None), ("tiled", 128)):
        out = tmp_path / name
        config = seg.export.ExportConfig(
            run=[str(run)],
            images=str(tmp_path / "images"),
            out=str(out),
            size=None,
            tile=tile,
            tile_overlap=tile and 64,
            device="cpu",
        )
        assert seg.export.export(config) == 0
        assert Image.open(out / "a_prediction.png").size == (170, 150)
        means.append(float(next(csv.DictReader((out / "entropy.csv").open()))["mean_entropy"]))
    assert means[0] == pytest.approx(means[1], rel=0.05)


@pytest.fixture(scope="module")
def small_run(run: Path, tmp_path_factory) -> Path:
    """The same, as if it had been trained on images of 64 × 32."""
    small = tmp_path_factory.mktemp("runs") / "small"
    shutil.copytree(run, small)
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["target"]["size"] = [64, 32]
    (small / "config.yaml").write_text(yaml.safe_dump(settings))
    return small


def test_a_large_image_is_no_thumbnail_in_tiles(run: Path, small_run: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "images").mkdir()
    image = np.random.default_rng(0).integers(0, 256, (256, 256, 3)).astype(np.uint8)
    Image.fromarray(image).save(tmp_path / "images" / "a.png")

    def exported(name: str, run: Path, **flags: object) -> tuple[bytes, str]:
        capsys.readouterr()
        out = tmp_path / name
        images = str(tmp_path / "images")
        assert not seg.export.export(
            seg.export.ExportConfig(run=[str(run)], images=images, out=str(out), device="cpu", **flags)  # type: ignore[arg-type]
        )
        return (out / "a_prediction.png").read_bytes(), capsys.readouterr().out

    native, _ = exported("native", run, tile=128, size=None)
    tiled, said = exported("tiled", small_run, tile=128)
    assert tiled == native
    assert "--tile: images at their own size; this run was trained at 64×32 (--size run)" in said
    shrunk, said = exported("shrunk", small_run)
    assert shrunk != native
    assert "a.png has 256×256 pixels, and the network sees it at 64×32; --tile 512 shows it all of them" in said
    asked, said = exported("asked", small_run, tile=128, size="run")
    assert asked == shrunk
    loaded = load(small_run, tile=128, device="cpu").predict(image)
    assert torch.equal(loaded.logits, load(run, size=None, tile=128, device="cpu").predict(image).logits)


def test_flags_that_do_not_fit(run: Path, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(InputError, match="--tile-overlap: belongs to --tile"):
        evaluated(run, tmp_path / "a.json", monkeypatch, "--tile-overlap", "32")
    config = seg.export.ExportConfig(
        run=[str(run)], images=str(run), out=str(tmp_path / "out"), tile=128, tile_overlap=120
    )
    with pytest.raises(InputError, match="--tile-overlap: expected 0 to 96"):
        seg.export.export(config)
