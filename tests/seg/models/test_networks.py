"""Every network of this project in the table, a new one as well."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from seg import build_model
from seg.config import ModelConfig
from seg.models import NETWORKS
from seg.models.network import parameter_groups
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
    assert not {id(parameter) for parameter in unused} & {id(parameter) for parameter in rest["params"]}
    assert len(encoder["params"]) + len(rest["params"]) == len(list(network.parameters()))


@pytest.mark.parametrize("name", [name for name in OWN if name not in ENCODERS])
def test_it_is_trained_scored_and_saved(name, tiny_config, tmp_path):
    config = dataclasses.replace(tiny_config, model=ModelConfig(name=name), maps=1, run_dir=str(tmp_path / "run"))
    run = train(config)
    scores = json.loads((run / "eval.json").read_text())
    assert scores["protocol"]["network"] == config.model.architecture()
    again = dataclasses.replace(config, model=dataclasses.replace(config.model, start_from=str(run)), run_dir=None)
    assert train(dataclasses.replace(again, run_dir=str(tmp_path / "again"), max_steps=1)).is_dir()
