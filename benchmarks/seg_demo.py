"""The demo pair's table: six ways to train, several seeds, through ``python -m seg.train`` itself.

    python benchmarks/seg_demo.py --seeds 0 1 2 --workers 2

Every run has its own process, one thread and its own folder; a finished run is not repeated and a killed one is
resumed, so the command can be given again at any time. After each run the CSV is written anew from the run folders.

The weight of the objective is chosen beforehand on a seed of its own, which the table does not contain:

    python benchmarks/seg_demo.py --sweep 0.01 0.1 --seeds 10 --workers 2
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TAIL = ("wall", "fence", "traffic light", "traffic sign", "rider", "train", "motorcycle", "bicycle")


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
    def name(self) -> str:
        """Folder name."""
        return f"{self.method}-{self.loss}-{self.reduction}-{self.weight:g}-seed{self.seed}"

    def command(self, folder: Path) -> list[str]:
        """The training command; resumes where a checkpoint is."""
        flags = {
            "--method": self.method, "--loss": self.loss, "--reduction": self.reduction, "--seed": str(self.seed),
            "--weights.target-main": f"{self.weight:g}", "--weights.target-aux": f"{self.weight / 5:g}",
            "--run-dir": str(folder / self.name),
        }  # fmt: skip
        resume = ["--resume"] if (folder / self.name / "checkpoints" / "last.json").is_file() else []
        return [sys.executable, "-m", "seg.train", *(part for item in flags.items() for part in item), *resume]


def arms(seed: int, weights: dict[tuple[str, str], float]) -> list[Run]:
    """The six arms of one seed; the weight does not matter to the first two."""
    runs = [Run("source", "none", "mean", 0.1, seed), Run("minent", "none", "mean", 0.1, seed)]
    return runs + [Run("minent", loss, reduction, weight, seed) for (loss, reduction), weight in weights.items()]


def execute(run: Run, folder: Path) -> None:
    """Run one training unless it is finished; its output goes to a file beside the folder."""
    if (folder / run.name / "eval.json").is_file():
        return
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(folder / f"{run.name}.log", "a", encoding="utf-8") as log:
        status = subprocess.run(run.command(folder), env=environment, stdout=log, stderr=log).returncode
    print(f"{run.name}: {'done' if status == 0 else f'failed with status {status}, see its .log'}", flush=True)


def write_csv(runs: Iterable[Run], folder: Path, out: Path) -> list[dict[str, str]]:
    """Collect the finished runs' scores; returns the rows."""
    rows = []
    for run in runs:
        file = folder / run.name / "eval.json"
        if not file.is_file():
            continue
        scores = json.loads(file.read_text())
        tail = statistics.mean(scores["per_class_iu"][name] or 0.0 for name in TAIL)
        numbers = {
            "miou": scores["miou"], "miou_tail": tail, "pixel_accuracy": scores["pixel_accuracy"],
            "mean_entropy_normalised": scores["mean_entropy_normalised"],
            "calibration_error": scores["calibration_error"],
            "best_miou_with_labels": scores["best_miou_chosen_with_target_labels"],
        }  # fmt: skip
        row = {"arm": run.arm, "weight": f"{run.weight:g}", "seed": str(run.seed)}
        rows.append({**row, **{name: f"{value:.5f}" for name, value in numbers.items()}})
    if rows:
        out.parent.mkdir(parents=True, exist_ok=True)
        with open(out, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return rows


def print_table(rows: list[dict[str, str]]) -> None:
    """Mean ± standard deviation over seeds, as Markdown."""
    print("\n| arm | weight | seeds | mIoU % | 8 rarest classes % | pixel accuracy % | entropy / log C | ECE |")
    print("|---|---|---|---|---|---|---|---|")
    for arm, weight in dict.fromkeys((row["arm"], row["weight"]) for row in rows):
        group = [row for row in rows if (row["arm"], row["weight"]) == (arm, weight)]
        cells = [
            _cell(group, "miou", 100, 2),
            _cell(group, "miou_tail", 100, 2),
            _cell(group, "pixel_accuracy", 100, 2),
        ]
        cells += [_cell(group, "mean_entropy_normalised", 1, 3), _cell(group, "calibration_error", 1, 3)]
        print(f"| {arm} | {weight} | {len(group)} | {' | '.join(cells)} |")


def _cell(group: list[dict[str, str]], name: str, scale: float, digits: int) -> str:
    values = [scale * float(row[name]) for row in group]
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sweep", type=float, nargs="*", default=[], help="weights to try for every objective")
    parser.add_argument("--weight", action="append", default=[], metavar="LOSS:REDUCTION=W", help="default 0.1")
    parser.add_argument("--folder", type=Path, default=Path("runs/seg-demo"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/seg_demo.csv"))
    options = parser.parse_args()
    weights = {(loss, reduction): 0.1 for loss in ("entropy", "adadem") for reduction in ("mean", "balanced")}
    for text in options.weight:
        key, _, value = text.partition("=")
        loss, _, reduction = key.partition(":")
        weights[loss, reduction] = float(value)
    runs = []
    for seed in options.seeds:
        if options.sweep:
            runs += [run for w in options.sweep for run in arms(seed, dict.fromkeys(weights, w))[2:]]
        else:
            runs += arms(seed, weights)
    options.folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.workers) as pool:
        for _ in pool.map(lambda run: execute(run, options.folder), runs):
            write_csv(runs, options.folder, options.out)
    print_table(write_csv(runs, options.folder, options.out))


if __name__ == "__main__":
    main()
