"""TPT of a classifier's scales and shifts, each ImageNet photograph alone, under the corruptions of ImageNet-C.

    python benchmarks/tpt_photographs.py --clones CLONES [--out docs/results/tpt_photographs.csv]

Network, photographs and packages are those of ``benchmarks/imagenet_corruptions.py``. Of 16 views three count; batch
norm keeps the stored statistics, but for ``bn 0.1``, a share of the single image's. A row is a corruption, its severity
and a way, with the accuracy in per cent, and which photographs are right, a bit each. The same command continues with
the missing rows, then prints a table: the mean over a way's corruptions, and its difference to ``none``.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from csv_rows import CsvRows
from imagenet_corruptions import KEYS, run

from dem_apps.report.intervals import difference_interval
from dem_apps.report.tables import markdown

CORRUPTIONS = [
    ("none", 0),
    *((name, severity) for severity in (5, 3) for name in ("gaussian_noise", "motion_blur", "fog", "pixelate")),
]
TPT = {"method": "tpt", "views": 16, "kept": 0.2, "episodic": True, "predict": "after", "batch_norm": "stored"}
WAYS: dict[str, dict[str, Any]] = {
    "none": {"method": "none"},
    "bn 0.1": {"method": "bn"},
    **{
        f"{loss} {lr}": {**TPT, "objective": loss, "lr": lr, "marginals": "uniform"}  # as the recorded rows
        for lr in (0.001, 0.01, 0.03)
        for loss in ("entropy", "adadem", "come")
    },
}


def table(rows: CsvRows) -> str:
    """In Markdown, a row for each way with all corruptions; intervals are over photographs, each their mean."""
    lines, none = [], torch.empty(0)
    for way in WAYS:
        found = [rows.get(dict(zip(KEYS, (name, severity, way), strict=True))) for name, severity in CORRUPTIONS]
        if None in found:
            continue
        ours = torch.stack([_bits(row) for row in found]).double() * 100
        if way == "none":
            none = ours
            lines.append([way, f"{none.mean():.1f}", "", ""])
            continue
        apart = difference_interval(*(dict(enumerate(side.mean(0).tolist())) for side in (ours, none)))
        lines.append([
            way, f"{ours.mean():.1f}", f"{apart.estimate:+.1f} [{apart.low:.1f}, {apart.high:.1f}]",
            f"{(ours > none).sum()}, {(ours < none).sum()}",
        ])  # fmt: skip
    return markdown(["way", "accuracy", "difference", "gained, lost"], lines)


def _bits(row: Any) -> torch.Tensor:
    """Which photographs are right."""
    return torch.tensor([bit == "1" for bit in f"{int(row['right'], 16):0{int(row['images'])}b}"])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clones", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/results/tpt_photographs.csv"))
    options = parser.parse_args()
    rows = CsvRows(options.out, KEYS, ["images", "accuracy", "right"])
    run(rows, WAYS, CORRUPTIONS, options.clones, batch=1)
    print(table(rows))


if __name__ == "__main__":
    main()
