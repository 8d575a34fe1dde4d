"""Score the last policies of a grid's runs on more episodes than their trainings ended with.

    python benchmarks/rl_last_policies.py runs/rl-paper-steps --episodes 200 --out docs/results/rl_paper_steps_runs.csv
    python -m rl.plots docs/results/rl_paper_steps_runs.csv --baseline none --out runs/rl-paper-steps-report

What it writes is what a grid's report has as runs.csv and curves.csv, without the best policies. The episodes begin
with those of the run's own eval.json, and are the same for all arms of a seed. It needs the runs' checkpoints.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl.evaluate import main as evaluate
from rl.results.described_metrics import ACTIONS
from rl.results.read_runs import Result, find_runs, read_results, write_curves, write_runs


def scored_again(result: Result, episodes: int) -> Result:
    """The result with the last policy's figures from so many episodes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "scores.json"
        evaluate(["--run", str(result.where), "--episodes", str(episodes), "--out", str(out)])
        scores = json.loads(out.read_text())
    row: dict[str, Any] = {key: value for key, value in result.row.items() if not key.startswith("best_")}
    for actions in ACTIONS:
        row |= {f"last_{name}_{actions}": figure for name, figure in scores[actions].items()}
    return replace(result, row=row | {"episodes": episodes})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", type=Path, help="folder of rl.benchmark, runs in it as ENVIRONMENT/ARM/seedN")
    parser.add_argument("--episodes", type=int, default=200, help="of each policy and kind of actions (default: 200)")
    parser.add_argument("--out", type=Path, required=True, help="a CSV file whose name has 'runs' in it")
    arguments = parser.parse_args()
    if "runs" not in arguments.out.name:
        parser.error(f"--out: {arguments.out.name} has no 'runs' in it, for which the curves' file has 'curves'")
    runs = find_runs([arguments.grid])
    results = [
        scored_again(result, arguments.episodes) for result in read_results(runs, [run.parent.name for run in runs])
    ]
    write_runs(arguments.out, results)
    write_curves(arguments.out.with_name("curves".join(arguments.out.name.rsplit("runs", 1))), results)
    print(f"{arguments.out}: {len(results)} runs")


if __name__ == "__main__":
    main()
