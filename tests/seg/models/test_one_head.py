"""A network with one head and without batch normalisation, through every command."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.run_folder import RunFolder
from dem_apps.runtime.run_reader import read_metrics
from seg import build_model
from seg.config import ModelConfig, SourceConfig, TargetDataConfig, TrainConfig
from seg.data.domains import open_validation
from seg.export import ExportConfig, export
from seg.models.batch_norm import describe, set_up_batch_norm
from seg.models.trained import open_run
from seg.scores.evaluation import evaluate
from seg.scores.protocol import protocol
from seg.train import train

#: Its normalisations are of layers and groups.
MODEL = ModelConfig(name="fpn", encoder="mit_b0")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def config(tiny_pair) -> TrainConfig:
    return TrainConfig(
        method="advent", model=MODEL, max_steps=2, eval_every=1, log_every=1, maps=1, device="cpu",
        source=SourceConfig(str(tiny_pair.source_root)), target=TargetDataConfig(str(tiny_pair.target_root)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(config, tmp_path_factory) -> Path:
    return train(dataclasses.replace(config, run_dir=str(tmp_path_factory.mktemp("runs") / "run")))


def test_the_loop_works_with_the_head_that_there_is(run):
    logged = set().union(*read_metrics(run))
    per_head = {"source/cross_entropy", "target/objective", "target/fooling", "discriminator/loss"}
    assert {f"{name}_main" for name in per_head} <= logged
    assert not any(name.endswith("_aux") for name in logged)
    how = json.loads((run / "eval.json").read_text())["protocol"]
    assert how["batch_norm"] == "none: the network has no batch normalisation"
    assert how["network"] == {"name": "fpn", "encoder": "mit_b0", "depth": None, "output_stride": None}
    assert list((run / "entropy_maps").glob("*.png"))


def test_it_resumes_to_the_same_weights(run, config, tmp_path, monkeypatch):
    """An interruption right after the first checkpoint."""
    config = dataclasses.replace(config, run_dir=str(tmp_path / "run"))
    save = RunFolder.save_checkpoint

    def interrupted(folder, name, state):
        save(folder, name, state)
        if name == "last":
            raise InputError("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", interrupted)
        with pytest.raises(InputError, match="interrupted"):
            train(config)
    train(dataclasses.replace(config, resume=True))
    whole, resumed = (load_checkpoint(folder / "checkpoints", "last") for folder in (run, tmp_path / "run"))
    assert resumed["step"] == 2
    assert all(value.equal(resumed["model"][name]) for name, value in whole["model"].items())
    assert read_metrics(tmp_path / "run") == read_metrics(run)


def test_it_is_scored_and_exported(run, tiny_pair, tmp_path):
    loaded = open_run(run, "last")[0]
    config = loaded.training.config
    assert protocol(config, loaded.network, "last", 2)["batch_norm"].startswith("none")
    scores = evaluate(loaded.network, open_validation(config.target, loaded.classes), loaded.classes, CPU)
    assert scores["miou"] == json.loads((run / "eval.json").read_text())["miou"]
    (tmp_path / "images").mkdir()
    Image.new("RGB", (50, 31), (90, 120, 60)).save(tmp_path / "images" / "a.png")
    assert export(ExportConfig([str(run)], str(tmp_path / "images"), str(tmp_path / "out"), device="cpu")) == 0
    assert Image.open(tmp_path / "out" / "a_entropy.png").size == (50, 31)


def test_a_policy_that_would_change_nothing_is_refused():
    network, partly = build_model(**MODEL.architecture(), num_classes=4), build_model("segformer", "mit_b0", 4)
    assert set_up_batch_norm(network, "trainable", synchronised=False) is network
    with pytest.raises(InputError, match=r"--model.batch-norm: the network has no batch normalisation, so 'target'"):
        set_up_batch_norm(network, "target", synchronised=False)
    set_up_batch_norm(partly, "target", synchronised=False)
    assert describe("target", partly).endswith("moved by target alone; the encoder has none")


def test_the_demos_network_is_what_nothing_else_was_said_of():
    assert ModelConfig().architecture() == {
        "name": "deeplabv2", "encoder": "resnet18", "depth": 3, "output_stride": 4,
    }  # fmt: skip
    assert ModelConfig(depth=5, output_stride=8).architecture()["depth"] == 5
    assert ModelConfig(name="unet").architecture()["depth"] is None
