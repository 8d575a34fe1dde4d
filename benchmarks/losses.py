"""Speed and memory of the objectives, beside the paper's pseudo code and cross-entropy: docs/benchmarks.md.

    python benchmarks/losses.py [--threads 2] [--repeats 21] [--out docs/results/losses.json]
    python benchmarks/losses.py --device cuda --out docs/results/losses_gpu.json

A number is one forward and one backward. Contestants take turns (A B C, A B C, …), and medians are compared within the
run, so a slow phase of the machine counts for all. "Copies" are of the logits, in the same turns: AdaDEM needs three
times the logits' bytes on a GPU (read for the sums; read and written for the gradient), 1.5 copies.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from advent_loop import self_information
from csv_rows import parser_of
from measuring import (
    in_fresh_processes,
    machine,
    medians_and_times,
    memory_growth,
    times_in_turn,
    write_json,
)
from torch import Tensor

from dem_apps import build_objective
from dem_apps.fused.kernel import supports_kernel
from dem_apps.report.tables import markdown

Loss = Callable[[Tensor], Tensor]
#: Shape, whose dimension 1 are the classes, dtype, calls per measurement.
Setting = tuple[tuple[int, ...], torch.dtype, int]
SHAPES: dict[str, Setting] = {
    "map": ((1, 19, 512, 1024), torch.float32, 1),
    "small": ((64, 7), torch.float32, 50),
}
#: on a GPU, whose caches hold a single map
GPU_SHAPES: dict[str, Setting] = {
    "map": ((1, 19, 512, 1024), torch.float32, 10),
    "large": ((8, 19, 1024, 2048), torch.float32, 2),
    "large, bf16": ((8, 19, 1024, 2048), torch.bfloat16, 2),
    "small": ((64, 7), torch.float32, 50),
}
OBJECTIVES = {"adadem mean": "mean", "adadem balanced": "balanced", "entropy": "mean"}
BACKENDS = ("reference", "eager", "compiled", "auto")
PSEUDO_CODE, CROSS_ENTROPY, COPY = "paper's pseudo code", "F.cross_entropy", "copy of the logits"


class PaperAdaDEM:
    """Algorithm 1 as printed, with the permute that brings a map's logits into its shape (N, C)."""

    def __init__(self, num_classes: int, device: str) -> None:
        self.avg_pred = torch.ones(num_classes, num_classes, device=device) / num_classes

    def __call__(self, logits: Tensor) -> Tensor:
        """The mean over elements."""
        logits = logits.movedim(1, -1).reshape(-1, logits.shape[1])
        p = F.softmax(logits, dim=1)
        pseudo_label = p.argmax(dim=1)
        with torch.no_grad():
            for label in torch.unique(pseudo_label):
                self.avg_pred[label] = 0.9 * self.avg_pred[label] + 0.1 * p[
                    pseudo_label == label
                ].mean(dim=0)
            big_t = -(p * logits).sum(dim=1, keepdim=True)
            grad = (logits + big_t + 1) * p
            delta = grad.abs().sum(dim=1, keepdim=True)
        p = (p - self.avg_pred[pseudo_label]) / delta
        return -(p * logits).sum(dim=1).mean()


def make_logits(
    shape: tuple[int, ...], device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Tensor:
    """Logits with the smooth, partly sure predictions of a segmentation network."""
    generator = torch.Generator().manual_seed(0)
    if len(shape) == 2:
        return (torch.randn(shape, generator=generator) * 2).to(device, dtype).requires_grad_()
    coarse = (
        torch.randn(shape[0], shape[1], shape[2] // 16, shape[3] // 16, generator=generator) * 3
    )
    return (
        F.interpolate(coarse.to(device), shape[2:], mode="bilinear")
        .contiguous()
        .to(dtype)
        .requires_grad_()
    )


def contestants(shape: tuple[int, ...], device: str = "cpu") -> dict[str, Callable[[], Loss]]:
    """Name → a function that makes the loss; each measurement process makes its own."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator).to(device)
    found: dict[str, Callable[[], Loss]] = {
        PSEUDO_CODE: lambda: PaperAdaDEM(shape[1], device),
        "ADVENT's entropy": lambda: lambda logits: self_information(logits).sum() / labels.numel(),
        CROSS_ENTROPY: lambda: lambda logits: F.cross_entropy(logits, labels),
    }
    kernel = supports_kernel(torch.zeros(1, shape[1], device=device), shape[1])
    for title, reduction in OBJECTIVES.items():
        for backend in BACKENDS:
            if backend != "compiled" or kernel:
                found[f"{title}, {backend}"] = partial(
                    _ours, title.split()[0], reduction, shape[1], backend, device
                )
    return found


def _ours(name: str, reduction: str, classes: int, backend: str, device: str) -> Loss:
    return partial(build_objective(name, classes, backend=backend).to(device), reduction=reduction)


def both_passes(loss: Loss, logits: Tensor) -> None:
    """Forward and backward."""
    logits.grad = None
    loss(logits).backward()


def measure_times(setting: Setting, repeats: int, device: str) -> dict[str, list[float]]:
    """Milliseconds per forward and backward pass, ``repeats`` of each contestant in turn, after two warm-up rounds."""
    shape, dtype, calls = setting
    logits, steps = make_logits(shape, device, dtype), dict[str, Callable[[], object]]()
    for name, make in contestants(shape, device).items():
        steps[name] = partial(both_passes, make(), logits)
    steps[COPY] = logits.detach().clone
    return times_in_turn(steps, device, repeats, warm_up=2, calls=calls)


def extra_memory(name: str, shape: tuple[int, ...], device: str = "cpu") -> float | None:
    """One float32 contestant's peak in this process beyond logits and gradient, in units of the logits' bytes.

    A tiny call first loads libraries and starts threads.
    """
    both_passes(
        contestants((*shape[:2], 16, 16), device)[name](), make_logits((*shape[:2], 16, 16), device)
    )
    logits = make_logits(shape, device)
    grown = memory_growth(partial(both_passes, contestants(shape, device)[name](), logits), device)
    return None if grown is None else grown / (logits.numel() * logits.element_size()) - 1


def show(result: dict[str, Any]) -> None:
    """Print a Markdown table per shape, and the machine."""
    heads = [
        "median",
        "speed over pseudo code",
        "time over cross-entropy",
        "copies",
        "extra memory / logits",
    ]
    for shape, times in result["medians_ms"].items():
        rows = []
        for name, value in times.items():
            extra = result["extra_memory"].get(name) if shape == "map" else None
            speed, share = times[PSEUDO_CODE] / value, value / times[CROSS_ENTROPY]
            copies, beyond = f"{value / times[COPY]:.2f}", "" if extra is None else f"{extra:.2f}"
            rows.append([name, f"{value:.3g} ms", f"{speed:.2f}x", f"{share:.2f}x", copies, beyond])
        size = "x".join(map(str, result["shapes"][shape]))
        print(f"{shape}: {size}\n\n{markdown(['forward + backward', *heads], rows)}", end="")
    print(", ".join(f"{key}: {value}" for key, value in result["environment"].items()))


def main() -> None:
    """Measure, print, save."""
    parser = parser_of(__doc__)
    parser.add_argument("--threads", type=int, default=2, help="threads of torch and of the kernel")
    parser.add_argument("--repeats", type=int, default=21, help="measurements of each contestant")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="JSON file for the raw values")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)  # of the processes that measure it
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        print(json.dumps(extra_memory(options.memory_of, SHAPES["map"][0])))
        return
    gpu = options.device == "cuda"
    shapes, map_shape = GPU_SHAPES if gpu else SHAPES, SHAPES["map"][0]
    environment = machine(
        options.device, kernel=supports_kernel(torch.zeros(1, 7, device=options.device), 7)
    )
    environment |= {"triton": version("triton")} if gpu else {}
    times = {
        name: measure_times(setting, options.repeats, options.device)
        for name, setting in shapes.items()
    }
    command = [__file__, "--threads", str(options.threads), "--memory-of"]
    if gpu:  # by the allocator's record
        memory = {
            name: extra_memory(name, map_shape, "cuda") for name in contestants(map_shape, "cuda")
        }
    else:
        memory = in_fresh_processes(contestants(map_shape), command)
    result = {
        "environment": environment,
        "shapes": {name: list(setting[0]) for name, setting in shapes.items()},
        "extra_memory": memory,
        **medians_and_times(times),
    }
    show(result)
    write_json(options.out, result)


if __name__ == "__main__":
    main()
