"""Short seeded trainings have their recorded numbers; record.py records them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import pytest
import record
from trajectories import A2C, ADVENT, FAMILIES, RL, SEG, inputs, reinforcement, segmentation

from dem_apps import AdaDEM, AdaDEMMEC

RUNS = [(family, run) for family, runs in FAMILIES.items() for run in runs]
TABLES = [("core", "adadem, mean"), ("core", "adadem-mec, balanced"), ("seg", "minent adadem balanced")]


@pytest.mark.parametrize(("family", "run"), RUNS, ids=[", ".join(each) for each in RUNS])
def test_the_numbers_are_those_that_were_recorded(family: str, run: str) -> None:
    needs_the_recorded_inputs(family)
    complaint = record.complaint(family, run, FAMILIES[family][run](), record.load(family))
    assert complaint is None, complaint


def needs_the_recorded_inputs(family: str) -> None:
    if record.load(family)["inputs"] != inputs(family):
        pytest.skip(f"{family}: its pictures, rooms or drawn actions are not those of the recording (other versions)")


def weight(name: str, method: str) -> Callable[[], record.Values]:
    """A training on which a weight of the loss is 1 % larger."""
    changes = dict(ADVENT) if method == "advent" else {"reduction": "balanced"}
    weights = changes.get("weights", SEG.weights)
    changes["weights"] = dataclasses.replace(weights, **{name: 1.01 * getattr(weights, name)})
    return functools.partial(segmentation, loss="adadem", **changes)


@pytest.mark.parametrize(
    ("family", "run", "planted"),
    [
        ("seg", "minent adadem balanced", weight("target_main", "minent")),
        ("seg", "advent adadem", weight("adversarial_main", "advent")),
        ("rl", "ppo fast adadem", functools.partial(reinforcement, loss="adadem", ent_coef=1.01 * RL.ent_coef)),
        ("rl", "ppo fast entropy", functools.partial(reinforcement, loss="entropy", ent_coef=1.01 * RL.ent_coef)),
        ("rl", "a2c adadem", functools.partial(reinforcement, **{**A2C, "ent_coef": 1.01 * A2C["ent_coef"]})),
    ],
)
def test_one_percent_of_a_weight_exceeds_the_tolerance_of_any_platform(
    family: str, run: str, planted: Callable[[], record.Values]
) -> None:
    needs_the_recorded_inputs(family)
    assert record.complaint(family, run, planted(), elsewhere(family)) is not None


@pytest.mark.parametrize(("family", "run"), [*TABLES, ("rl", "ppo fast adadem"), ("rl", "a2c adadem")])
def test_another_momentum_exceeds_the_tolerance_of_any_platform(
    family: str, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_the_recorded_inputs(family)
    for objective in (AdaDEM, AdaDEMMEC):
        first, *others = objective.__init__.__defaults__
        assert first == 0.1
        monkeypatch.setattr(objective.__init__, "__defaults__", (0.11, *others))
    assert record.complaint(family, run, FAMILIES[family][run](), elsewhere(family)) is not None


def elsewhere(family: str) -> dict:
    """A recorded file as of another machine, with the wider tolerance."""
    return {**record.load(family), "recorded_on": {"machine": "another"}}
