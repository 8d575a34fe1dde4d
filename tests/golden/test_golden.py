"""Short trainings have their recorded numbers; record.py records them and says why they are the same everywhere."""

from dataclasses import replace

import pytest
from record import FAMILIES, moved, recorded, train
from seg_runs import ADVENT
from support import cases

RUNS = [(family, run) for family, module in FAMILIES.items() for run in module.RUNS]
#: A relative change as of rounding, in float64 and in float32.
ROUNDING = {"seg": 1e-9, "rl": 1e-6}


@pytest.mark.parametrize(("family", "run"), RUNS, ids=[", ".join(each) for each in RUNS])
def test_the_numbers_are_those_that_were_recorded(family, run):
    changes = moved(family, recorded(family)[run], train(family, run))
    assert not changes, (
        f"if it is meant: python tests/golden/record.py {family}, and a line in CHANGELOG.md"
    )


@cases(
    ("seg", "minent adadem balanced", lambda factor: {"momentum": factor * 0.1}),
    ("seg", "advent adadem", lambda factor: {"weights": adversarial(factor * 100)}),
    ("rl", "ppo fast adadem", lambda factor: {"momentum": factor * 0.1}),
    ("rl", "ppo fast entropy", lambda factor: {"ent_coef": factor * 0.3}),
    ("rl", "a2c adadem", lambda factor: {"ent_coef": factor * 1.0}),
)
def test_one_percent_is_seen_and_rounding_is_not(family, run, changed):
    before = recorded(family)[run]
    assert moved(family, before, train(family, run, **changed(1.01)))
    assert not moved(family, before, train(family, run, **changed(1 + ROUNDING[family])))


def adversarial(weight):
    return replace(ADVENT["weights"], adversarial_main=weight)
