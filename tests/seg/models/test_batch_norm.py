"""Batch normalisation: what each policy trains and moves, and statistics that are re-estimated on the target."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support import cases, refuses, same
from support.processes import together
from timm.layers import BatchNormAct2d
from torch import nn

from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.run_reader import read_metrics
from seg.config import TrainConfig
from seg.data.domains import open_pair
from seg.data.settings import TargetDataConfig
from seg.inference.protocol import protocol
from seg.models.batch_norm import feed_batch_norm, set_up_batch_norm
from seg.models.settings import BatchNormPolicy, ModelConfig
from seg.train import train
from seg.trained.adaptive_batch_norm import re_estimated
from seg.trained.run_network import open_run
from seg.trained.trained_network import RE_ESTIMATED_ON, Training

DOMAINS = ("source", "target")


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


@pytest.fixture
def images():
    return 5.0 + 2.0 * torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def by_batch(model, images):
    features = model[0](images)
    return nn.functional.batch_norm(
        features, None, None, model[1].weight, model[1].bias, training=True
    )


@pytest.mark.parametrize("policy", get_args(BatchNormPolicy))
@pytest.mark.parametrize("domain", DOMAINS)
def test_a_policy_decides_what_normalises_and_what_moves(model, images, policy, domain):
    moves = {
        "trainable": DOMAINS,
        "affine-frozen": DOMAINS,
        "frozen": (),
        "source": ("source",),
        "target": ("target",),
    }
    set_up_batch_norm(model, policy, synchronised=False)
    trained = policy in ("trainable", "source", "target")
    assert [each.requires_grad for each in model.parameters()] == [True, True, trained, trained]
    before = {name: value.clone() for name, value in model[1].named_buffers()}
    stored = copy.deepcopy(model).eval()
    model.train()
    feed_batch_norm(model, policy, domain)
    output = model(images)
    after = dict(model[1].named_buffers())
    torch.testing.assert_close(
        output, stored(images) if policy == "frozen" else by_batch(model, images)
    )
    if domain in moves[policy]:
        features = model[0](images).detach()
        torch.testing.assert_close(after["running_mean"], 0.1 * features.mean((0, 2, 3)))
        torch.testing.assert_close(after["running_var"], 0.9 + 0.1 * features.var((0, 2, 3)))
    else:
        assert all(torch.equal(after[name], value) for name, value in before.items())


@cases(
    ("trainable", "minent", None, None, "moved by both domains"),
    ("target", "minent", None, None, "moved by target alone"),
    ("source", "source", 0.5, None, "moved by both domains"),
    ("target", "source", None, None, "those it started with"),
    ("frozen", "minent", None, "target images", "re-estimated on target images after training"),
)
def test_whose_statistics_a_network_has_is_said(
    policy, method, labelled_part, re_estimated_on, whose, model
):
    settings = ModelConfig(batch_norm=policy)
    config = TrainConfig(
        method=method, model=settings, target=TargetDataConfig(labelled_part=labelled_part)
    )
    said = protocol(config.protocol(), Training(Path("run"), "last", 9, re_estimated_on), model)
    assert said["batch_norm_statistics"] == whose


def test_the_default_moves_by_the_domain_that_is_scored(model):
    for after, given, network, expected in (
        ("none", None, model, "target"),
        ("target", None, model, "source"),
        ("none", "frozen", model, "frozen"),
        ("none", None, model[0], "trainable"),
    ):
        config = TrainConfig(batch_norm_after=after, model=ModelConfig(batch_norm=given))
        assert config.for_network(network).model.batch_norm == expected


def test_on_an_accelerator_torchs_own_layer_is_used_and_timms_activation_kept():
    model = nn.Sequential(nn.BatchNorm2d(2), BatchNormAct2d(2), nn.BatchNorm2d(2)).to("meta")
    names, parameters = list(model.state_dict()), list(model.parameters())
    model = set_up_batch_norm(model, "affine-frozen", synchronised=True)
    assert all(isinstance(layer, nn.SyncBatchNorm) for layer in model)
    assert isinstance(model[1].act, nn.ReLU)
    assert list(model.state_dict()) == names
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_processes_on_cpus_share_no_batch_statistics(model):
    set_up_batch_norm(model, "frozen", synchronised=True)
    refuses(
        r"batch-norm: processes on CPUs cannot share",
        set_up_batch_norm,
        model,
        "target",
        synchronised=True,
    )


def network():
    """Two normalised convolutions with a dropout between them."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5)
    return nn.Sequential(*first, nn.Conv2d(4, 5, 1), BatchNormAct2d(5))


def batches():
    """Means far from 0, different for each batch."""
    generator = torch.Generator().manual_seed(1)
    return [
        10.0 * k + torch.randn(size, 3, 7, 6, generator=generator)
        for k, size in enumerate((3, 1, 2))
    ]


def pixels(features):
    """(B, C, h, w) → (pixels, C) float64 in numpy."""
    return features.detach().double().numpy().transpose(0, 2, 3, 1).reshape(-1, features.shape[1])


@torch.no_grad()
def test_statistics_are_those_of_all_pixels_of_all_images():
    model = network()
    first = [model[0](images) for images in batches()]
    by_batch = [nn.functional.batch_norm(features, None, None, training=True) for features in first]
    second = [model[4](features.relu()) for features in by_batch]  # without dropout
    adapted = re_estimated(model.train(), batches(), 1.0).network
    for layer, features in ((adapted[1], first), (adapted[5], second)):
        rows = np.concatenate([pixels(part) for part in features])
        np.testing.assert_allclose(layer.running_mean.numpy(), rows.mean(0), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(layer.running_var.numpy(), rows.var(0, ddof=1), rtol=1e-5)
    # the batches' means differ, so that an average of their variances is far away
    average = np.mean([pixels(part).var(0, ddof=1) for part in first], 0)
    assert (adapted[1].running_var.numpy() / average).max() > 10


@torch.no_grad()
def test_statistics_are_of_pixels_that_hold_data():
    """The fill of the others is seen by no layer of a network of single pixels."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 1), nn.BatchNorm2d(5)
    )
    images, valid = batches()[0], torch.rand(3, 7, 6) > 0.4
    filled = torch.where(valid[:, None], images, 50.0)
    alone = re_estimated(
        model.eval(), [images.movedim(1, 0)[:, valid][None, :, None]], 1.0
    ).network.state_dict()
    torch.testing.assert_close(
        re_estimated(model, [(filled, valid)], 1.0).network.state_dict(), alone
    )
    assert not same(re_estimated(model, [filled], 1.0).network.state_dict(), alone)


@cases(
    (nn.Conv2d(3, 4, 1), batches(), "--batch-norm-after: the network has no batch normalisation"),
    (
        nn.BatchNorm2d(3, track_running_stats=False),
        batches(),
        "the network has no batch normalisation",
    ),
)
def test_what_cannot_be_is_one_sentence(model, images, sentence):
    refuses(sentence, re_estimated, model, images)


def test_the_share_whose_network_is_worth_most_is_taken(monkeypatch):
    scores = iter([[0.25, 0.27, 0.3, 0.29], [0.29, 0.29, 0.292, 0.28]])
    monkeypatch.setattr("seg.trained.adaptive_batch_norm._scores", lambda _: next(scores))
    adapted, share = re_estimated(network(), batches())
    assert share == 0.5
    assert re_estimated(network(), batches()).share == 0  # hardly more
    expected = re_estimated(network(), batches(), 0.5).network.state_dict()
    for name, value in adapted.state_dict().items():
        torch.testing.assert_close(value, expected[name])


def test_a_change_that_statistics_undo_gets_all_of_them_and_unshifted_images_few():
    """A network of stripes, whose stored statistics are of unshifted images; shifted ones are pale."""
    torch.manual_seed(0)
    model = network().eval()
    images = [torch.randn(4, 3, 48, 64).cumsum(3) for _ in range(2)]
    with torch.no_grad():
        model = re_estimated(model, images, 1.0).network
    assert re_estimated(model, images).share == 0
    assert re_estimated(model, [0.1 * each + 20 for each in images]).share == 1.0


@pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
@pytest.mark.parametrize("shares", [((0,), (1, 2)), ((), (0, 1, 2))])
def test_processes_agree_with_one_that_has_all_batches(shares, tmp_path):
    """Unequal numbers of batches, and once none; the share that is chosen is that of all."""

    def work(rank):
        model, own = network(), [batches()[index] for index in shares[rank]]
        return re_estimated(model, own, 0.3).network.state_dict(), re_estimated(model, own).share

    expected = re_estimated(network(), batches(), 0.3).network.state_dict()
    (first, share), (second, other) = together(work, tmp_path)
    assert share == other
    for actual in (first, second):
        assert list(actual) == list(expected)
        for name, value in expected.items():
            torch.testing.assert_close(actual[name], value, rtol=1e-6, atol=1e-6, msg=name)


# -- --batch-norm-after through training and scores, and the default of --model.batch-norm --------------------------
STATISTICS = ("running_mean", "running_var")


@pytest.fixture(scope="module")
def runs(tiny_config, tmp_path_factory):
    """The same training without and with."""
    folder = tmp_path_factory.mktemp("runs")
    model = dataclasses.replace(tiny_config.model, batch_norm="target")
    config = dataclasses.replace(
        tiny_config, max_steps=4, eval_every=2, model=model, run_dir=str(folder / "without")
    )
    after = dataclasses.replace(
        config, batch_norm_after="target", bn_alpha=1.0, run_dir=str(folder / "with")
    )
    return train(config), train(after)


def scores(run):
    return json.loads((run / "eval.json").read_text())


def test_by_default_the_source_moves_the_statistics_and_the_target_gives_a_share_at_the_end(
    tiny_config, tmp_path
):
    run = train(dataclasses.replace(tiny_config, run_dir=str(tmp_path / "run")))
    said = scores(run)["protocol"]["batch_norm"]
    assert said.startswith("source: running statistics")
    assert "re-estimated on target images (share " in said


def test_training_goes_on_as_without(runs):
    without, adapted = (load_checkpoint(run / "checkpoints", "last") for run in runs)
    assert same(without["model"], adapted["trained_model"])
    assert np.array_equal(without["random"]["torch"], adapted["random"]["torch"])
    lines = [
        [
            {name: line[name] for name in line if name.startswith(("source/", "target/"))}
            for line in read_metrics(run)
        ]
        for run in runs
    ]
    assert lines[0] == lines[1]
    differing = {
        name for name, value in without["model"].items() if not value.equal(adapted["model"][name])
    }
    assert differing == {name for name in without["model"] if name.endswith(STATISTICS)}
    assert scores(runs[0])["mean_entropy"] != scores(runs[1])["mean_entropy"]


def test_what_is_saved_has_the_statistics_of_the_targets_training_images(runs, tiny_config):
    """Every kept checkpoint, since exports and other trainings start from any."""
    target = open_pair(tiny_config.source, tiny_config.target).target_train
    images = [target[index].image for index in range(5)]
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    batch = (
        torch.from_numpy(np.stack([(image / 255 - mean) / std for image in images]))
        .permute(0, 3, 1, 2)
        .float()
    )
    for name in ("last", "selected", "best"):
        loaded = open_run(runs[1], name)
        assert loaded.training.re_estimated_on == "target images (share 1)"
        expected = dict(re_estimated(loaded.network, [batch], 1.0).network.named_buffers())
        for buffer, value in loaded.network.named_buffers():
            torch.testing.assert_close(value, expected[buffer], rtol=1e-4, atol=1e-5)
        state = load_checkpoint(runs[0] / "checkpoints", name)
        assert RE_ESTIMATED_ON not in state
