"""The demo pair's table: every method with every objective, three seeds, through ``python -m seg.train`` itself.

    python benchmarks/seg_demo.py sweep     # the weight of each objective, on seed 10; the whole grid is kept
    python benchmarks/seg_demo.py table     # eleven arms and two controls, seeds 0, 1, 2

Settings: configs/seg/demo_table.yaml. Every run has its own process, one thread and its own folder; a finished run is
not repeated and a killed one is resumed, so a command can be given again at any time. After each run its CSV is
written anew from the run folders. ``table`` takes the weight that the label-free score of the sweep's last checkpoints
prefers, and tau and alpha of DEM* from the files that ``python -m seg.tune`` wrote (``--dem-star``).
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from grid import Job, mean_and_deviation, run_grid, write_csv

CONFIG = "configs/seg/demo_table.yaml"
RESULTS = Path("docs/results")
OBJECTIVES = ("entropy", "dem", "adadem")
REDUCTIONS = ("mean", "balanced")
WEIGHTS = (0.003, 0.01, 0.03)
SWEEP_SEED = 10
RAREST = ("wall", "fence", "traffic light", "traffic sign", "rider", "train", "motorcycle", "bicycle")
NAMES = {"entropy": "MinEnt", "dem": "DEM*", "adadem": "AdaDEM"}


@dataclass(frozen=True)
class Run:
    """One training: method, objective, reduction, its weight and a seed."""

    method: str
    loss: str
    reduction: str
    weight: float
    seed: int
    options: tuple[tuple[str, float], ...] = ()

    @property
    def arm(self) -> str:
        """What the table calls it."""
        if self.method == "source":
            return "source only"
        if self.loss == "none":
            return "control (target passes, no loss)" if self.method == "minent" else "AdvEnt"
        first = "AdvEnt + " if self.method == "advent" else "" if self.loss == "entropy" else "MinEnt + "
        return f"{first}{NAMES[self.loss]}, {self.reduction}"

    @property
    def job(self) -> Job:
        """The training command."""
        flags = {
            "--config": CONFIG, "--method": self.method, "--loss": self.loss, "--reduction": self.reduction,
            "--seed": str(self.seed), "--weights.target-main": f"{self.weight:g}",
            "--weights.target-aux": f"{self.weight / 5:g}",
            **{f"--{name}": f"{value:g}" for name, value in self.options},
        }  # fmt: skip
        options = "".join(f"-{name}{value:g}" for name, value in self.options)
        name = f"{self.method}-{self.loss}-{self.reduction}-{self.weight:g}{options}-seed{self.seed}"
        return Job(name, "seg.train", tuple(part for item in flags.items() for part in item))


def sweep_runs(dem_star: dict[str, tuple[tuple[str, float], ...]]) -> list[Run]:
    """MinEnt with every objective, reduction and weight, on a seed that the table does not contain."""
    return [
        Run("minent", loss, reduction, weight, SWEEP_SEED, dem_star[reduction] if loss == "dem" else ())
        for weight in WEIGHTS
        for loss in OBJECTIVES
        for reduction in REDUCTIONS
    ]


def table_runs(seeds: Iterable[int], dem_star: dict[str, Any], weights: dict[tuple[str, str], float]) -> list[Run]:
    """Source only, the control, MinEnt and AdvEnt with every objective and reduction."""
    runs = []
    for seed in seeds:
        runs += [Run("source", "none", "mean", 0.0, seed), Run("minent", "none", "mean", 0.0, seed)]
        runs.append(Run("advent", "none", "mean", 0.0, seed))
        for method, losses in (("minent", OBJECTIVES), ("advent", OBJECTIVES[1:])):
            for loss in losses:
                for reduction in REDUCTIONS:
                    options = dem_star[reduction] if loss == "dem" else ()
                    runs.append(Run(method, loss, reduction, weights[loss, reduction], seed, options))
    return runs


def chosen_weights(file: Path, criterion: str) -> dict[tuple[str, str], float]:
    """For every objective and reduction the weight whose last checkpoint has the best label-free score."""
    with open(file, newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    chosen: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        key = (row["loss"], row["reduction"])
        if key not in chosen or float(row[criterion]) > float(chosen[key][criterion]):
            chosen[key] = row
    return {key: float(row["weight"]) for key, row in chosen.items()}


def read_dem_star(files: list[str]) -> dict[str, tuple[tuple[str, float], ...]]:
    """``REDUCTION=FILE`` of ``seg.tune``'s best.yaml → tau and alpha per reduction."""
    found: dict[str, tuple[tuple[str, float], ...]] = {}
    for text in files:
        reduction, _, file = text.partition("=")
        best = yaml.safe_load(Path(file).read_text())
        found[reduction] = (("tau", float(best["tau"])), ("alpha", float(best["alpha"])))
    return found


def collect(runs: list[Run], folder: Path) -> list[dict[str, str]]:
    """A row per finished run."""
    rows = []
    for run in runs:
        scores = run.job.scores(folder)
        if scores is None:
            continue
        rarest = statistics.mean(scores["per_class_iu"][name] or 0.0 for name in RAREST)
        kept = scores["checkpoints"]
        numbers = {
            "miou_last": scores["miou"], "miou_selected": kept["selected"]["miou"], "miou_best": kept["best"]["miou"],
            "miou_rarest": rarest, **{name: scores[name] for name in ("pixel_accuracy", "mean_entropy_normalised")},
            "calibration_error": scores["calibration_error"], "error_ranking_auroc": scores["error_ranking_auroc"],
            **{name: scores["label_free"][name] for name in ("entropy", "im", "snd")},
            **{f"iou {name}": value or 0.0 for name, value in scores["per_class_iu"].items()},
        }  # fmt: skip
        options = dict(run.options)
        row = {
            "arm": run.arm, "method": run.method, "loss": run.loss, "reduction": run.reduction,
            "weight": f"{run.weight:g}", "tau": f"{options.get('tau', '')}", "alpha": f"{options.get('alpha', '')}",
            "seed": str(run.seed),
        }  # fmt: skip
        rows.append({**row, **{name: f"{value:.5f}" for name, value in numbers.items()}})
    return rows


def print_table(rows: list[dict[str, str]]) -> None:
    """Mean ± standard deviation over seeds, as Markdown; then the classes."""
    columns = {
        "miou_last": ("mIoU %, last", 100, 2), "miou_selected": ("selected", 100, 2),
        "miou_best": ("best (uses labels)", 100, 2), "miou_rarest": ("8 rarest %", 100, 2),
        "mean_entropy_normalised": ("entropy / log C", 1, 3), "calibration_error": ("calibration error", 1, 3),
        "error_ranking_auroc": ("AUROC", 1, 3),
    }  # fmt: skip
    arms = dict.fromkeys((row["arm"], row["weight"]) for row in rows)
    groups = {key: [row for row in rows if (row["arm"], row["weight"]) == key] for key in arms}
    _print_line(["arm", "weight", "seeds", *(title for title, _, _ in columns.values())], header=True)
    for (arm, weight), group in groups.items():
        cells = [mean_and_deviation([s * float(row[name]) for row in group], d) for name, (_, s, d) in columns.items()]
        _print_line([arm, weight, str(len(group)), *cells])
    classes = [name for name in rows[0] if name.startswith("iou ")]
    print()
    _print_line(["IoU % of the last checkpoint", *(name.removeprefix("iou ") for name in classes)], header=True)
    for (arm, weight), group in groups.items():
        label = arm if len({w for a, w in groups if a == arm}) == 1 else f"{arm}, {weight}"
        _print_line([label, *(f"{statistics.mean(100 * float(row[name]) for row in group):.1f}" for name in classes)])


def _print_line(cells: list[str], header: bool = False) -> None:
    print(f"| {' | '.join(cells)} |")
    if header:
        print(f"| {' | '.join(['---'] * len(cells))} |")


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("sweep", "table"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--criterion", default="im", choices=("entropy", "im", "snd"), help="chooses the weights")
    found = [f"{reduction}={RESULTS}/dem_star_{reduction}.yaml" for reduction in REDUCTIONS]
    parser.add_argument("--dem-star", nargs="*", metavar="REDUCTION=FILE", default=found, help="best.yaml of seg.tune")
    parser.add_argument("--folder", type=Path, default=Path("runs/seg-table"))
    options = parser.parse_args()
    dem_star = read_dem_star(options.dem_star)
    sweep = RESULTS / "seg_demo_sweep.csv"
    out = sweep
    if options.stage == "sweep":
        runs = sweep_runs(dem_star)
    else:
        weights = chosen_weights(sweep, options.criterion)
        runs, out = table_runs(options.seeds, dem_star, weights), RESULTS / "seg_demo.csv"
    jobs = [run.job for run in runs]
    run_grid(jobs, options.folder, options.workers, lambda: write_csv(collect(runs, options.folder), out))
    print_table(collect(runs, options.folder))


if __name__ == "__main__":
    main()
