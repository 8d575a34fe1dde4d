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
import math
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from csv_rows import parser_of
from measuring import in_fresh_processes, machine, medians_and_times, memory_growth, times_in_turn, write_json
from torch import Tensor

from dem_apps import build_objective
from dem_apps.fused.kernel import supports_kernel
from dem_apps.report.tables import markdown

Loss = Callable[[Tensor], Tensor]

#: name → (shape, dtype, calls per measurement); the classes are dimension 1.
SHAPES = {"map": ((1, 19, 512, 1024), torch.float32, 1), "small": ((64, 7), torch.float32, 50)}
#: on a GPU, whose caches hold a single map
GPU_SHAPES = {
    "map": ((1, 19, 512, 1024), torch.float32, 10),
    "large": ((8, 19, 1024, 2048), torch.float32, 2),
    "large, bf16": ((8, 19, 1024, 2048), torch.bfloat16, 2),
    "small": ((64, 7), torch.float32, 50),
}
OBJECTIVES = {
    "adadem mean": ("adadem", "mean"),
    "adadem balanced": ("adadem", "balanced"),
    "entropy": ("entropy", "mean"),
}
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
                self.avg_pred[label] = 0.9 * self.avg_pred[label] + 0.1 * p[pseudo_label == label].mean(dim=0)
            big_t = -(p * logits).sum(dim=1, keepdim=True)
            grad = (logits + big_t + 1) * p
            delta = grad.abs().sum(dim=1, keepdim=True)
        p = (p - self.avg_pred[pseudo_label]) / delta
        return -(p * logits).sum(dim=1).mean()


def advent_entropy(logits: Tensor) -> Tensor:
    """ADVENT's entropy loss: -Σ p log₂(p + 1e-30) / log₂ C, mean over elements."""
    p = F.softmax(logits, dim=1)
    elements, classes = p.numel() // p.shape[1], p.shape[1]
    return -(p * torch.log2(p + 1e-30)).sum() / (elements * math.log2(classes))


def make_logits(shape: tuple[int, ...], device: str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    """Logits with the smooth, partly sure predictions of a segmentation network."""
    generator = torch.Generator().manual_seed(0)
    if len(shape) == 2:
        return (torch.randn(shape, generator=generator) * 2).to(device, dtype).requires_grad_()
    coarse = torch.randn(shape[0], shape[1], shape[2] // 16, shape[3] // 16, generator=generator) * 3
    return F.interpolate(coarse.to(device), shape[2:], mode="bilinear").contiguous().to(dtype).requires_grad_()


def contestants(shape: tuple[int, ...], device: str = "cpu") -> dict[str, Callable[[], Loss]]:
    """Name → a function that makes the loss; each measurement process makes its own."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator).to(device)
    found: dict[str, Callable[[], Loss]] = {
        PSEUDO_CODE: lambda: PaperAdaDEM(shape[1], device),
        "ADVENT's entropy": lambda: advent_entropy,
        CROSS_ENTROPY: lambda: lambda logits: F.cross_entropy(logits, labels),
    }
    kernel = supports_kernel(torch.zeros(1, shape[1], device=device), shape[1])
    for title, (name, reduction) in OBJECTIVES.items():
        for backend in BACKENDS:
            if backend != "compiled" or kernel:
                found[f"{title}, {backend}"] = _ours(name, reduction, shape[1], backend, device)
    return found


def _ours(name: str, reduction: str, classes: int, backend: str, device: str) -> Callable[[], Loss]:
    def make() -> Loss:
        objective = build_objective(name, classes, backend=backend).to(device)
        return lambda logits: objective(logits, reduction=reduction)

    return make


def both_passes(loss: Loss, logits: Tensor) -> None:
    """Forward and backward."""
    logits.grad = None
    loss(logits).backward()


def measure_times(
    shape: tuple[int, ...], dtype: torch.dtype, calls: int, repeats: int, device: str
) -> dict[str, list[float]]:
    """Milliseconds per forward and backward pass, ``repeats`` of each contestant in turn, after two warm-up rounds."""
    logits, steps = make_logits(shape, device, dtype), dict[str, Callable[[], object]]()
    for name, make in contestants(shape, device).items():
        steps[name] = partial(both_passes, make(), logits)
    steps[COPY] = logits.detach().clone
    return times_in_turn(steps, device, repeats, warm_up=2, calls=calls)


def gpu_memory(shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, float]:
    """Every contestant's peak beyond logits and gradient, in units of the logits' bytes, by the allocator's record."""
    logits, found = make_logits(shape, "cuda", dtype), {}
    for name, make in contestants(shape, "cuda").items():
        logits.grad = None
        grown = memory_growth(partial(both_passes, make(), logits), "cuda") or 0
        found[name] = grown / (logits.numel() * logits.element_size()) - 1
    return found


def extra_memory(name: str, shape: tuple[int, ...]) -> float | None:
    """One contestant's peak in this process beyond logits and gradient, in units of the logits' bytes.

    A tiny call first loads libraries and starts threads.
    """
    both_passes(contestants((*shape[:2], 16, 16))[name](), make_logits((*shape[:2], 16, 16)))
    logits = make_logits(shape)
    grown = memory_growth(partial(both_passes, contestants(shape)[name](), logits))
    return None if grown is None else grown / (logits.numel() * logits.element_size()) - 1


HEADER = [
    "forward + backward", "median", "speed over pseudo code", "time over cross-entropy", "copies",
    "extra memory / logits",
]  # fmt: skip


def show(result: dict[str, Any]) -> None:
    """Print a Markdown table per shape, and the machine."""
    for shape, times in result["medians_ms"].items():
        rows = []
        for name, value in times.items():
            extra = result["extra_memory"].get(name) if shape == "map" else None
            speed, share = times[PSEUDO_CODE] / value, value / times[CROSS_ENTROPY]
            copies, beyond = f"{value / times[COPY]:.2f}", "" if extra is None else f"{extra:.2f}"
            rows.append([name, f"{value:.3g} ms", f"{speed:.2f}x", f"{share:.2f}x", copies, beyond])
        print(f"{shape}: {'x'.join(map(str, result['shapes'][shape]))}\n\n{markdown(HEADER, rows)}", end="")
    print(", ".join(f"{key}: {value}" for key, value in result["environment"].items()))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--threads", type=int, default=2, help="threads of torch and of the kernel")
    parser.add_argument("--repeats", type=int, default=21, help="measurements of each contestant")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="JSON file for the raw values")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)  # of the processes that measure it
    return parser.parse_args()


def main() -> None:
    """Measure, print, save."""
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        print(json.dumps(extra_memory(options.memory_of, SHAPES["map"][0])))
        return
    gpu = options.device == "cuda"
    shapes = GPU_SHAPES if gpu else SHAPES
    environment = machine(kernel=supports_kernel(torch.zeros(1, 7, device=options.device), 7))
    if gpu:
        environment |= {"gpu": torch.cuda.get_device_name(), "triton": version("triton")}
    times = {name: measure_times(*setting, options.repeats, options.device) for name, setting in shapes.items()}
    command = [__file__, "--threads", str(options.threads), "--memory-of"]
    memory = in_fresh_processes(contestants(SHAPES["map"][0]), command) if not gpu else gpu_memory(*shapes["map"][:2])
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
