import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import nn

from dem_apps.errors import InputError
from seg.config import TrainConfig
from seg.models.batch_norm import BATCH_NORM_POLICIES, feed_batch_norm, set_up_batch_norm, statistics
from seg.models.settings import ModelConfig

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
    return nn.functional.batch_norm(features, None, None, model[1].weight, model[1].bias, training=True)


@pytest.mark.parametrize("policy", BATCH_NORM_POLICIES)
@pytest.mark.parametrize("domain", DOMAINS)
def test_a_policy_decides_what_normalises_and_what_moves(model, images, policy, domain):
    moves = {"trainable": DOMAINS, "affine-frozen": DOMAINS, "frozen": (), "source": ("source",), "target": ("target",)}
    set_up_batch_norm(model, policy, synchronised=False)
    trained = policy in ("trainable", "source", "target")
    assert [each.requires_grad for each in model.parameters()] == [True, True, trained, trained]
    before = {name: value.clone() for name, value in model[1].named_buffers()}
    model.train()
    feed_batch_norm(model, policy, domain)
    output = model(images)
    after = dict(model[1].named_buffers())
    if policy == "frozen":
        expected = nn.functional.batch_norm(
            model[0](images), before["running_mean"], before["running_var"], model[1].weight, model[1].bias
        )
    else:
        expected = by_batch(model, images)
    torch.testing.assert_close(output, expected)
    if domain in moves[policy]:
        features = model[0](images).detach()
        torch.testing.assert_close(after["running_mean"], 0.1 * features.mean((0, 2, 3)))
        torch.testing.assert_close(after["running_var"], 0.9 + 0.1 * features.var((0, 2, 3)))
    else:
        assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("policy", "how", "whose"),
    [
        ("trainable", {}, "moved by both domains"),
        ("target", {}, "moved by target alone"),
        ("source", {"labelled": ("source", "target"), "uses_target": False}, "moved by both domains"),
        ("target", {"uses_target": False}, "those it started with"),
        ("frozen", {"re_estimated_on": "target images"}, "re-estimated on target images after training"),
    ],
)
def test_whose_statistics_a_network_has_is_said(model, policy, how, whose):
    assert statistics(policy, model, **how) == whose


def test_the_default_moves_by_the_domain_that_is_scored(model):
    for after, given, network, expected in (
        ("none", None, model, "target"), ("target", None, model, "source"), ("none", "frozen", model, "frozen"),
        ("none", None, model[0], "trainable"),
    ):  # fmt: skip
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
    with pytest.raises(InputError, match=r"--model.batch-norm: processes on CPUs cannot share batch statistics"):
        set_up_batch_norm(model, "target", synchronised=True)
