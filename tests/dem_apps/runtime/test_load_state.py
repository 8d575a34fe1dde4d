"""What a checkpoint brings is compared with what it goes into, before anything is put back."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from dem_apps.runtime.load_state import checked_step
from torch import nn

from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import fitting, load_state
from dem_apps.runtime.files import required
from dem_apps.runtime.reproducibility import random_states, restore_random_states


def trained(kind: str) -> tuple[nn.Module, Any]:
    module = nn.Linear(3, 2)
    makers = {
        "adam": lambda p: torch.optim.Adam(p, 0.1),
        "adamw": lambda p: torch.optim.AdamW(p, 0.1),
        "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    }
    optimizer = makers[kind](module.parameters())
    module(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    return module, optimizer


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_what_was_saved_comes_back(kind: str) -> None:
    module, optimizer = trained(kind)
    other, other_optimizer = trained(kind)
    optimizer.param_groups[0]["lr"] = 0.05
    load_weights(other, copy.deepcopy(module.state_dict()), "x")
    load_optimizer(other_optimizer, copy.deepcopy(optimizer.state_dict()), "x")
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))
    assert str(other_optimizer.state_dict()) == str(optimizer.state_dict())


def test_an_optimizer_that_has_made_no_step_is_put_back_as_that() -> None:
    _, optimizer = trained("adam")
    fresh = torch.optim.Adam(nn.Linear(3, 2).parameters(), 0.1)
    load_optimizer(optimizer, fresh.state_dict(), "x")
    assert not optimizer.state_dict()["state"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("weight"), r"1 of its names are missing \(weight\)"),
        (lambda w: w.update(extra=torch.ones(1)), r"1 of its names are unknown \(extra\)"),
        (lambda w: w.update({3: torch.ones(1)}), r"unknown \(3\)"),
        (lambda w: w.update(weight=torch.ones(2, 4)), r"weight has shape \[2, 4\] instead of \[2, 3\]"),
        (lambda w: w.update(weight=torch.ones(2, 3).double()), "weight is torch.float64 instead of torch.float32"),
        (lambda w: w.update(weight=torch.ones(2, 3).to_sparse()), "weight is a Tensor, no plain tensor"),
        (lambda w: w.update(weight=[[1.0] * 3] * 2), "weight is a list, no plain tensor"),
        (lambda w: w.update(weight=None), "weight is a NoneType, no plain tensor"),
        (lambda w: w["bias"].fill_(torch.nan), "bias holds NaN or infinite values"),
        (lambda w: w["bias"].fill_(-torch.inf), "bias holds NaN or infinite values"),
    ],
)
def test_weights_that_do_not_fit(change: Any, message: str) -> None:
    module, _ = trained("adam")
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    change(weights)
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(InputError, match=f"^here: .*{message}"):
        load_weights(module, weights, "here")
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("weights", [None, [], 3, "x", torch.ones(2)])
def test_weights_that_are_no_mapping(weights: Any) -> None:
    with pytest.raises(InputError, match="here: expected tensors by name"):
        load_weights(nn.Linear(2, 2), weights, "here")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("state"), "holds no 'state'"),
        (lambda s: s.update(state=[]), "'state' is of the wrong type"),
        (lambda s: s.update(param_groups=[]), "parameter groups are not those"),
        (lambda s: s.update(param_groups=[3]), "parameter groups are not those"),
        (lambda s: s["param_groups"][0].update(params=[0, 1, 2]), "parameter groups are not those"),
        (lambda s: s["param_groups"][0].update(lr="fast"), "'lr' is 'fast', not a finite number"),
        (lambda s: s["param_groups"][0].update(lr=float("nan")), "'lr' is nan"),
        (lambda s: s["param_groups"][0].pop("lr"), "'lr' is None"),
        (lambda s: s["state"].update({9: s["state"][0]}), "a parameter 9"),
        (lambda s: s["state"].update({"0": s["state"][0]}), "a parameter '0'"),
        (lambda s: s["state"].update({0: 3}), "parameter 0: its moments are not those"),
        (lambda s: s["state"][0].pop("exp_avg"), "parameter 0: its moments are not those"),
        (lambda s: s["state"][0].update(exp_avg=torch.ones(3)), r"exp_avg has shape \[3\] instead of \[2, 3\]"),
        (lambda s: s["state"][0].update(exp_avg=3.0), "exp_avg is a float, no plain tensor"),
        (lambda s: s["state"][0]["exp_avg_sq"].fill_(torch.inf), "exp_avg_sq holds NaN or infinite"),
        (lambda s: s["state"][0].update(step=-1), "step is -1"),
        (lambda s: s["state"][0].update(step=torch.ones(2)), "step has shape"),
        (lambda s: s["state"][0].update(step="x"), "step is a str"),
    ],
)
def test_moments_that_do_not_fit(change: Any, message: str) -> None:
    _, optimizer = trained("adam")
    state = copy.deepcopy(optimizer.state_dict())
    change(state)
    with pytest.raises(InputError, match=f"^here.*{message}"):
        load_optimizer(optimizer, state, "here")


def test_of_a_group_only_the_rate_is_taken() -> None:
    _, optimizer = trained("adam")
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0].update(lr=0.3, betas="x", eps=None, differentiable=lambda: None)
    load_optimizer(optimizer, state, "here")
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]) == (0.3, (0.9, 0.999))


def test_steps_and_parts() -> None:
    assert checked_step({"step": 3}, "x") == 3
    for wrong in ({}, {"step": -1}, {"step": True}, {"step": "3"}, {"step": 1.5}, {"step": 10**30}, [], None):
        with pytest.raises(InputError, match=r"^x: "):
            checked_step(wrong, "x")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^x: 'a' is of the wrong type \(bool\)$"):
        required({"a": True}, "x", a=int)


@pytest.mark.parametrize(
    "error", [KeyError("a"), TypeError("b"), ValueError("c"), RuntimeError("d"), AttributeError("e")]
)
def test_whatever_is_raised_while_putting_back(error: Exception) -> None:
    with (
        pytest.raises(InputError, match=f"^x: what it holds does not fit this run .{type(error).__name__}"),
        fitting("x"),
    ):
        raise error
    with pytest.raises(KeyboardInterrupt), fitting("x"):
        raise KeyboardInterrupt
    with pytest.raises(InputError, match=r"^own words$"), fitting("x"):
        raise InputError("own words")


def test_random_states_that_would_crash_the_process() -> None:
    """NumPy takes a position far outside of its state without a word and then reads there: a segmentation fault."""
    good = random_states()
    wrong: list[Any] = [None, 3, {}, {**good, "python": (3, (1, 2), None)}, {**good, "torch": torch.zeros(7)}]
    wrong += [{**good, "numpy": (*good["numpy"][:2], position, 0, 0.0)} for position in (10**9, -1, 625, "x", None)]
    wrong += [{**good, "numpy": ("MT19937", np.zeros(3, np.uint32), 0, 0, 0.0)}, {**good, "numpy": ()}]
    for states in wrong:
        with pytest.raises(InputError, match="random states"):
            restore_random_states(states)
    restore_random_states(good)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == _drawn(good)


def _drawn(states: dict[str, Any]) -> tuple[float, float, float]:
    restore_random_states(states)
    return random.random(), np.random.rand(), torch.rand(1).item()
