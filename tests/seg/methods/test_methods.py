"""Every method of the table, and one that is added to it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

import seg.train
import seg.training.loop
from dem_apps.runtime.checkpoint import load_checkpoint, save_checkpoint
from dem_apps.runtime.reproducibility import seed_everything
from dem_apps.runtime.run_reader import read_metrics
from dem_apps.runtime.settings import parse_config
from seg.config import ModelConfig, TrainConfig
from seg.methods import METHODS
from seg.scores.protocol import protocol
from seg.step import TrainState, training_step
from seg.training.optimization import MicroBatch

C = 4
MODEL = ModelConfig(encoder="resnet18", depth=3, output_stride=8)


def fresh(method: str, seed: int = 0) -> TrainState:
    AcceleratorState._reset_state()
    accelerator = Accelerator(cpu=True)
    seed_everything(seed)
    return seg.training.loop.build_state(TrainConfig(method=method, max_steps=9, model=MODEL), C, accelerator)


def micro_batches(seed: int) -> list[MicroBatch]:
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, C, (2, 32, 64), generator=generator)
    source, target = (torch.randn(2, 3, 32, 64, generator=generator) for _ in range(2))
    draws = torch.randint(2**62, (2,), generator=generator)
    return [
        MicroBatch(
            {"image": source, "label": label, "name": ["s"] * 2, "draw": draws},
            {"image": target, "name": ["t"] * 2, "draw": draws + 1},
        )
        for _ in range(2)
    ]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return set(one) == set(other) and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(np.array_equal(one, other))


@pytest.mark.parametrize(
    ("arguments", "relative"),
    [
        ([], True),
        (["--weights.relative", "false"], False),
        (["--method", "self-training"], False),
        (["--method", "advent"], False),
        (["--method", "advent", "--weights.relative"], True),
        (["--config", "gta5_cityscapes_minent"], False),
    ],
)
def test_minents_weight_follows_the_cross_entropy_unless_told_otherwise(arguments: list[str], relative: bool) -> None:
    config = parse_config(TrainConfig, "seg.train", "", arguments)
    AcceleratorState._reset_state()
    state = seg.training.loop.build_state(dataclasses.replace(config, model=MODEL), C, Accelerator(cpu=True))
    assert state.relative is relative
    assert protocol(config, state.model, "last", 1)["weights"]["relative"] is relative


@pytest.mark.parametrize("method", METHODS)
def test_a_restored_checkpoint_goes_on_to_the_same_numbers(method: str, tmp_path: Path) -> None:
    unbroken = fresh(method)
    for step in range(2):
        training_step(unbroken, micro_batches(step))
    save_checkpoint(tmp_path, "last", unbroken.state())
    resumed = fresh(method, seed=1)  # other weights
    resumed.restore(load_checkpoint(tmp_path, "last"))
    for step in range(2, 4):
        values = [training_step(state, micro_batches(step)) for state in (unbroken, resumed)]
        assert values[0] == values[1]
    one, other = unbroken.state(), resumed.state()
    assert equal(one, other)


@pytest.mark.parametrize(
    ("method", "parts"),
    [("source", set()), ("minent", {"minent"}), ("advent", {"minent", "adversary", "adversary_optimizer"})],
)
def test_a_checkpoint_has_the_keys_of_runs_that_exist(method: str, parts: set[str]) -> None:
    state = fresh(method).state()
    assert set(state) == {"model", "optimizer", "step", "random", "label_counts"} | parts
    if "minent" in parts:
        assert {"objectives.main.class_marginals", "objectives.aux.class_marginals"} <= set(state["minent"])
    if "adversary" in parts:
        assert {name.split(".")[1] for name in state["adversary"]} == {"main", "aux"}


class OneHead(nn.Module):
    """A network without an auxiliary head."""

    heads = ("main",)

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.main_head = nn.Conv2d(8, C, 1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"main": self.main_head(self.encoder(images).relu())}


@pytest.mark.parametrize("method", METHODS)
def test_a_missing_aux_head_has_no_loss(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seg.training.loop, "build_network", lambda *_: OneHead())
    state = fresh(method)
    before = {name: value.clone() for name, value in state.model.named_parameters()}
    values = training_step(state, micro_batches(0))
    assert "source/cross_entropy_main" in values
    assert not any("aux" in name for name in (*values, *state.state()))
    assert all(not torch.equal(value, before[name]) for name, value in state.model.named_parameters())


#: Self-training in short: a teacher follows the network, labels what is mixed from both domains, and is what is scored.
EMA = '''
"""A teacher, the moving average of the network, labels target images with a half of each source image pasted in."""

import copy
import dataclasses

import torch
from torch import nn
from torch.nn import functional as F

from seg.methods.method import Method
from seg.training.optimization import MicroBatch


class Ema(Method):

    def __init__(self, network, num_classes, make_objectives):
        super().__init__(network, num_classes, make_objectives)
        self.decay, self.weight = 0.25, 0.5
        self.teacher = dataclasses.replace(network, model=copy.deepcopy(network.model).requires_grad_(False))
        self.confidence = nn.BatchNorm1d(num_classes, affine=False)  # any module with a state
        self.modules = {"ema_confidence": self.confidence}

    def prepare(self, batch):
        source, target = batch.source["image"], batch.target["image"].clone()
        target[..., : target.shape[-1] // 2] = source[..., : target.shape[-1] // 2]
        return MicroBatch(batch.source, {**batch.target, "image": target})

    def target_loss(self, batch):
        with torch.no_grad():
            taught = self.teacher(batch.target["image"], "target")["main"]
            self.confidence(taught.softmax(1).mean((2, 3)))
        loss = F.cross_entropy(self.network(batch.target["image"], "target")["main"], taught.argmax(1))
        values = {
            "target/taught": loss.detach(),
            "target/confidence": self.confidence.running_mean.max().clone(),
            "target/mixed": (batch.target["image"] == batch.source["image"]).all(1).float().mean(),
        }
        return self.weight * loss, values

    @torch.no_grad()
    def after_step(self, batches, step):
        student = self.network.model.state_dict()
        for name, value in self.teacher.model.state_dict().items():
            value.copy_(value.lerp(student[name], 1 - self.decay) if value.is_floating_point() else student[name])
        return {"ema/images": float(sum(len(batch.target["name"]) for batch in batches))}

    def scored_model(self):
        return self.teacher.model
'''

#: What a line in the table does, before the settings are read; then three commands in one process.
TRAININGS = """
import copy, sys
import torch
from seg.methods import METHODS, Row

METHODS["ema"] = Row("ema:Ema", "a teacher labels the mix")

import seg.evaluate, seg.train, seg.training.loop
from dem_apps.runtime.settings import parse_config
from seg.config import TrainConfig

whole, killed, *flags = sys.argv[1:]
genuine, followed = seg.training.loop.training_step, []


def watched(state, micro_batches):
    followed.append(copy.deepcopy(state.model.state_dict()))
    if killed in sys.argv and state.step == 2:
        sys.exit(0)
    values = genuine(state, micro_batches)
    followed.append(copy.deepcopy(state.model.state_dict()))
    return values


def train(*argv):
    sys.argv = ["seg.train", *argv]
    seg.train.train(parse_config(TrainConfig, "seg.train", "", list(argv)))


seg.training.loop.training_step = watched
train(*flags, "--run-dir", whole)
torch.save([followed[0], *followed[1::2]], whole + "/followed.pt")
try:
    train(*flags, "--run-dir", killed)
except SystemExit:
    pass
seg.training.loop.training_step = genuine
train("--resume", killed)
sys.argv = ["seg.evaluate", "--run", whole, "--checkpoint", "last", "--out", whole + "/again.json"]
seg.evaluate.main()
"""


@pytest.fixture(scope="module")
def ema_runs(tmp_path_factory: pytest.TempPathFactory, tiny_flags: list[str]) -> tuple[Path, Path]:
    """A run of the added method, and one that was killed at step 2 and resumed."""
    folder = tmp_path_factory.mktemp("ema")
    (folder / "ema.py").write_text(EMA)
    (folder / "trainings.py").write_text(TRAININGS)
    whole, killed = folder / "whole", folder / "killed"
    flags = [*tiny_flags, "--max-steps", "3", "--eval-every", "2", "--method", "ema"]
    done = subprocess.run(
        [sys.executable, str(folder / "trainings.py"), str(whole), str(killed), *flags],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return whole, killed


def test_an_added_method_has_values_and_state_of_its_own(ema_runs: tuple[Path, Path]) -> None:
    run, _ = ema_runs
    config = (run / "config.yaml").read_text()
    assert "method: ema\n" in config
    logged = [line for line in read_metrics(run) if "target/taught" in line]
    assert [line["ema/images"] for line in logged] == [2.0, 2.0, 2.0]
    assert all(0.5 <= line["target/mixed"] < 0.6 for line in logged)
    state = load_checkpoint(run / "checkpoints", "last")
    assert int(state["ema_confidence"]["num_batches_tracked"]) == 3


def test_an_added_methods_weights_are_scored_and_saved(ema_runs: tuple[Path, Path]) -> None:
    run, _ = ema_runs
    name = "main_head.branches.0.weight"
    teacher, *students = [weights[name] for weights in torch.load(run / "followed.pt")]
    teachers = [teacher := 0.25 * teacher + 0.75 * student for student in students]
    state = load_checkpoint(run / "checkpoints", "last")
    torch.testing.assert_close(state["model"][name], teachers[-1])
    assert torch.equal(state["trained_model"][name], students[-1])
    for kept in ("selected", "best"):
        saved = load_checkpoint(run / "checkpoints", kept)
        torch.testing.assert_close(saved["model"][name], teachers[saved["step"] - 1])
    scores, again = (json.loads((run / file).read_text()) for file in ("eval.json", "again.json"))
    assert scores["miou"] == again["miou"]
    assert scores["mean_entropy"] == pytest.approx(again["mean_entropy"], rel=1e-6)


def test_an_added_method_resumes_to_the_same_numbers(ema_runs: tuple[Path, Path]) -> None:
    whole, killed = ema_runs
    assert (killed / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()
    one, other = (load_checkpoint(run / "checkpoints", "last") for run in (whole, killed))
    assert equal(one, other)
