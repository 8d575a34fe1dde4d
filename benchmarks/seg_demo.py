"""The demo pair's table: six ways to train, several seeds, through ``python -m seg.train`` itself.

    python benchmarks/seg_demo.py --seeds 0 1 2 --workers 2

Every run has its own process, one thread and its own folder; a finished run is not repeated and a killed one is
resumed, so the command can be given again at any time. After each run the CSV is written anew from the run folders.

The weight of the objective is chosen beforehand, with target labels, on a seed that the table does not contain:

    python benchmarks/seg_demo.py --sweep 0.01 0.03 0.2 --seeds 10 --out docs/results/seg_demo_sweep.csv
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path

from grid import Job, mean_and_deviation, run_grid, write_csv

RAREST = ("wall", "fence", "traffic light", "traffic sign", "rider", "train", "motorcycle", "bicycle")
COLUMNS = {
    "miou": ("mIoU %", 100, 2),
    "miou_rarest": ("8 rarest classes %", 100, 2),
    "pixel_accuracy": ("pixel accuracy %", 100, 2),
    "mean_entropy_normalised": ("entropy / log C", 1, 3),
    "calibration_error": ("calibration error", 1, 3),
}


@dataclass(frozen=True)
class Run:
    """One training: an arm with a weight of the objective and a seed."""

    method: str
    loss: str
    reduction: str
    weight: float
    seed: int

    @property
    def arm(self) -> str:
        """What the table calls it."""
        if self.method == "source":
            return "source only"
        return "control (target passes, no loss)" if self.loss == "none" else f"{self.loss}, {self.reduction}"

    @property
    def job(self) -> Job:
        """The training command."""
        flags = {
            "--method": self.method, "--loss": self.loss, "--reduction": self.reduction, "--seed": str(self.seed),
            "--weights.target-main": f"{self.weight:g}", "--weights.target-aux": f"{self.weight / 5:g}",
        }  # fmt: skip
        name = f"{self.method}-{self.loss}-{self.reduction}-{self.weight:g}-seed{self.seed}"
        return Job(name, "seg.train", tuple(part for item in flags.items() for part in item))


def arms(seed: int, weights: dict[tuple[str, str], float]) -> list[Run]:
    """The six arms of one seed; the weight does not matter to the first two."""
    runs = [Run("source", "none", "mean", 0.0, seed), Run("minent", "none", "mean", 0.0, seed)]
    return runs + [Run("minent", loss, reduction, weight, seed) for (loss, reduction), weight in weights.items()]


def collect(runs: list[Run], folder: Path) -> list[dict[str, str]]:
    """A row per finished run."""
    rows = []
    for run in runs:
        scores = run.job.scores(folder)
        if scores is None:
            continue
        rarest = statistics.mean(scores["per_class_iu"][name] or 0.0 for name in RAREST)
        numbers = {name: scores[name] for name in COLUMNS if name != "miou_rarest"} | {"miou_rarest": rarest}
        numbers["best_miou_with_labels"] = scores["best_miou_chosen_with_target_labels"]
        row = {"arm": run.arm, "weight": f"{run.weight:g}", "seed": str(run.seed)}
        rows.append({**row, **{name: f"{value:.5f}" for name, value in numbers.items()}})
    return rows


def print_table(rows: list[dict[str, str]]) -> None:
    """Mean ± standard deviation over seeds, as Markdown."""
    header = ["arm", "weight", "seeds", *(title for title, _, _ in COLUMNS.values())]
    print("\n" + "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header))))
    for arm, weight in dict.fromkeys((row["arm"], row["weight"]) for row in rows):
        group = [row for row in rows if (row["arm"], row["weight"]) == (arm, weight)]
        cells = [
            mean_and_deviation([scale * float(row[name]) for row in group], digits)
            for name, (_, scale, digits) in COLUMNS.items()
        ]
        print(f"| {arm} | {weight} | {len(group)} | {' | '.join(cells)} |")


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sweep", type=float, nargs="*", default=[], help="weights to try for every objective")
    parser.add_argument("--weight", action="append", default=[], metavar="LOSS:REDUCTION=W", help="default 0.03")
    parser.add_argument("--folder", type=Path, default=Path("runs/seg-demo"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/seg_demo.csv"))
    options = parser.parse_args()
    weights = {(loss, reduction): 0.03 for loss in ("entropy", "adadem") for reduction in ("mean", "balanced")}
    for text in options.weight:
        key, _, value = text.partition("=")
        loss, _, reduction = key.partition(":")
        weights[loss, reduction] = float(value)
    runs: list[Run] = []
    for seed in options.seeds:
        if options.sweep:
            runs += [run for w in options.sweep for run in arms(seed, dict.fromkeys(weights, w))[2:]]
        else:
            runs += arms(seed, weights)
    jobs = [run.job for run in runs]
    run_grid(jobs, options.folder, options.workers, lambda: write_csv(collect(runs, options.folder), options.out))
    print_table(collect(runs, options.folder))


if __name__ == "__main__":
    main()
