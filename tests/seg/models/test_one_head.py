"""A network with one head and without batch normalisation, through every command."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from dem_apps.runtime.run_reader import read_metrics
from seg.config import ModelConfig
from seg.train import train

#: Its normalisations are of layers and groups.
MODEL = ModelConfig(name="fpn", encoder="mit_b0")


@pytest.fixture(scope="module")
def run(tiny_config, tmp_path_factory) -> Path:
    run_dir = str(tmp_path_factory.mktemp("runs") / "run")
    return train(dataclasses.replace(tiny_config, method="advent", model=MODEL, maps=1, run_dir=run_dir))


def test_the_loop_works_with_the_head_that_there_is(run):
    logged = set().union(*read_metrics(run))
    per_head = {"source/cross_entropy", "target/objective", "target/fooling", "discriminator/loss"}
    assert {f"{name}_main" for name in per_head} <= logged
    assert not any(name.endswith("_aux") for name in logged)
    how = json.loads((run / "eval.json").read_text())["protocol"]
    assert how["batch_norm"] == "none: the network has no batch normalisation"
    assert how["network"] == {"name": "fpn", "encoder": "mit_b0", "depth": None, "output_stride": None}
    assert list((run / "entropy_maps").glob("*.png"))
