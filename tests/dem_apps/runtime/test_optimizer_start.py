"""A command that compiles nothing does not import torch's compiler, and its optimisers do what they always do."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

PROGRAM = """
import sys, torch
from dem_apps.runtime.optimizer_start import start_without_compiler
if "{when}" == "before":
    start_without_compiler()
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.Adam([weight], lr=0.1)
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
if "{when}" == "after":
    start_without_compiler()
weight.square().sum().backward()
optimizer.step()
optimizer.add_param_group({{"params": [torch.nn.Parameter(torch.zeros(2))]}})
print(weight.tolist(), len(optimizer.state_dict()["param_groups"]))
"""


@pytest.mark.skipif(not hasattr(torch, "_compile"), reason="this torch imports its compiler by other ways")
def test_the_compiler_is_not_imported_and_numbers_are_the_same() -> None:
    said = {}
    for when in ("before", "after"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(when=when)], capture_output=True, text=True, check=True
        )
        said[when] = done.stdout.splitlines()
    assert said["before"][0] == "False"
    assert said["after"][0] == "True", "torch no longer does what this is for: take it away"
    assert said["before"][1:] == said["after"][1:]
