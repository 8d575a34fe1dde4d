"""TPT of a classifier's scales and shifts, each ImageNet photograph alone, under the corruptions of ImageNet-C.

    python benchmarks/tpt_photographs.py --clones CLONES [--out docs/results/tpt_photographs.csv]

Network, photographs and packages are those of ``benchmarks/imagenet_corruptions.py``. Of 16 views three count; batch
norm keeps the stored statistics, but for ``bn 0.1``, a share of the single image's. A row is a corruption, its severity
and a way, with the accuracy in per cent, and which photographs are right, a bit each. The same command continues with
the missing rows, then prints a table: the mean over a way's corruptions, and its difference to ``none``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from csv_rows import CsvRows
from imagenet_corruptions import EVERY, classifier, corrupted, network_input, photographs

from dem_apps import TestTimeAdapter
from dem_apps.report.intervals import difference_interval
from dem_apps.report.tables import markdown

KEYS = ("corruption", "severity", "way")
CORRUPTIONS = [
    ("none", 0),
    *((name, severity) for severity in (5, 3) for name in ("gaussian_noise", "motion_blur", "fog", "pixelate")),
]
TPT = {"method": "tpt", "views": 16, "kept": 0.2, "episodic": True, "predict": "after", "batch_norm": "stored"}
#: By rank: all corruptions of a way come before the next way.
WAYS: dict[str, dict[str, Any]] = {
    "none": {"method": "none"},
    "bn 0.1": {"method": "bn"},
    **{
        f"{loss} {lr}": {**TPT, "objective": loss, "lr": lr}
        for lr in (0.001, 0.01, 0.03)
        for loss in ("entropy", "adadem", "come")
    },
}


def table(rows: CsvRows) -> str:
    """In Markdown, one row a way; the interval is over photographs, each the mean of its corruptions."""
    lines = []
    for way in WAYS:
        pairs = [
            (_bits(ours), _bits(control))
            for name, severity in CORRUPTIONS
            if (ours := rows.get(dict(zip(KEYS, (name, severity, way), strict=True))))
            and (control := rows.get(dict(zip(KEYS, (name, severity, "none"), strict=True))))
        ]
        if way == "none" or not pairs:
            continue
        ours, control = (torch.stack(side).double() * 100 for side in zip(*pairs, strict=True))
        means = [dict(enumerate(side.mean(0).tolist())) for side in (ours, control)]
        apart = difference_interval(*means)
        lines.append([
            way, str(len(pairs)), f"{control.mean():.1f}", f"{ours.mean():.1f}",
            f"{apart.estimate:+.1f} [{apart.low:.1f}, {apart.high:.1f}]",
            f"{(ours > control).sum()}, {(ours < control).sum()}",
        ])  # fmt: skip
    return markdown(["way", "corruptions", "none", "accuracy", "difference", "gained, lost"], lines)


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
    images, classes = photographs(options.clones, EVERY)
    for way, settings in WAYS.items():
        for name, severity in CORRUPTIONS:
            keys = dict(zip(KEYS, (name, severity, way), strict=True))
            if rows.get(keys) is not None:
                continue
            adapter = TestTimeAdapter(classifier().to(memory_format=torch.channels_last), **settings)  # in less time
            inputs = network_input(corrupted(images, name, severity))
            found = torch.cat([adapter(image).argmax(1) for image in inputs.split(1)])
            right = found == torch.tensor(classes)
            accuracy, bits = round(100 * float(right.double().mean()), 1), "".join(str(int(each)) for each in right)
            rows.add({**keys, "images": len(classes), "accuracy": accuracy, "right": f"{int(bits, 2):x}"})
            print(name, severity, way, accuracy, flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
