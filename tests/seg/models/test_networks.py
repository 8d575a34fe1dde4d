"""Every network of this project in the table, a new one as well."""

import dataclasses
import json
import shutil
from unittest.mock import Mock

import pytest
import torch
from support import cases
from support.trained_networks import open_trained

from dem_apps.runtime.run_reader import read_metrics
from seg import build_model
from seg.methods.advent import DiscriminatorConfig
from seg.models.deeplabv2 import AtrousHead
from seg.models.network import parameter_groups
from seg.models.networks import NETWORKS
from seg.models.settings import ModelConfig
from seg.models.smp_network import SMP_NETWORKS
from seg.train import train

#: ``pretrained`` is whatever a folder describes: test_start_from.py.
OWN = [name for name in NETWORKS if name not in (*SMP_NETWORKS, "pretrained")]
ENCODERS = {"deeplabv2-advent": "resnet101"}


@pytest.mark.parametrize("name", OWN)
def test_it_has_the_heads_that_it_names_and_gradients_reach_all_of_it(name):
    torch.manual_seed(0)
    network = build_model(name, ENCODERS.get(name, "resnet18"), num_classes=5).train()
    logits = network(torch.randn(2, 3, 64, 96))
    assert tuple(logits) == network.heads
    assert network.heads[0] == "main"
    assert all(values.shape[:2] == (2, 5) and values.dim() == 4 for values in logits.values())
    torch.stack([values.square().mean() for values in logits.values()]).sum().backward()
    unused = [parameter for parameter in network.parameters() if parameter.grad is None]
    encoder, rest = parameter_groups(network, 0.1, 10.0)
    assert encoder["params"]
    assert not {id(parameter) for parameter in unused} & {
        id(parameter) for parameter in rest["params"]
    }
    assert len(encoder["params"]) + len(rest["params"]) == len(list(network.parameters()))


@pytest.mark.parametrize("name", ["unet", *(name for name in OWN if name not in ENCODERS)])
@torch.no_grad()
def test_a_saved_network_comes_back_bit_for_bit(name, tmp_path, monkeypatch):
    """By the class, by ``seg.load``, and from what is uploaded."""
    images, uploaded = torch.randn(2, 3, 64, 96), tmp_path / "uploaded"
    network = build_model(name, ENCODERS.get(name, "resnet18"), num_classes=5).train()
    network(images)  # moves the statistics
    network.eval().save_pretrained(tmp_path / "saved")
    hub = Mock()
    hub.create_repo.return_value.repo_id = "me/mine"
    hub.upload_folder.side_effect = lambda folder_path, **_: shutil.copytree(folder_path, uploaded)
    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", lambda **_: hub)
    again = type(network).from_pretrained(tmp_path / "saved")
    again.push_to_hub("me/mine")
    assert {file.name for file in uploaded.iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
    }
    for each in (
        again,
        open_trained(str(tmp_path / "saved")).network,
        open_trained(str(uploaded)).network,
    ):
        assert torch.equal(each(images)["main"], network(images)["main"])


def test_one_head_without_batch_norm_trains_with_what_there_is(tiny_config, tmp_path):
    """Its normalisations are of layers and groups."""
    model = ModelConfig(name="fpn", encoder="mit_b0")
    small = {
        "maps": 1,
        "discriminator": DiscriminatorConfig(channels=4),
        "run_dir": str(tmp_path / "run"),
    }
    run = train(dataclasses.replace(tiny_config, method="advent", model=model, **small))
    logged = set().union(*read_metrics(run))
    per_head = {"source/cross_entropy", "target/objective", "target/fooling", "discriminator/loss"}
    assert {f"{name}_main" for name in per_head} <= logged
    assert not any(name.endswith("_aux") for name in logged)
    how = json.loads((run / "eval.json").read_text())["protocol"]
    assert how["batch_norm"] == "none: the network has no batch normalisation"
    assert how["network"] == {
        "name": "fpn",
        "encoder": "mit_b0",
        "depth": None,
        "output_stride": None,
    }
    assert list((run / "entropy_maps").glob("*.png"))


@cases(
    ("resnet18", 8, 5),
    ("resnet18", 16, 5),
    ("resnet18", 4, 3),
    ("resnet18", 4, 5),
    ("mobilenet_v2", 16, 5),
)
def test_both_heads_have_the_feature_resolution(encoder, output_stride, depth):
    model = build_model(
        "deeplabv2", encoder=encoder, num_classes=7, output_stride=output_stride, depth=depth
    ).eval()
    logits = model(torch.randn(1, 3, 64, 96))
    assert set(logits) == {"main", "aux"}
    assert logits["main"].shape == (1, 7, 64 // output_stride, 96 // output_stride)
    assert logits["aux"].shape[1] == 7


def test_the_head_is_the_sum_of_its_four_convolutions_in_value_and_accumulated_gradient():
    torch.manual_seed(0)
    head = AtrousHead(6, 3).double()
    features = torch.randn(2, 6, 20, 30, dtype=torch.float64, requires_grad=True)
    outgoing = torch.randn(2, 3, 20, 30, dtype=torch.float64)

    def convolutions(inputs):
        return torch.stack([branch(inputs) for branch in head.branches]).sum(0)

    results = []
    for forward in (head, convolutions):
        head.zero_grad()
        features.grad = None
        for scale in (1.0, 0.5):  # the second backward adds to the gradients of the first
            logits = forward(features)
            (scale * logits * outgoing).sum().backward()
        results.append(
            [logits.detach(), features.grad, *(parameter.grad for parameter in head.parameters())]
        )
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)
