"""The McNemar test of two arms counts pairs of one seed."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "rl_goal_test.py"


def written(folder: Path, arms: dict[str, str]) -> Path:
    """A report's table of runs that are at the goal of 0.5 ("1") or are not ("0"), seed by seed."""
    runs = ["env,arm,seed,steps_to_goal"]
    for arm, outcomes in arms.items():
        runs += [f"Some-v0,{arm},{seed},{'1000' if outcome == '1' else ''}" for seed, outcome in enumerate(outcomes)]
    file = folder / "runs.csv"
    file.write_text("\n".join(runs) + "\n")
    return file


def told(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_the_pairs_that_differ_decide(tmp_path: Path) -> None:
    file = written(tmp_path, {"none": "0000001011", "entropy 0.1": "1111110011"})
    lines = told(file, "entropy 0.1:none", "none:entropy 0.1").stdout.splitlines()
    # six seeds one way and one the other: 2 · (1 + 7) / 2**7
    assert lines[0] == "entropy 0.1 8 of 10, none 3; only entropy 0.1 6, only none 1; p = 0.12"
    assert lines[1] == "none 3 of 10, entropy 0.1 8; only none 1, only entropy 0.1 6; p = 0.12"


def test_equal_arms_and_an_arm_that_is_missing(tmp_path: Path) -> None:
    file = written(tmp_path, {"none": "0101", "adadem": "0101"})
    assert told(file, "none:adadem").stdout == "none 2 of 4, adadem 2; only none 0, only adadem 0; p = 1\n"
    assert "no run of 'entropy'; there are adadem, none" in told(file, "entropy:none").stderr
