"""Five labelled target images, the first of ``label_first.csv`` or random ones: the table of docs/appendix.md.

    python benchmarks/label_first.py --photographs PHOTOGRAPHS --work WORK [--out docs/results/label_first.csv]

mIoU after training on them; registered in ``docs/results/label_first_registration.txt``. PHOTOGRAPHS is of
``benchmarks/photographs.py``; WORK gets the source networks. The same command continues with the missing rows.
"""

import argparse
import copy
import itertools
from pathlib import Path
from statistics import fmean

import numpy as np
import photograph_networks as ours
from csv_rows import RESULTS, CsvRows, interval, parser_of
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from dem_apps.report.intervals import mean_interval
from dem_apps.report.tables import markdown
from seg.adaptation.images import ImageNumbers
from seg.adaptation.result import label_first
from seg.maps.entropy_maps import Prediction

#: Set, source domains, target, classes, and width and height of what the network sees.
PAIRS = {
    "camvid": ("camvid", ("Seq05VD", "0016E5", "0006R0"), "0001TP", 11, (256, 192)),
    "drone": ("cracks", ("asphalt",), "drone", 2, (256, 192)),
    "concrete": ("cracks", ("asphalt",), "concrete", 2, (256, 192)),
    "discs": ("discs", ("refuge",), "drishti", 3, (160, 160)),
    "vessels": ("vessels", ("drive",), "chase", 2, (192, 192)),
}  # fmt: skip
KEYS = ("pair", "seed", "arm")
SEEDS, ARMS, LABELS = range(5), ("none", "random", "ranked"), 5
#: Steps of the source's training; steps and rate of that on labels.
SOURCE_STEPS, SHORT_STEPS, SHORT_RATE = 120, 80, 2e-4
#: Images that may be labelled, and that are scored, at most; times that a labelled one is listed.
POOL, SCORED, TIMES = 60, 24, 4


def predicted(model: nn.Module, files: list[Path], size: tuple[int, int]) -> tuple[Tensor, list[NDArray[np.uint8]]]:
    """Logits (N, C, h, w) and labels."""
    images, labels = ours.pictures(files, len(files), None, size)
    return ours.predicted(model, ours.normalised(images, ours.MOMENTS)), labels


def ranked(model: nn.Module, files: list[Path], size: tuple[int, int], classes: int) -> list[Path]:
    """The images in the order of the list."""
    rows = {}
    for file, logits in zip(files, predicted(model, files, size)[0], strict=True):
        pixels, entropy = Prediction.of(F.interpolate(logits[None], size[::-1], mode="bilinear")[0]).sums(classes)
        rows[str(file)] = ImageNumbers(pixels, float(entropy.sum() / pixels.sum()), None)
    return [Path(row["image"]) for row in label_first(rows)]


def score(pair: str, seed: int, arm: str, options: argparse.Namespace) -> dict[str, float | str]:
    """MIoU and the labelled images of an arm."""
    group, domains, target, classes, size = PAIRS[pair]
    source = [file for domain in domains for file in ours.parts(options.photographs / group, domain)[0]]
    model = ours.kept(options.work / "label_first" / group, "FPN", classes, source, size, SOURCE_STEPS)
    generator = np.random.default_rng(seed)
    files = generator.permutation(sorted((options.photographs / group / target / "images").iterdir())).tolist()
    first = min(POOL, round(2 * len(files) / 3))
    pool, scored = files[:first], files[first : first + SCORED]
    beside = generator.choice(source, LABELS * TIMES, replace=False).tolist()
    drawn = generator.choice(pool, LABELS, replace=False).tolist()
    chosen = {"none": [], "random": drawn, "ranked": ranked(model, pool, size, classes)[:LABELS]}[arm]
    if chosen:
        model = ours.train(copy.deepcopy(model), chosen * TIMES + beside, size, SHORT_STEPS, SHORT_RATE)
    names = " ".join(file.stem for file in chosen)
    return {"miou": ours.miou(ours.confusions_of(*predicted(model, scored, size))), "labelled": names}


def table(rows: CsvRows) -> str:
    """By pair the mean of each arm over the seeds that are measured, and over pairs ranked beside random."""
    lines, changes = [], []
    for pair in PAIRS:
        own = [seed for seed in SEEDS if all((pair, str(seed), arm) in rows.rows for arm in ARMS)]
        means = [fmean(float(rows.rows[pair, str(seed), arm]["miou"]) for seed in own) for arm in ARMS]
        changes.append(means[2] - means[1])
        lines.append([f"{pair}, {len(own)} of {len(SEEDS)}", *(f"{mean:.1f}" for mean in means), f"{changes[-1]:+.1f}"])
    lines.append(["mean", "", "", "", interval(mean_interval(changes))])
    return markdown(["pair, seeds", "source network", "random", "ranked", "ranked over random"], lines)


def main() -> None:
    """Train what is missing, and print the table."""
    options = parser_of(__doc__, "photographs", "work", out=RESULTS / "label_first.csv").parse_args()
    rows = CsvRows(options.out, KEYS, ("miou", "labelled"))
    keys = ({"pair": pair, "seed": seed, "arm": arm} for seed, pair, arm in itertools.product(SEEDS, PAIRS, ARMS))
    for row in rows.missing(keys):
        print(rows.add({**row, **score(**row, options=options)}), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
