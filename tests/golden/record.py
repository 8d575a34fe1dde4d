"""The recorded numbers of :mod:`trajectories`, and the command that records them.

    python tests/golden/record.py [seg] [rl]

prints what changed, and by how much, and writes tests/golden/NAME.json. A file names the platform it was recorded
on. There the numbers have to be the same up to what the number of threads changes; on another processor or with
another torch sums are taken in another order, and the tolerance is wider. Where other versions of
OpenCV, MiniGrid or torch draw other pictures, rooms or actions, there is nothing to compare.
"""

import json
import math
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch
from trajectories import FAMILIES, TOLERANCES, Values, inputs

FOLDER = Path(__file__).parent
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")  # as in tests/conftest.py


def this_platform() -> dict[str, str]:
    """The platform: what the last bits of a number depend on."""
    return {
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__.partition("+")[0],
    }


def load(family: str) -> dict[str, Any]:
    """A recorded file."""
    return json.loads((FOLDER / f"{family}.json").read_text())


def deviations(recorded: Values, now: Values) -> dict[str, float]:
    """Per quantity the largest difference, as a share of the largest recorded value; infinite where values are missing.

    Values below a hundredth count as a hundredth: a quantity that should be 0 is rounding errors alone.
    """
    shares = {}
    for name in {**recorded, **now}:
        old, new = recorded.get(name, []), now.get(name, [])
        if len(old) != len(new) or not all(map(math.isfinite, new)):
            shares[name] = math.inf
        else:
            largest = max([1e-2, *map(abs, old)])
            shares[name] = max([abs(a - b) / largest for a, b in zip(old, new, strict=True)], default=0.0)
    return shares


def complaint(family: str, run: str, now: Values, document: dict[str, Any]) -> str | None:
    """The numbers that moved further than allowed, and what to do; None if none did."""
    where = document["recorded_on"]
    same, elsewhere = TOLERANCES.get(f"{family}, {run}", TOLERANCES[family])
    allowed = same if where == this_platform() else elsewhere
    recorded = document["runs"][run]["values"]
    moved = {name: share for name, share in deviations(recorded, now).items() if not share <= allowed}
    if not moved:
        return None
    lines = [f"{family}, {run}: the numbers moved by more than {allowed:g} (recorded on {where}):"]
    for name, share in moved.items():
        lines += [f"  {name} by {share:.2g}", f"    was {recorded.get(name)}", f"    is  {now.get(name)}"]
    lines.append(f"if that is meant: python tests/golden/record.py {family}, and a line in CHANGELOG.md that says why")
    return "\n".join(lines)


def record(family: str) -> None:
    """Run a family and replace its file."""
    before = load(family)["runs"]
    runs = {}
    for run, trajectory in FAMILIES[family].items():
        runs[run] = {"values": trajectory()}
        shares = deviations(before.get(run, {"values": {}})["values"], runs[run]["values"])
        moved = {name: f"{share:.1e}" for name, share in shares.items() if share}
        print(f"{family}, {run}: {moved or 'unchanged'}", flush=True)
    document = {"recorded_on": this_platform(), "inputs": inputs(family), "runs": runs}
    (FOLDER / f"{family}.json").write_text(_one_line_a_list(document) + "\n")


def _one_line_a_list(document: Any, indent: str = "") -> str:
    """JSON in which a list of numbers is one line, so that a difference shows which quantity moved."""
    if not isinstance(document, dict):
        return json.dumps(document)
    items = [f"{indent} {json.dumps(key)}: {_one_line_a_list(value, indent + ' ')}" for key, value in document.items()]
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or FAMILIES:
        record(name)
