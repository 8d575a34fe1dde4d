"""Short seeded trainings have their recorded numbers; record.py records them."""

from dataclasses import replace

import pytest
import record
from record import A2C, ADVENT, FAMILIES, RL, inputs
from support import cases

RUNS = [(family, run) for family, runs in FAMILIES.items() for run in runs]
MOMENTUM = {"momentum": 0.11}  # a tenth more


@pytest.mark.parametrize(("family", "run"), RUNS, ids=[", ".join(each) for each in RUNS])
def test_the_numbers_are_those_that_were_recorded(family, run):
    needs_the_recorded_inputs(family)
    complaint = record.complaint(family, run, FAMILIES[family][run](), record.load(family))
    assert complaint is None, complaint


def needs_the_recorded_inputs(family: str) -> None:
    if record.load(family)["inputs"] != inputs(family):
        pytest.skip(f"{family}: its pictures, rooms or drawn actions are not those of the recording (other versions)")


@cases(
    ("seg", "minent adadem balanced", MOMENTUM),
    ("seg", "advent adadem", {"weights": replace(ADVENT["weights"], adversarial_main=101.0)}),
    ("rl", "ppo fast adadem", MOMENTUM),
    ("rl", "ppo fast entropy", {"ent_coef": 1.01 * RL.ent_coef}),
    ("rl", "a2c adadem", {"ent_coef": 1.01 * A2C["ent_coef"]}),
)
def test_a_small_change_exceeds_the_tolerance_of_any_platform(family, run, planted):
    needs_the_recorded_inputs(family)
    elsewhere = {**record.load(family), "recorded_on": {"machine": "another"}}
    assert record.complaint(family, run, FAMILIES[family][run](**planted), elsewhere) is not None
