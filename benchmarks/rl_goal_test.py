"""Exact McNemar tests over seeds of whether two arms reach the goal as often: docs/rl_answer.md and docs/appendix.md.

    python benchmarks/rl_goal_test.py docs/results/rl_larger_weight_runs.csv "entropy 0.1:none" "adadem 0.1:entropy 0.1"

Two runs of one environment and seed are a pair. The test is a two-sided binomial test over the pairs in which one of
the two reaches the goal.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

from csv_rows import Row, parser_of
from scipy.stats import binomtest

from dem_apps.errors import InputError
from dem_apps.runtime.command import run_command


def arrivals(rows: Sequence[Row], arm: str) -> dict[tuple[str, str], bool]:
    """Whether each run of the arm reached the goal, by environment and seed."""
    reached = {
        (row["env"], row["seed"]): bool(row["steps_to_goal"]) for row in rows if row["arm"] == arm
    }
    if not reached:
        raise InputError(
            f"no run of '{arm}'; there are {', '.join(sorted({row['arm'] for row in rows}))}"
        )
    return reached


def compared(rows: Sequence[Row], ours: str, theirs: str) -> str:
    """One line about two arms."""
    first, second = arrivals(rows, ours), arrivals(rows, theirs)
    pairs = sorted(first.keys() & second.keys())
    ours_only = sum(first[pair] and not second[pair] for pair in pairs)
    theirs_only = sum(second[pair] and not first[pair] for pair in pairs)
    apart = ours_only + theirs_only
    p = binomtest(ours_only, apart).pvalue if apart else 1.0
    return (
        f"{ours} {sum(first[pair] for pair in pairs)} of {len(pairs)}, {theirs} {sum(second[pair] for pair in pairs)}; "
        f"only {ours} {ours_only}, only {theirs} {theirs_only}; p = {p:.2g}"
    )


def two_arms(text: str) -> tuple[str, str]:
    """An argument of the command line."""
    ours, colon, theirs = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(
            f"expected two arms such as 'entropy 0.1:none', found {text!r}"
        )
    return ours, theirs


def main() -> None:
    """The command line."""
    parser = parser_of(__doc__)
    parser.add_argument("runs", type=Path, help="a runs.csv of rl.plots or rl.benchmark")
    parser.add_argument(
        "pairs", type=two_arms, nargs="+", metavar="ARM:ARM", help="two arms to compare"
    )
    arguments = parser.parse_args()
    with arguments.runs.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for pair in arguments.pairs:
        print(compared(rows, *pair))


if __name__ == "__main__":
    run_command(main)
