"""Every method of the table."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from support.same_state import same
from support.training_steps import MODEL, fresh, micro_batch

from dem_apps.runtime.checkpoint import load_checkpoint, save_checkpoint
from dem_apps.runtime.settings import parse_config
from seg.config import ModelConfig, TrainConfig
from seg.methods import METHODS
from seg.scores.protocol import protocol
from seg.step import TrainState, training_step
from seg.training.optimization import MicroBatch


def fresh_with(method: str, seed: int = 0, model: ModelConfig = MODEL) -> TrainState:
    return fresh(TrainConfig(method=method, max_steps=9, model=model), seed)


def two(seed: int) -> list[MicroBatch]:
    return [micro_batch(seed)] * 2


@pytest.mark.parametrize(
    ("arguments", "relative"),
    [
        ([], True),
        (["--method", "self-training"], False),
        (["--method", "advent"], False),
        (["--method", "advent", "--weights.relative"], True),
        (["--config", "gta5_cityscapes_minent"], False),
    ],
)
def test_minents_weight_follows_the_cross_entropy_unless_told_otherwise(arguments: list[str], relative: bool) -> None:
    config = parse_config(TrainConfig, "seg.train", "", arguments)
    state = fresh(dataclasses.replace(config, model=MODEL))
    assert state.relative is relative
    assert protocol(config, state.model, "last", 1)["weights"]["relative"] is relative


@pytest.mark.parametrize("method", METHODS)
def test_a_restored_checkpoint_goes_on_to_the_same_numbers(method: str, tmp_path: Path) -> None:
    unbroken = fresh_with(method)
    for step in range(2):
        training_step(unbroken, two(step))
    save_checkpoint(tmp_path, "last", unbroken.state())
    resumed = fresh_with(method, seed=1)  # other weights
    resumed.restore(load_checkpoint(tmp_path, "last"))
    for step in range(2, 4):
        values = [training_step(state, two(step)) for state in (unbroken, resumed)]
        assert values[0] == values[1]
    assert same(unbroken.state(), resumed.state())


@pytest.mark.parametrize("method", METHODS)
def test_a_missing_aux_head_has_no_loss(method: str) -> None:
    state = fresh_with(method, model=ModelConfig("unet", "resnet18", depth=3))
    before = {name: value.clone() for name, value in state.model.named_parameters()}
    values = training_step(state, two(0))
    assert "source/cross_entropy_main" in values
    assert not any("aux" in name for name in (*values, *state.state()))
    learned = {name for name, value in state.model.named_parameters() if not torch.equal(value, before[name])}
    assert {name for name in before if not name.startswith("encoder.layer")} <= learned
