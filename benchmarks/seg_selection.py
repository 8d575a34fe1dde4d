"""How well unsupervised scores select a checkpoint: their rank correlation with mIoU on runs of the demo pair.

    python benchmarks/seg_selection.py

It reads runs of ``seg.benchmark`` with ``configs/seg/demo_weights.yaml`` and ``demo_benchmark.yaml``, writes the scores
of every checkpoint as CSV and prints, per criterion: the rank correlation (Spearman) with mIoU over the checkpoints of
a run (mean over runs), over the last checkpoints of all runs of a seed (mean over seeds), the mIoU of the selected
checkpoint, and the runs in which it is better and worse than the last (``seg.scores.checkpoints.RECORD``), alarms or
not.
"""

import argparse
import csv
import statistics
from pathlib import Path

from scipy.stats import spearmanr

from dem_apps.report.tables import write_csv
from dem_apps.runtime.run_reader import read_config, read_metrics

CRITERIA = ("entropy", "im", "snd")


def checkpoints(folder: Path) -> list[dict[str, str]]:
    """A row per scored step of every finished run, in or below a folder."""
    rows = []
    for run in sorted(path.parent for path in folder.rglob("eval.json")):
        seed = str(read_config(run)["seed"])
        for line in read_metrics(run):
            if "val/miou" in line:
                scores = {name: f"{line[f'label_free/{name}']:.5f}" for name in CRITERIA}
                rows.append({"run": str(run.relative_to(folder)), "seed": seed, "step": str(line["step"]),
                             "miou": f"{line['val/miou']:.5f}", **scores})  # fmt: skip
    return rows


def groups(rows: list[dict[str, str]], key: str) -> list[list[dict[str, str]]]:
    """The rows of each run, or of each seed."""
    return [[row for row in rows if row[key] == value] for value in dict.fromkeys(row[key] for row in rows)]


def correlation(rows: list[dict[str, str]], criterion: str) -> float:
    """Spearman's, between a criterion and mIoU."""
    pairs = [(float(row[criterion]), float(row["miou"])) for row in rows]
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def main() -> None:
    """Collect, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found = [Path("runs/seg-demo-weights"), Path("runs/seg-demo")]
    parser.add_argument("--folders", type=Path, nargs="+", default=found, help="of the grids")
    parser.add_argument("--out", type=Path, default=Path("docs/results/seg_selection.csv"))
    parser.add_argument("--from-csv", action="store_true", help="print from --out instead of the run folders")
    options = parser.parse_args()
    if options.from_csv:
        with open(options.out, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    else:
        rows = [row for folder in options.folders for row in checkpoints(folder)]
        write_csv(options.out, rows)
    runs = groups(rows, "run")
    last = [max(run, key=lambda row: int(row["step"])) for run in runs]
    seeds = [group for group in groups(last, "seed") if len(group) > 2]
    print(f"{len(runs)} runs, {len(rows)} checkpoints\n")
    print("| criterion | correlation within a run | over a seed's last | mIoU of the selected | better, worse |")
    print("|---|---|---|---|---|")
    for criterion in CRITERIA:
        within = statistics.mean(correlation(run, criterion) for run in runs)
        across = statistics.mean(correlation(group, criterion) for group in seeds)
        chosen = [float(max(run, key=lambda row: float(row[criterion]))["miou"]) for run in runs]
        gains = [ours - float(row["miou"]) for ours, row in zip(chosen, last, strict=True)]
        beside = f"{sum(gain > 0 for gain in gains)}, {sum(gain < 0 for gain in gains)}"
        print(f"| `{criterion}` | {within:.2f} | {across:.2f} | {100 * statistics.mean(chosen):.2f} | {beside} |")
    for title, rule in (("the last checkpoint", lambda row: int(row["step"])),
                        ("the best, by labels", lambda row: float(row["miou"]))):  # fmt: skip
        miou = statistics.mean(float(max(run, key=rule)["miou"]) for run in runs)
        print(f"| {title} | | | {100 * miou:.2f} | |")


if __name__ == "__main__":
    main()
