"""The paper's claims on a small classification problem: scikit-learn's digits, corrupted; minutes on one core.

    OMP_NUM_THREADS=1 python benchmarks/digits.py [--out docs/results/digits.csv]

A small convolutional network with batch norm is trained on one half of ``sklearn.datasets.load_digits``, at 16 × 16
pixels. 640 images of the other half, corrupted by albumentations in six ways and two strengths, arrive in batches of
64, which are predicted, then learned from (``TestTimeAdapter``, method ``tent``, SGD with momentum 0.9). A seed draws
halves, weights and order. Streams:

``online``      every corruption and strength by itself, from the first weights
``continual``   the strong corruptions one after another, three rounds, without reset
``imbalanced``  every strong corruption by itself; five classes, drawn by the seed, have a tenth of their images; scored
                by the mean over classes

Controls are ``none`` and ``bn``. τ and α of DEM* are searched on another seed with the labels of a fifth of the images,
the paper's quick way: α at τ = 1, then τ at that α, at a rate of 0.03. A batch whose loss is not finite counts as
wrong. The same command continues with the missing rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import albumentations as A
import cv2
import numpy as np
import torch
from csv_rows import CsvRows
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import NotFiniteError

SEEDS, SEARCH_SEED, SEARCH_SHARE, SEARCH_LR = range(5), 100, 0.2, 0.03
RATES = (1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
ABLATION_RATES = (1e-2, 1e-1)
SIDE, CLASSES, IMAGES, BATCH, ROUNDS = 16, 10, 640, 64, 3
MODES = ("online", "continual", "imbalanced")
REDUCTIONS = ("mean", "balanced")
OBJECTIVES = ("entropy", "adadem", "adadem-norm", "dem")
#: name → transform of strength 0 and 1.
CORRUPTIONS: dict[str, Any] = {
    "gaussian noise": lambda s: A.GaussNoise(std_range=([0.2, 0.4][s],) * 2, p=1),
    "gaussian blur": lambda s: A.GaussianBlur(blur_limit=0, sigma_limit=([1.5, 2.5][s],) * 2, p=1),
    "low contrast": lambda s: A.RandomBrightnessContrast(
        brightness_limit=(0.2, 0.2), contrast_limit=([-0.6, -0.85][s],) * 2, p=1
    ),
    "rotation": lambda s: A.Affine(rotate=([20, 35][s],) * 2, p=1),
    "elastic": lambda s: A.ElasticTransform(alpha=[20, 40][s], sigma=3, p=1),
    "occlusion": lambda s: A.CoarseDropout(
        num_holes_range=(1, 1), hole_height_range=([5, 8][s],) * 2, hole_width_range=([5, 8][s],) * 2, p=1
    ),
}  # fmt: skip
#: Of AdaDEM; the paper's settings are α = 1, π = 0.1, the L1 norm, δ of CADF's reward.
ABLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "α = 0": ("adadem", {"alpha": 0.0}),
    "α = 0.5": ("adadem", {"alpha": 0.5}),
    "α = 1.3": ("adadem", {"alpha": 1.3}),
    "α = 2": ("adadem", {"alpha": 2.0}),
    "π = 0": ("adadem", {"momentum": 0.0}),
    "π = 0.01": ("adadem", {"momentum": 0.01}),
    "π = 1": ("adadem", {"momentum": 1.0}),
    "L2 norm": ("adadem", {"norm": "l2"}),
    "L∞ norm": ("adadem", {"norm": "linf"}),
    "δ of the whole entropy": ("adadem", {"delta": "entropy"}),
    "MEC alone": ("adadem-mec", {}),
}
#: Of a row; ``options`` are flattened in the file.
FIELDS = ("part", "mode", "method", "objective", "options", "reduction", "lr", "seed")
OPTIONS = ("tau", "alpha", "momentum", "norm", "delta")
KEYS = ("part", "mode", "method", "objective", *(f"options {name}" for name in OPTIONS), "reduction", "lr", "seed")


def main() -> None:
    """Measure and append the missing rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results/digits.csv"))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many, from 0")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = CsvRows(arguments.out, KEYS, ("accuracy", "parts"))
    dem = {(mode, reduction): searched(mode, reduction, rows) for mode in MODES[:2] for reduction in REDUCTIONS}
    for seed in range(arguments.seeds):
        for row in grid(seed, dem):
            measured(row, rows)


def measured(row: dict[str, Any], rows: CsvRows) -> float:
    """The accuracy of a row, from the file or measured and appended."""
    found = rows.get(row)
    if found is None:
        found = rows.add(row | run(row))
        print(*row.values(), found["accuracy"], flush=True)
    return float(found["accuracy"])


def searched(mode: str, reduction: str, rows: CsvRows) -> dict[str, Any]:
    """DEM*'s τ and α."""

    def score(tau: float, alpha: float) -> float:
        options = {"tau": round(tau, 1), "alpha": round(alpha, 1)}
        values = ("search", mode, "tent", "dem", options, reduction, SEARCH_LR, SEARCH_SEED)
        return measured(dict(zip(FIELDS, values, strict=True)), rows)

    alpha = max((0.2 * step for step in range(11)), key=lambda alpha: score(1.0, alpha))
    taus = [0.2 * step for step in range(1, 11) if alpha == 0 or 0.2 * step <= 2 / alpha + 1e-9]
    tau = max(taus, key=lambda tau: score(tau, alpha))
    return {"tau": round(tau, 1), "alpha": round(alpha, 1)}


def grid(seed: int, dem: dict[tuple[str, str], dict[str, float]]) -> Iterator[dict[str, Any]]:
    """The rows of one seed."""
    for mode in MODES:
        for method in ("none", "bn"):
            yield dict(zip(FIELDS, ("control", mode, method, "none", {}, "mean", 0.0, seed), strict=True))
        for objective in OBJECTIVES:
            for reduction in REDUCTIONS:
                options = dem["continual" if mode == "continual" else "online", reduction] if objective == "dem" else {}
                for lr in RATES:
                    row = ("rates", mode, "tent", objective, options, reduction, lr, seed)
                    yield dict(zip(FIELDS, row, strict=True))
        for objective, options in ABLATIONS.values() if mode != "imbalanced" else ():
            for lr in ABLATION_RATES:
                yield dict(zip(FIELDS, ("ablation", mode, "tent", objective, options, "mean", lr, seed), strict=True))


def run(row: dict[str, Any]) -> dict[str, Any]:
    """Adapt along a row's stream: accuracy in %, by corruption (by round where they follow each other)."""
    learnt = row["method"] == "tent"
    given = {"objective": row["objective"], "lr": row["lr"], "reduction": row["reduction"],
             "objective_options": row["options"], "num_classes": CLASSES} if learnt else {}  # fmt: skip
    if row["method"] in ("bn", "tent"):
        given["bn_alpha"] = 1.0  # as published
    adapter = TestTimeAdapter(trained(row["seed"]), row["method"], **given)
    continual, scores = row["mode"] == "continual", []
    strengths = (0, 1) if row["mode"] == "online" else (1,)
    parts = [[(name, each) for each in strengths] for name in CORRUPTIONS]
    if continual:
        parts = [[(name, 1) for name in CORRUPTIONS]] * ROUNDS
    for streams in parts:
        values = []
        for name, strength in streams:
            if not continual:
                adapter.reset()
            values.append(accuracy(adapter, name, strength, row))
        scores.append(100 * float(np.mean(values)))
    adapter.reset()
    adapter.close()
    return {"accuracy": round(float(np.mean(scores)), 2), "parts": [round(score, 1) for score in scores]}


def accuracy(adapter: TestTimeAdapter, corruption: str, strength: int, row: dict[str, Any]) -> float:
    """Accuracy on one corruption's images, in their order."""
    order = stream(row["seed"], row["mode"])
    images, labels = corrupted(corruption, strength)[order], torch.from_numpy(digits()[1])[order]
    hits = torch.zeros(len(order))
    for first in range(0, len(order), BATCH):
        here = slice(first, first + BATCH)
        try:
            hits[here] = (adapter(images[here]).argmax(1) == labels[here]).float()
        except NotFiniteError:
            continue
    if row["part"] == "search":  # with the labels of a fifth
        return float(hits[torch.arange(len(hits)) % round(1 / SEARCH_SHARE) == 0].mean())
    if row["mode"] == "imbalanced":
        return float(np.mean([float(hits[labels == c].mean()) for c in range(CLASSES)]))
    return float(hits.mean())


@cache
def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All images, (N, 16, 16, 1), and their classes."""
    data = load_digits()
    pixels = (data.images / 16 * 255).astype(np.uint8)
    images = np.stack([cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR) for image in pixels])
    return images[..., None], data.target.astype(np.int64)


@cache
def corrupted(corruption: str, strength: int) -> Tensor:
    """(N, 1, 16, 16) normalised, a function of its arguments."""
    transform = A.Compose([CORRUPTIONS[corruption](strength)], seed=strength)
    return normalised(np.stack([transform(image=image)["image"].reshape(SIDE, SIDE, 1) for image in digits()[0]]))


def normalised(images: NDArray[np.uint8]) -> Tensor:
    """(N, 1, 16, 16), about 0."""
    return (torch.from_numpy(images).float().permute(0, 3, 1, 2) / 255 - 0.3) / 0.35


def halves(seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the images to train on and to adapt to, shuffled."""
    order = np.random.default_rng(seed).permutation(len(digits()[1]))
    return order[: len(order) // 2], order[len(order) // 2 :]


@cache
def stream(seed: int, mode: str) -> Tensor:
    """The images that arrive, in order."""
    order = halves(seed)[1][:IMAGES]
    if mode == "imbalanced":
        generator = np.random.default_rng(1000 + seed)
        rare = generator.permutation(CLASSES)[: CLASSES // 2]
        order = order[~np.isin(digits()[1][order], rare) | (generator.random(len(order)) < 0.1)]
    return torch.from_numpy(order)


@cache
def trained(seed: int) -> nn.Module:
    """The network, trained for 20 epochs on the clean half; its weights are restored after every row."""
    torch.manual_seed(seed)
    blocks: list[nn.Module] = []
    for inside, outside in ((1, 16), (16, 32), (32, 64)):
        blocks += [nn.Conv2d(inside, outside, 3, 2, 1), nn.BatchNorm2d(outside), nn.ReLU()]
    network = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(256, CLASSES))
    source = torch.from_numpy(halves(seed)[0])
    images, labels = normalised(digits()[0])[source], torch.from_numpy(digits()[1])[source]
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3, weight_decay=1e-4)
    for _ in range(20):
        for index in torch.randperm(len(source)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images[index]), labels[index]).backward()
            optimizer.step()
    return network.eval()


if __name__ == "__main__":
    main()
