"""DoorKey under three entropy terms, several seeds, through ``python -m rl.train`` itself.

    python benchmarks/rl_doorkey.py --seeds 0 1 2 --workers 2

A finished run is not repeated and a killed one is resumed, so the command can be given again at any time. The figures
are those of the runs' eval.json: 10 episodes that no evaluation during training has seen.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from grid import Job, mean_and_deviation, run_grid, write_csv

ENVIRONMENT = "MiniGrid-DoorKey-5x5-v0"
LOSSES = ("adadem", "entropy", "none")


def job(loss: str, seed: int) -> Job:
    """One training."""
    # SB3's own update: the fast one has its numbers up to rounding only, which a whole training magnifies
    flags = ("--env", ENVIRONMENT, "--loss", loss, "--seed", str(seed), "--update", "sb3")
    return Job(f"{loss}-seed{seed}", "rl.train", flags)


def steps_to_solve(run: Path) -> str:
    """The first evaluation during training whose sampled mean return is above 0.9; empty if there was none."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return next((str(line["step"]) for line in lines if line.get("eval/mean_return_sampled", 0.0) > 0.9), "")


def collect(losses: list[str], seeds: list[int], folder: Path) -> list[dict[str, str]]:
    """Two rows per finished run: the last and the best policy."""
    rows = []
    for loss in losses:
        for seed in seeds:
            scores = job(loss, seed).scores(folder)
            for policy in [scores, scores["best"]] if scores is not None else []:
                row = {"env": ENVIRONMENT, "loss": loss, "seed": str(seed), "checkpoint": policy["checkpoint"]}
                for actions in ("sampled", "greedy"):
                    for name in ("mean_return", "std_return", "success_rate"):
                        row[f"{name}_{actions}"] = f"{policy[actions][name]:.4f}"
                rows.append({**row, "steps_to_0.9": steps_to_solve(folder / job(loss, seed).name)})
    return rows


def print_table(rows: list[dict[str, str]]) -> None:
    """The last policies, as Markdown: a row per loss."""
    print("\n| entropy term | seeds | sampled return | greedy return | solved (sampled > 0.9) | steps to 0.9 |")
    print("|---|---|---|---|---|---|")
    for loss in dict.fromkeys(row["loss"] for row in rows):
        group = [row for row in rows if row["loss"] == loss and row["checkpoint"] == "last"]
        sampled, greedy = ([float(row[f"mean_return_{kind}"]) for row in group] for kind in ("sampled", "greedy"))
        solved = sum(value > 0.9 for value in sampled)
        steps = ", ".join(row["steps_to_0.9"] or "never" for row in group)
        print(
            f"| {loss} | {len(group)} | {mean_and_deviation(sampled, 3)} | {mean_and_deviation(greedy, 3)} "
            f"| {solved} of {len(group)} | {steps} |"
        )


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--losses", nargs="+", default=list(LOSSES))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("runs/rl-doorkey"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/rl_doorkey.csv"))
    options = parser.parse_args()
    jobs = [job(loss, seed) for loss in options.losses for seed in options.seeds]

    def save() -> None:
        write_csv(collect(options.losses, options.seeds, options.folder), options.out)

    run_grid(jobs, options.folder, options.workers, save)
    print_table(collect(options.losses, options.seeds, options.folder))


if __name__ == "__main__":
    main()
