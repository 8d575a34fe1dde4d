"""Settings as a training takes them: each changes it or is named as unused, and large images get a size."""

import dataclasses
import operator
from typing import get_args

import pytest
import torch
from support.pictures import noise, save
from support.training_steps import MODEL, fresh, micro_batch

from dem_apps.errors import InputError
from dem_apps.runtime.arguments import fields_of
from dem_apps.runtime.setting_checks import choices_of
from seg.config import TrainConfig
from seg.data.settings import SourceConfig, TargetDataConfig
from seg.methods import METHODS
from seg.methods.settings import OptimizerConfig, SelfTrainingConfig
from seg.training.resolve import resolve, unused
from seg.training.step import training_step

#: What is not of a step: data, files, scores, when things are done, how they are computed.
ELSEWHERE = (
    "seed", "max_steps", "batch_size", "accumulate", "precision", "deterministic", "compile", "workers", "device",
    "eval_every", "log_every", "batch_norm_after", "bn_alpha", "validation_part", "maps", "run_dir",
    "resume", "tracker", "classes", "source.", "target.", "demo.", "bands.", "method", "model.name", "model.encoder",
    "model.depth", "model.output_stride", "model.start_from", "weights.back_off", "weights.relative",
    "optimizer.repeats",
)  # fmt: skip
OTHERS = {
    "loss": "entropy", "tau": 2.0, "alpha": 2.0, "norm": "l2", "delta": "entropy", "momentum": 0.7, "eta": 3.0,
    "optimizer.lr": 0.002, "optimizer.name": "sgd", "optimizer.horizon": 5, "model.batch_norm": "frozen",
    "weights.aux": 0.7,
}  # fmt: skip
BASE = TrainConfig(
    loss="adadem", max_steps=4, model=dataclasses.replace(MODEL, batch_norm="trainable"),
    optimizer=OptimizerConfig(lr=1e-3), self_training=SelfTrainingConfig(threshold=0.3, teacher_decay=0.6),
)  # fmt: skip


def trained(config):
    state = fresh(config)
    for step in range(2):
        training_step(state, [micro_batch(step)])
    networks = (state.model, state.method.scored_model(), *state.method.modules.values())
    return [value.detach().clone() for network in networks for value in network.state_dict().values()]


def other(key, config):
    """Another value of a setting."""
    field, hint = next((field, hint) for name, field, hint in fields_of(TrainConfig) if name == key)
    value, choices = operator.attrgetter(key)(config), choices_of(field, hint)
    if key in OTHERS:
        return OTHERS[key]
    if choices:
        return next(each for each in choices if each != value)
    if isinstance(value, bool):
        return not value
    return value + 1 if hint is int or int in get_args(hint) else value * 0.5 + 0.1


def changed(config, key, value):
    section, _, name = key.rpartition(".")
    if not section:
        return dataclasses.replace(config, **{name: value})
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **{name: value})})


SETTINGS = [key for key, _, hint in fields_of(TrainConfig) if not dataclasses.is_dataclass(hint)]
KEYS = [key for key in SETTINGS if not key.startswith(ELSEWHERE)]


@pytest.mark.parametrize("method", METHODS)
def test_a_setting_changes_something_or_is_named(method):
    base = dataclasses.replace(BASE, method=method)
    before, wrong = trained(base), []
    for key in KEYS:
        config = changed(base, key, other(key, base))
        try:
            config.check()
        except InputError:
            continue  # refused with a sentence
        after = trained(config)
        same = len(before) == len(after) and all(map(torch.equal, before, after))
        if same != (key in unused(config)):
            wrong.append(f"{key}: {'changes nothing' if same else 'changes something'}, and the table says the other")
    assert not wrong


def test_settings_of_the_data_are_named():
    default = TrainConfig()
    data = dataclasses.replace(
        default.source, style_beta=0.1, style_probability=0.5, rare_class_pixels=0.1, rare_class_temperature=None
    )
    config = dataclasses.replace(default, source=data, bn_alpha=0.3, batch_norm_after="none")
    assert set(unused(config)) == {
        "bn_alpha", "source.style_probability", "source.rare_class_pixels", "source.style_beta",
    }  # fmt: skip
    assert resolve(config, "cpu")[1][0] == "unused   --bn-alpha: of --batch-norm-after target"
    assert not unused(default)


@pytest.mark.parametrize(
    ("augmentation", "size"),
    [
        ([{"HorizontalFlip": {"p": 0.5}}], [256, 192]),
        ([{"ColorJitter": {}}, {"GaussianBlur": {"p": 0.3}}], [256, 192]),  # both domains at one scale
        ([{"RandomCrop": {"height": 200, "width": 200}}], None),
    ],
)
def test_an_augmentation_sets_the_size_where_it_crops_or_resizes(augmentation, size, tmp_path):
    for folder in ("images", "labels"):
        save(tmp_path / folder / "a.png", noise(0, 600, 400))
    source = SourceConfig(str(tmp_path), augmentation=augmentation)
    config = TrainConfig(source=source, target=TargetDataConfig(str(tmp_path)))
    found, lines = resolve(config, "cpu")
    assert found.source == dataclasses.replace(source, size=size)
    assert found.target.size == [256, 192]
    assert len(lines) == 1 + (size is not None)
