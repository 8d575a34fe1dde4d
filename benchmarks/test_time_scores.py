"""mIoU of test-time adaptation by method, objective and learning rate, on corrupted streets and CamVid's dusk.

    OMP_NUM_THREADS=1 python benchmarks/test_time_scores.py --data demo --runs RUN RUN RUN [--out FILE]
    OMP_NUM_THREADS=1 python benchmarks/test_time_scores.py --data camvid --runs RUN RUN RUN

``demo``: runs of ``seg.train --method source --loss none --source.size 96,48 --target.size 96,48 --max-steps 500``, a
seed each, on 40 new images of the demo's target under eight corruptions of albumentations at three strengths.
``continual``: one corruption after another in batches of four, three rounds with other images, without reset.
``episodic``: each image of the first round by itself, predicted after a step.

``camvid``: runs of ``seg.train --method source --loss none --max-steps 600`` on CamVid by day at 160 × 120 (settings of
configs/seg/camvid_benchmark.yaml), on the 62 scored dusk frames in their order, in batches of four: ``online``.

The online predictions are scored; a batch whose loss is not finite counts as wrong. The same command continues with the
missing rows.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from corrupted_streets import FIRST_IMAGE, SIZE, confusion, corrupted, mean_iou
from csv_rows import CsvRows
from torch import Tensor

from dem_apps import TestTimeAdapter
from dem_apps.errors import NotFiniteError
from dem_apps.test_time_methods.lab import lab_statistics
from seg.data.domains import open_pair
from seg.data.labels import IGNORE_INDEX, id_tables
from seg.data.layouts import LAYOUTS
from seg.data.pixel_format import normalised
from seg.demo.street.looks import GAME_STREET, target_look
from seg.demo.street.world import draw_street
from seg.models.trained import open_run
from seg.models.trained_network import TrainedNetwork

CORRUPTIONS = ("fog", "rain", "snow", "gaussian blur", "motion blur", "gaussian noise", "sensor noise", "low contrast")
PICTURES, BATCH, ROUNDS, SOURCE_IMAGES = 40, 4, 3, 40
#: Three decades, the least informative last.
RATES = (1e-2, 1e-1, 1.0, 1e-3)
#: Default of the command for tent with adadem, balanced.
DEFAULT_RATE = 1e-2
REDUCTIONS = ("mean", "balanced")
#: τ and α of DEM* by reduction, from docs/results/dem_star_*.yaml.
DEM = {"mean": {"tau": 0.6, "alpha": 1.3}, "balanced": {"tau": 1.5, "alpha": 0.0}}
#: Method and rate, with the entropy and the plain mean.
METHODS = (("none", 0.0), ("bn", 0.0), ("lab", 0.0), ("tent", DEFAULT_RATE), ("eta", DEFAULT_RATE),
           ("eata", DEFAULT_RATE), ("sar", DEFAULT_RATE), ("deyo", DEFAULT_RATE), ("cotta", DEFAULT_RATE))  # fmt: skip
KEYS = ("data", "network", "mode", "method", "objective", "reduction", "lr")
SCORES = ("miou", *(f"by_round {each}" for each in range(ROUNDS)), *(f"by_strength {each}" for each in range(4)),
          *(f"by_corruption {each}" for each in (*CORRUPTIONS, "dusk")))  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """One batch of a stream.

    Args:
        round: from 0.
        corruption: its name.
        strength: 1 to 3; 0 for uncorrupted photographs.
        images: (B, 3, H, W), normalised.
        labels: (B, H, W).
    """

    round: int
    corruption: str
    strength: int
    images: Tensor
    labels: Tensor


def main() -> None:
    """Measure and append the missing rows."""
    arguments = _arguments()
    torch.set_num_threads(1)
    networks = {run.name: open_run(run, "last")[0] for run in arguments.runs}
    rows = CsvRows(arguments.out, KEYS, SCORES)
    first = next(iter(networks.values()))
    stream, source = (demo_stream(first), demo_source()) if arguments.data == "demo" else photographs(first)
    for mode, *arm in grid(arguments.data):
        for name, loaded in networks.items():
            row = dict(zip(KEYS, (arguments.data, name, mode, *arm), strict=True))
            if rows.get(row) is None:
                written = rows.add(row | run(row, loaded, stream, source))
                print(*row.values(), f"{100 * written['miou']:.1f}", flush=True)


def grid(data: str) -> Iterator[tuple[str, str, str, str, float]]:
    """Mode, method, objective, reduction and rate; the most informative first."""
    modes = ("continual", "episodic") if data == "demo" else ("online",)
    for mode in modes:
        for method, lr in METHODS:
            yield mode, method, "entropy" if lr else "none", "mean", lr
    for mode in modes:
        most = mode == "continual"
        for lr in RATES if most else RATES[:2]:
            for objective in ("adadem", "entropy", "adadem-norm", "dem") if most else ("adadem", "entropy"):
                for reduction in reversed(REDUCTIONS):
                    if (objective, reduction, lr) != ("entropy", "mean", DEFAULT_RATE):
                        yield mode, "tent", objective, reduction, lr


def run(row: dict[str, Any], loaded: TrainedNetwork, stream: list[Batch], source: list[Tensor]) -> dict[str, Any]:
    """Adapt along the stream: mIoU of all, by round, corruption and strength."""
    episodic, classes = row["mode"] == "episodic", len(loaded.class_set)
    adapter = built(row, loaded, source)
    tables: dict[tuple[int, str, int], Tensor] = {}
    for batch in stream if not episodic else [each for each in stream if each.round == 0]:
        for part in range(len(batch.images)) if episodic else (slice(None),):
            images, labels = (each[part, None] if episodic else each for each in (batch.images, batch.labels))
            try:
                table = confusion(adapter(images), labels, classes)
            except NotFiniteError:
                table = all_wrong(labels, classes)
            key = (batch.round, batch.corruption, batch.strength)
            tables[key] = tables.get(key, 0) + table
    places = {"by_round": 0, "by_corruption": 1, "by_strength": 2}
    return {"miou": scored(tables)} | {
        name: {str(value): scored({key: table for key, table in tables.items() if key[place] == value})
               for value in dict.fromkeys(key[place] for key in tables)}
        for name, place in places.items()
    }  # fmt: skip


def built(row: dict[str, Any], loaded: TrainedNetwork, source: list[Tensor]) -> TestTimeAdapter:
    """A row's adapter of a copy of the network."""
    method, given = row["method"], {}
    if row["lr"]:
        given = {"objective": row["objective"], "lr": row["lr"], "reduction": row["reduction"]}
        given["objective_options"] = DEM[row["reduction"]] if row["objective"] == "dem" else {}
    if row["mode"] == "episodic":
        given |= {"episodic": True, "predict": "after"}
    if method not in ("none", "lab"):
        given["bn_alpha"] = 1.0  # as published
    if method == "lab":
        given |= lab_statistics(source)
    if method == "eata":
        given["source_images"] = source
    return TestTimeAdapter(copy.deepcopy(loaded.network), method, **given)


def scored(tables: dict[Any, Tensor]) -> float:
    """The mean IoU of the sum of several confusion matrices."""
    return mean_iou(torch.stack(list(tables.values())).sum(0))


def all_wrong(labels: Tensor, classes: int) -> Tensor:
    """The confusion matrix of a prediction without a correct pixel: each as the next class."""
    label = labels[labels != IGNORE_INDEX]
    return torch.bincount(label * classes + (label + 1) % classes, minlength=classes**2).view(classes, -1)


def demo_stream(loaded: TrainedNetwork) -> list[Batch]:
    """The corrupted streets of all rounds."""
    table, _ = id_tables(loaded.class_set, LAYOUTS["cityscapes"].ids)
    look = target_look(0, 1.0)
    stream: list[Batch] = []
    drawn = [draw_street(look, "val", FIRST_IMAGE + index, seed=0, size=SIZE) for index in range(PICTURES)]
    for round_ in range(ROUNDS):
        for corruption in CORRUPTIONS:
            for strength in (1, 2, 3):
                numbers = [(len(stream) * BATCH + place) % PICTURES for place in range(BATCH)]
                images = [normalised(corrupted(drawn[n][0], corruption, strength, n)) for n in numbers]
                labels = [torch.from_numpy(table[drawn[n][1]]).long() for n in numbers]
                stream.append(Batch(round_, corruption, strength, torch.stack(images), torch.stack(labels)))
    return stream


def demo_source() -> list[Tensor]:
    """Images of the demo's source."""
    drawn = [draw_street(GAME_STREET, "val", FIRST_IMAGE + n, seed=0, size=SIZE)[0] for n in range(SOURCE_IMAGES)]
    return list(torch.stack([normalised(picture) for picture in drawn]).split(BATCH))


def photographs(loaded: TrainedNetwork) -> tuple[list[Batch], list[Tensor]]:
    """The run's target frames in their order, and some of its source."""
    config = loaded.config
    pair = open_pair(config.source, config.target, config.classes)
    samples = [pair.target_val[index] for index in range(len(pair.target_val))]
    stream = []
    for first in range(0, len(samples), BATCH):
        images = torch.stack([sample.normalised() for sample in samples[first : first + BATCH]])
        labels = torch.stack([torch.as_tensor(sample.label).long() for sample in samples[first : first + BATCH]])
        stream.append(Batch(0, "dusk", 0, images, labels))
    assert pair.source_train is not None
    step = len(pair.source_train) // SOURCE_IMAGES
    source = [pair.source_train[index * step].normalised() for index in range(SOURCE_IMAGES)]
    return stream, list(torch.stack(source).split(BATCH))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("demo", "camvid"), required=True)
    parser.add_argument("--runs", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/results/test_time.csv"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
