"""Records the numbers of short trainings, which test_golden.py compares with those of today.

    python tests/golden/record.py [seg] [rl]

prints which numbers moved, by how much, and replaces those of a run that moved more than by rounding.
The numbers are the same on every processor:

- The inputs are whole numbers. Random numbers are initial weights of torch and integers of numpy's
  legacy generator, whose stream never changes.
- seg.train runs in float64. Its rounding errors are far too small to change a predicted class.
- rl.train runs in float32. Recorded numbers change smoothly with the weights, and the two most
  probable actions are never close: its seed is chosen for that.
"""

import math
import sys
from pathlib import Path

import numpy as np
import rl_runs
import seg_runs
import torch
import yaml

FAMILIES = {"seg": seg_runs, "rl": rl_runs}
#: The largest change that is rounding, as a share of the largest value of a quantity.
TOLERANCE = {"seg": 1e-6, "rl": 1e-4}

#: Quantities of a run, such as a loss: a value per step, or several of the end.
Values = dict[str, list[float]]


def recorded(family: str) -> dict[str, Values]:
    """The recorded values by run."""
    return yaml.safe_load(_file(family).read_text())


def train(family: str, run: str, **changes: object) -> Values:
    """Train as a run does, with changed settings."""
    module = FAMILIES[family]
    return module.train(**{**module.RUNS[run], **changes})


def moved(family: str, before: Values, now: Values) -> dict[str, float]:
    """The quantities that moved by more than rounding, and how far; infinitely where values are missing."""
    shares = {name: _share(before.get(name, []), now.get(name, [])) for name in {**before, **now}}
    return {name: share for name, share in shares.items() if not share <= TOLERANCE[family]}


def _share(before: list[float], now: list[float]) -> float:
    """The largest change as a share of the largest value; values below a hundredth count as a hundredth."""
    if len(before) != len(now):
        return math.inf
    change = np.abs(np.subtract(before, now)).max()
    return float(change / max(1e-2, np.abs(before).max()))


def _file(family: str) -> Path:
    return Path(__file__).with_name(f"{family}.yaml")


def record(family: str) -> None:
    """Train every run of a family and replace its values where they moved."""
    before = recorded(family)
    runs = {}
    for run in FAMILIES[family].RUNS:
        now = train(family, run)
        changes = moved(family, before.get(run, {}), now)
        print(f"{family}, {run}: {changes or 'unchanged'}", flush=True)
        runs[run] = now if changes else before[run]
    text = yaml.safe_dump(runs, sort_keys=False, default_flow_style=None, width=math.inf)
    _file(family).write_text(text)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or FAMILIES:
        record(name)
