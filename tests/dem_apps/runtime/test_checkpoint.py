"""Checkpoints bring back what was saved, run no code, and are replaced in one step."""

import copy
import os
from collections import OrderedDict

import numpy as np
import pytest
import torch
from support import refuses, same

from dem_apps.errors import NotFiniteError
from dem_apps.reduction import all_finite
from dem_apps.runtime.checkpoint import load_checkpoint, load_state, save_checkpoint
from dem_apps.runtime.reproducibility import random_states

STATE = {
    "step": 7,
    "weights": OrderedDict(
        a=torch.arange(6.0).view(2, 3).t(), half=torch.ones(3, dtype=torch.bfloat16)
    ),
    "optimizer": {
        "state": {0: {"step": torch.tensor(3.0)}, 1: {}},
        "param_groups": [{"betas": (0.9, 0.99)}],
    },
    "arrays": {
        "observations": np.arange(12, dtype=np.uint8).reshape(3, 4).T,
        # of one channel, as SB3's VecTransposeImage shows it
        "grey": np.zeros((1, 2, 3, 1), np.float32).transpose(0, 3, 1, 2),
        "none": np.zeros((0, 2)),
        "backwards": np.arange(3)[::-1],
        "fixed": np.frombuffer(b"abc", np.uint8),
    },
    "plain": [1, 2.5, None, "straße", True, (1, (2,)), 2**70, np.float64(0.1), np.int32(4)],
    "random": None,
}


def test_a_state_comes_back(tmp_path):
    state = {**STATE, "random": random_states()}
    file = save_checkpoint(tmp_path / "checkpoints", "last", state)
    loaded = load_checkpoint(file.parent, "last")
    assert same(loaded, state)
    for name in ("observations", "grey"):
        assert loaded["arrays"][name].strides == state["arrays"][name].strides
    assert loaded["weights"]["a"].stride() == (1, 3)
    big = torch.zeros(100_000)
    smaller = save_checkpoint(tmp_path, "view", {"step": 0, "row": big[:1]})
    assert smaller.stat().st_size < 10_000  # of a view not the storage


@pytest.mark.parametrize("value", [torch.tensor([1.0, float("nan")]), np.array([np.inf])])
def test_values_that_are_not_finite_are_not_saved(value, tmp_path):
    save_checkpoint(tmp_path, "last", STATE)
    with pytest.raises(
        NotFiniteError, match=r"'/deep/0' holds NaN or infinite values .* is intact$"
    ):
        save_checkpoint(tmp_path, "last", {"step": 8, "deep": [value]})
    assert load_checkpoint(tmp_path, "last")["step"] == 7
    assert not all_finite([torch.tensor(float("nan"))])
    assert all_finite([])


def test_a_missing_checkpoint_names_those_that_are_there(tmp_path):
    save_checkpoint(tmp_path, "last", STATE)
    save_checkpoint(tmp_path, "best", STATE)
    refuses(r"has no checkpoint 'selected', but best, last$", load_checkpoint, tmp_path, "selected")


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    class Code:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "run"),)

    torch.save({"step": 0, "x": Code()}, tmp_path / "last.pt")
    refuses("damaged, or not a checkpoint of this program", load_checkpoint, tmp_path, "last")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.99])
def test_a_file_that_was_cut_short_is_one_sentence(part, tmp_path):
    file = save_checkpoint(tmp_path, "last", STATE)
    content = file.read_bytes()
    file.write_bytes(content[: int(part * len(content))])
    refuses(
        r"last\.pt: is damaged, or not a checkpoint of this program \(",
        load_checkpoint,
        tmp_path,
        "last",
    )


@pytest.mark.parametrize("state", [[1], {"weights": torch.ones(1)}, {"step": "x"}])
def test_what_another_program_saved_is_one_sentence(state, tmp_path):
    torch.save(state, tmp_path / "last.pt")
    refuses(r"last\.pt: is damaged, or not a checkpoint", load_checkpoint, tmp_path, "last")


def test_states_that_do_not_fit_are_one_sentence():
    network = torch.nn.Linear(2, 3)
    optimizer = torch.optim.Adam(network.parameters())
    refuses(
        r"^x: a value does not fit this .*size mis",
        load_state,
        network,
        torch.nn.Linear(2, 4).state_dict(),
        "x",
    )
    for wrong in ({}, None, torch.optim.Adam([torch.zeros(1)]).state_dict()):
        refuses(r"^x: a value does not fit this run", load_state, optimizer, wrong, "x")
    state = copy.deepcopy(optimizer.state_dict())
    load_state(optimizer, state, "x")
