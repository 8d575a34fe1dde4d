"""The McNemar test of two arms counts pairs of one seed."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "rl_goal_test.py"


def test_the_pairs_that_differ_decide(tmp_path):
    # at the goal of 0.5 ("1") or not ("0"), seed by seed
    arms = {"none": "0000001011", "entropy 0.1": "1111110011", "same": "1111110011"}
    runs = [
        f"Some-v0,{arm},{seed},{'1000' * int(outcome)}"
        for arm, outcomes in arms.items()
        for seed, outcome in enumerate(outcomes)
    ]
    (tmp_path / "runs.csv").write_text("\n".join(["env,arm,seed,steps_to_goal", *runs]) + "\n")
    pairs = ["entropy 0.1:none", "none:entropy 0.1", "same:entropy 0.1", "adadem:none"]
    told = subprocess.run([sys.executable, SCRIPT, tmp_path / "runs.csv", *pairs], capture_output=True, text=True)
    assert told.stdout.splitlines() == [
        # six seeds one way and one the other: 2 · (1 + 7) / 2**7
        "entropy 0.1 8 of 10, none 3; only entropy 0.1 6, only none 1; p = 0.12",
        "none 3 of 10, entropy 0.1 8; only none 1, only entropy 0.1 6; p = 0.12",
        "same 8 of 10, entropy 0.1 8; only same 0, only entropy 0.1 0; p = 1",
    ]
    assert "no run of 'adadem'; there are entropy 0.1, none, same" in told.stderr
