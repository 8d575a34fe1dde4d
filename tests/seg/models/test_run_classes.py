"""The classes stay with the run when the class file of its settings changes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import seg.train
from dem_apps.errors import InputError
from seg.config import ModelConfig, OptimizerConfig, SourceConfig, TargetDataConfig, TrainConfig

ROAD, CAR, SKY = (
    {"name": name, "color": [number, 0, 0], "id": number} for name, number in (("road", 7), ("car", 26), ("sky", 23))
)


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text(yaml.safe_dump({"classes": rows}))
    return file


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_pair) -> TrainConfig:
    """The settings of a run with three classes."""
    folder = tmp_path_factory.mktemp("classes")
    config = TrainConfig(
        classes=str(write(folder / "classes.yaml", [ROAD, CAR, SKY])), run_dir=str(folder / "run"), maps=0,
        max_steps=2, eval_every=1, model=ModelConfig(output_stride=8), device="cpu",
        source=SourceConfig(str(tiny_pair.source_root)), target=TargetDataConfig(str(tiny_pair.target_root)),
        optimizer=OptimizerConfig(lr=0.01),
    )  # fmt: skip
    seg.train.train(config)
    return config


@pytest.fixture
def file(trained: TrainConfig) -> Any:
    """The file of classes that its settings name; whole again afterwards."""
    path = Path(str(trained.classes))
    before = path.read_bytes()
    yield path
    path.write_bytes(before)


def test_a_run_goes_on_with_its_own_classes(trained: TrainConfig, file: Path) -> None:
    run = Path(str(trained.run_dir))
    scores = json.loads((run / "eval.json").read_text())
    write(file, [CAR, ROAD])
    seg.train.train(dataclasses.replace(trained, resume=True))
    file.unlink()
    seg.train.train(dataclasses.replace(trained, resume=True))
    assert json.loads((run / "eval.json").read_text()) == scores


def test_weights_of_other_classes_are_no_start(trained: TrainConfig, tmp_path: Path) -> None:
    other = write(tmp_path / "other.yaml", [CAR, ROAD, SKY])
    model = dataclasses.replace(trained.model, start_from=trained.run_dir)
    config = dataclasses.replace(trained, classes=str(other), run_dir=str(tmp_path / "run"), model=model)
    with pytest.raises(InputError, match=r"^--model.start-from: output 0 of .*run is 'road', and in --classes 'car'"):
        seg.train.train(config)
    assert not (tmp_path / "run").exists()


def test_other_colours_and_ids_of_the_same_classes_are_a_start(trained: TrainConfig, tmp_path: Path) -> None:
    rows = [{"name": row["name"], "color": [9, 9, 9], "id": row["id"] + 1} for row in (ROAD, CAR, SKY)]
    model = dataclasses.replace(trained.model, start_from=trained.run_dir)
    config = dataclasses.replace(
        trained, classes=str(write(tmp_path / "ids.yaml", rows)), run_dir=str(tmp_path / "run"), model=model
    )
    assert seg.train.train(config) == tmp_path / "run"
