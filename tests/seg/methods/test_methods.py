"""Every method of the table, and the objectives and discriminators of heads; losses are compared in test_step.py."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from support import cases, refuses, same
from support.training_steps import MODEL, C, H, W, fresh, micro_batch
from torch import nn

from dem_apps import OBJECTIVE_NAMES, build_objective
from dem_apps.runtime.checkpoint import load_checkpoint, save_checkpoint
from dem_apps.runtime.settings import parse_config
from seg.config import TrainConfig
from seg.inference.protocol import protocol
from seg.methods import METHODS
from seg.methods.advent import (
    Adversary,
    DiscriminatorConfig,
    build_discriminator,
    weighted_self_information,
)
from seg.methods.minent import HeadObjectives
from seg.models.settings import ModelConfig
from seg.trained.trained_network import Training
from seg.training.step import supervised_loss, training_step

WEIGHTS = {"main": 0.5, "aux": 0.1}


def fresh_with(method, seed=0, model=MODEL):
    small = DiscriminatorConfig(channels=4)
    loss = None if METHODS[method].loss is None else "adadem"
    return fresh(
        TrainConfig(method=method, loss=loss, max_steps=9, model=model, discriminator=small), seed
    )


def logits_of_heads():
    torch.manual_seed(0)
    return {head: torch.randn(2, C, H, W, requires_grad=True) for head in WEIGHTS}


def two(seed):
    return [micro_batch(seed)] * 2


@cases(
    ([], 0.01, True),
    (["--loss", "max-squares"], 0.01, True),
    (["--loss", "adadem"], 0.03, False),
    (["--loss", "adadem", "--weights.relative"], 0.03, True),
    (["--method", "self-training"], 0.01, False),
    (["--method", "advent"], 0.01, False),
    (["--method", "advent", "--loss", "adadem"], 0.01, False),
    (["--method", "advent", "--weights.relative"], 0.01, True),
    (["--config", "gta5_cityscapes_minent"], 0.001, False),
    (["--config", "gta5_cityscapes_minent", "--loss", "adadem"], 0.001, False),
)
def test_the_weight_on_target_follows_from_method_and_objective(arguments, weight, relative):
    config = parse_config(TrainConfig, "seg.train", "", arguments).resolved()
    state = fresh(dataclasses.replace(config, model=MODEL))
    assert state.relative is relative
    how = protocol(config.protocol(), Training(Path("run"), "last", 1), state.model)["weights"]
    assert (how["target_main"], how["relative"]) == (weight, relative)


@cases(
    ([], "minent", "entropy", "MinEnt"),
    (["--loss", "adadem"], "minent", "adadem", "MinEnt + AdaDEM"),
    (["--method", "minent", "--loss", "dem", "--tau", "0.5"], "minent", "dem", "MinEnt + DEM"),
    (["--loss", "none"], "control", "none", "control"),
    (["--method", "control"], "control", "none", "control"),
    (["--method", "advent"], "advent", "none", "AdvEnt"),
    (["--method", "advent", "--loss", "entropy"], "advent", "entropy", "AdvEnt + Entropy"),
    (["--method", "self-training"], "self-training", "none", "self-training"),
    (["--method", "source"], "source", "none", "source only"),
)
def test_the_objective_follows_the_method(arguments, method, loss, title):
    config = parse_config(TrainConfig, "seg.train", "", arguments)
    config.check()
    resolved = config.resolved()
    assert (resolved.method, resolved.loss) == (method, loss)
    assert resolved.title.split(", ")[0] == title
    assert resolved.resolved() == resolved


@cases(
    (["--model.encoder-weights", "null"], 3e-3),
    (["--model.encoder-weights", "imagenet"], 5e-4),
    (["--model.encoder-weights", "null", "--model.start-from", "run"], 5e-4),
    (["--model.start-from", "run", "--optimizer.lr", "0.01"], 0.01),
)
def test_the_rate_is_smaller_where_weights_are_trained(arguments, rate):
    assert parse_config(TrainConfig, "seg.train", "", arguments).resolved().optimizer.lr == rate


@cases("source", "control")
def test_a_method_without_an_objective_refuses_one(method):
    config = parse_config(TrainConfig, "seg.train", "", ["--method", method, "--loss", "adadem"])
    refuses(
        f"--loss: --method {method} takes no objective; leave --loss out, or take --method minent",
        config.check,
    )


@cases(("target", True), ("source", False), ("frozen", False))
def test_the_control_moves_statistics_and_has_no_gradient_of_target(policy, moved):
    control = fresh(
        TrainConfig(
            method="control", max_steps=9, model=dataclasses.replace(MODEL, batch_norm=policy)
        )
    )
    buffers = [buffer.clone() for buffer in control.model.buffers()]
    control.predict.model.train()
    loss, values = control.method.target_loss(micro_batch(0))
    assert loss is None
    assert bool(values) is moved
    assert same(buffers, list(control.model.buffers())) is not moved
    assert all(parameter.grad is None for parameter in control.model.parameters())


@pytest.mark.parametrize("method", METHODS)
def test_a_restored_checkpoint_goes_on_to_the_same_numbers(method, tmp_path):
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
def test_a_missing_aux_head_has_no_loss(method):
    state = fresh_with(method, model=ModelConfig("unet", "resnet18", depth=3))
    before = {name: value.clone() for name, value in state.model.named_parameters()}
    values = training_step(state, two(0))
    assert "source/cross_entropy_main" in values
    assert not any("aux" in name for name in (*values, *state.state()))
    learned = {
        name
        for name, value in state.model.named_parameters()
        if not torch.equal(value, before[name])
    }
    assert {name for name in before if not name.startswith("encoder.layer")} <= learned


@pytest.mark.parametrize("loss", OBJECTIVE_NAMES)
@pytest.mark.parametrize("reduction", ["mean", "balanced"])
def test_the_loss_is_the_weighted_sum_over_heads(loss, reduction):
    logits = logits_of_heads()
    adaptation = HeadObjectives(loss, C, WEIGHTS, reduction, {})
    total, values = adaptation(logits)
    scale = 1 / math.log(C) if loss in ("entropy", "cadf", "dem", "info-max", "come") else 1.0
    alone = {
        head: build_objective(loss, C)(logits[head], dim=1, reduction=reduction) for head in WEIGHTS
    }
    torch.testing.assert_close(
        total, sum(WEIGHTS[head] * scale * value for head, value in alone.items())
    )
    assert set(values) == {"target/entropy", "target/objective_main", "target/objective_aux"}
    total.backward()
    assert all(value.grad.abs().sum() > 0 for value in logits.values())


def test_supervised_loss_without_any_label_is_zero():
    logits = logits_of_heads()
    label = torch.full((2, H, W), 255)
    loss, _ = supervised_loss(logits, label, WEIGHTS)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all(float(value.grad.abs().sum()) == 0.0 for value in logits.values())


def test_self_information_adds_up_to_the_normalised_entropy():
    logits = 3 * logits_of_heads()["main"].detach()
    logits[0, :, 0, 0] = torch.tensor([1e4, *[0.0] * (C - 1)])  # certain: 0, and finite
    p = logits.double().softmax(1)
    entropy = torch.special.entr(p).sum(1) / math.log(C)
    torch.testing.assert_close(
        weighted_self_information(logits).sum(1).double(), entropy, rtol=1e-5, atol=1e-6
    )


def test_discriminator_is_the_papers_five_convolutions():
    discriminator = build_discriminator(19, 64)
    convolutions = [layer for layer in discriminator if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [64, 128, 256, 512, 1]
    assert {(layer.kernel_size, layer.stride, layer.padding) for layer in convolutions} == {
        ((4, 4), (2, 2), (1, 1))
    }
    slopes = [layer.negative_slope for layer in discriminator if isinstance(layer, nn.LeakyReLU)]
    assert slopes == [0.2] * 4
    assert discriminator(torch.zeros(1, 19, 64, 128)).shape == (1, 1, 2, 4)


@pytest.mark.parametrize("domain", ["source", "target"])
def test_images_smaller_than_a_region_are_refused_with_their_flag(domain):
    adversary = Adversary(C, WEIGHTS, channels=4)
    large = logits_of_heads()
    small = {head: values[..., :31, :] for head, values in large.items()}
    source, target = (small, large) if domain == "source" else (large, small)
    message = rf"the {domain} images are 64 × 31; give a larger --{domain}\.size"
    refuses(message, adversary.discriminator_loss, source, target)
    if domain == "target":
        refuses(message, adversary.fooling_loss, target)
