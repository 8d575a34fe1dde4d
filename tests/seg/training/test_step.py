"""The training step against a plain loop that is written from the protocol in the adaptation literature."""

import copy
import dataclasses

import pytest
import torch
from advent_loop import PlainLoop
from support.training_steps import MODEL, C, assert_close, fresh, full_size, micro_batch
from support.without_float64 import without_float64
from torch import nn

from dem_apps.runtime.reproducibility import seed_everything
from seg.config import TrainConfig
from seg.methods.advent import DiscriminatorConfig
from seg.methods.optimization import MicroBatch
from seg.methods.settings import OptimizerConfig, WeightConfig
from seg.training.step import training_step

BASE = TrainConfig(
    method="minent",
    loss="entropy",
    reduction="mean",
    max_steps=10,
    model=dataclasses.replace(MODEL, batch_norm="trainable"),
    optimizer=OptimizerConfig(name="sgd", lr=0.02, head_factor=10.0, horizon=20),
    weights=WeightConfig(target_main=0.3, adversarial_main=50.0, aux=0.4, relative=False),
    discriminator=DiscriminatorConfig(lr=1e-3, channels=4),
)


def weighted(**weights):
    return fresh(dataclasses.replace(BASE, weights=dataclasses.replace(BASE.weights, **weights)))


@pytest.mark.parametrize(
    ("method", "loss"), [("minent", "entropy"), ("advent", "none"), ("advent", "entropy")]
)
def test_three_steps_equal_a_plain_loop(method, loss):
    config = dataclasses.replace(BASE, method=method, loss=loss)
    ours = fresh(config)
    seed_everything(0)
    loop = PlainLoop(config, C, torch.device("cpu"))
    # in float32 a ReLU that rounding flips would hide more
    pairs = [(ours.model.double(), loop.model.double(), 1e-5)]
    for head, judge in loop.judges.items():
        pairs.append((ours.method.adversary.discriminators[head].double(), judge.double(), 1e-5))
    starts = [copy.deepcopy(theirs.state_dict()) for _, theirs, _ in pairs]
    for step in range(3):
        source, target = micro_batch(step)
        batch = MicroBatch(
            *({**domain, "image": domain["image"].double()} for domain in (source, target))
        )
        training_step(ours, [batch])
        loop.step(*batch)
    for (mine, theirs, share), start in zip(pairs, starts, strict=True):
        expected = theirs.state_dict()
        for name, value in mine.state_dict().items():
            way = (expected[name] - start[name]).double().norm()
            assert float((value - expected[name]).double().norm()) <= share * float(way), name


@pytest.mark.parametrize("method", ["minent", "advent", "self-training"])
def test_a_device_without_float64_takes_the_same_step(method):
    config = dataclasses.replace(BASE, method=method, loss="adadem")
    ours, expected = fresh(config), fresh(config)
    training_step(expected, [micro_batch(0)])
    with without_float64():
        training_step(ours, [micro_batch(0)])
    assert_close(ours.model.state_dict(), expected.model.state_dict(), 1e-4, 1e-6)


def test_control_differs_from_source_only_in_running_statistics_alone():
    control = dataclasses.replace(BASE, loss="none")
    source_only = dataclasses.replace(BASE, method="source")
    first, second = fresh(control), fresh(source_only)
    values = training_step(first, [micro_batch(0)])
    training_step(second, [MicroBatch(micro_batch(0).source, {})])
    assert values["target/entropy"] > 0
    theirs = second.model.state_dict()
    differing = {
        name
        for name, value in first.model.state_dict().items()
        if not torch.equal(value, theirs[name])
    }
    assert differing
    assert all("running" in name or "num_batches" in name for name in differing)


def test_control_is_source_only_where_target_images_move_nothing():
    model = dataclasses.replace(BASE.model, batch_norm="source")
    first = fresh(dataclasses.replace(BASE, loss="none", model=model))
    second = fresh(dataclasses.replace(BASE, method="source", model=model))
    # target images are not looked at
    values = training_step(first, [MicroBatch(micro_batch(0).source, {})])
    assert values == training_step(second, [MicroBatch(micro_batch(0).source, {})])
    assert_close(first.model.state_dict(), second.model.state_dict(), 0, 0)


def test_accumulated_micro_batches_equal_one_larger_batch():
    # frozen: with batch statistics two halves are not the whole
    config = dataclasses.replace(BASE, model=dataclasses.replace(BASE.model, batch_norm="frozen"))
    source, target = micro_batch(0, images=4)
    halves = [
        MicroBatch({k: v[part] for k, v in source.items()}, {k: v[part] for k, v in target.items()})
        for part in (slice(0, 2), slice(2, 4))
    ]
    whole, accumulated = fresh(config), fresh(config)
    expected = training_step(whole, [MicroBatch(source, target)])
    actual = training_step(accumulated, halves)
    assert actual == pytest.approx(expected, rel=1e-5)
    assert_close(accumulated.model.state_dict(), whole.model.state_dict(), 1e-5, 1e-6)


def test_bf16_keeps_objectives_in_float32_and_stays_near():
    config = dataclasses.replace(BASE, method="advent", loss="adadem")
    exact = training_step(fresh(config), [micro_batch(0)])
    training = fresh(dataclasses.replace(config, precision="bf16"))
    values = training_step(training, [micro_batch(0)])
    assert values == pytest.approx(exact, rel=0.05)
    assert values != exact
    assert {parameter.dtype for parameter in training.model.parameters()} == {torch.float32}
    assert training.method.objectives.objectives["main"].class_marginals.dtype == torch.float32


@pytest.mark.parametrize("learned", [False, True])
def test_relative_weights_follow_the_cross_entropy_and_never_rise(learned):
    """The step of the weight times the cross-entropy, or of the weight itself where that is above 1."""
    one, batch = weighted(relative=True), micro_batch(0)
    if learned:  # labels that are what the network says, so that its cross-entropy is small
        with torch.no_grad():
            for head in (one.model.main_head, one.model.auxiliary_head):
                head.apply(
                    lambda layer: layer.weight.mul_(60) if isinstance(layer, nn.Conv2d) else None
                )
            one.model.train()
            batch.source["label"] = full_size(one.model(batch.source["image"]))["main"].argmax(1)
    start = {name: value.clone() for name, value in one.model.state_dict().items()}
    cross_entropy = training_step(one, [batch])["source/cross_entropy_main"]
    assert (cross_entropy < 0.7) == learned
    other = weighted(target_main=BASE.weights.target_main * min(1.0, cross_entropy))
    other.model.load_state_dict(start)
    training_step(other, [batch])
    assert_close(one.model.state_dict(), other.model.state_dict(), 1e-5, 1e-6)


def test_the_labels_that_were_trained_on_are_counted():
    state, names = fresh(BASE), list("abcd")
    assert state.source_shares(names) == dict.fromkeys(names, 0.0)
    for step in range(2):
        training_step(state, [micro_batch(step)])
    labels = torch.cat([micro_batch(step).source["label"].flatten() for step in range(2)])
    counted = torch.bincount(labels[labels != 255], minlength=C).double()
    assert state.source_shares(names) == pytest.approx(
        dict(zip(names, (counted / counted.sum()).tolist(), strict=True))
    )
