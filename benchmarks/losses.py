"""Speed and memory of the objectives, beside the paper's pseudo code and cross-entropy.

    python benchmarks/losses.py [--threads 2] [--repeats 21] [--out docs/results/losses.json] [--markdown]

A number is one forward and one backward. Contestants take turns (A B C, A B C, …), and medians are compared within the
run, so a slow phase of the machine counts for all. Results: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from dem_apps import build_objective
from dem_apps.fused.kernel import supports_kernel
from dem_apps.runtime.device import processor

Loss = Callable[[Tensor], Tensor]

#: name → (shape, calls per measurement); the classes are dimension 1.
SHAPES = {"map": ((1, 19, 512, 1024), 1), "small": ((64, 7), 50)}
OBJECTIVES = {
    "adadem mean": ("adadem", "mean"),
    "adadem balanced": ("adadem", "balanced"),
    "entropy": ("entropy", "mean"),
}
BACKENDS = ("reference", "eager", "compiled", "auto")
PSEUDO_CODE, CROSS_ENTROPY, COPY = "paper's pseudo code", "F.cross_entropy", "copy of the logits"


class PaperAdaDEM:
    """Algorithm 1 as printed, with the permute that brings a map's logits into its shape (N, C)."""

    def __init__(self, num_classes: int) -> None:
        self.avg_pred = torch.ones(num_classes, num_classes) / num_classes

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


def make_logits(shape: tuple[int, ...]) -> Tensor:
    """Logits with the smooth, partly sure predictions of a segmentation network."""
    generator = torch.Generator().manual_seed(0)
    if len(shape) == 2:
        return (torch.randn(shape, generator=generator) * 2).requires_grad_()
    coarse = torch.randn(shape[0], shape[1], shape[2] // 16, shape[3] // 16, generator=generator) * 3
    return F.interpolate(coarse, shape[2:], mode="bilinear").contiguous().requires_grad_()


def contestants(shape: tuple[int, ...]) -> dict[str, Callable[[], Loss]]:
    """Name → a function that makes the loss; each measurement process makes its own."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
    found: dict[str, Callable[[], Loss]] = {
        PSEUDO_CODE: lambda: PaperAdaDEM(shape[1]),
        "ADVENT's entropy": lambda: advent_entropy,
        CROSS_ENTROPY: lambda: lambda logits: F.cross_entropy(logits, labels),
    }
    kernel = supports_kernel(torch.zeros(1, shape[1]), shape[1])
    for title, (name, reduction) in OBJECTIVES.items():
        for backend in BACKENDS:
            if backend != "compiled" or kernel:
                found[f"{title}, {backend}"] = _ours(name, reduction, shape[1], backend)
    return found


def _ours(name: str, reduction: str, classes: int, backend: str) -> Callable[[], Loss]:
    def make() -> Loss:
        objective = build_objective(name, classes, backend=backend)
        return lambda logits: objective(logits, reduction=reduction)

    return make


def measure_times(shape: tuple[int, ...], calls: int, repeats: int) -> dict[str, list[float]]:
    """Milliseconds per forward and backward pass, ``repeats`` of each contestant in turn, after two warm-up rounds."""
    logits = make_logits(shape)
    losses = {name: make() for name, make in contestants(shape).items()}
    times: dict[str, list[float]] = {name: [] for name in [*losses, COPY]}
    gc.disable()
    for turn in range(-2, repeats):
        for name in times:
            start = time.perf_counter()
            for _ in range(calls):
                if name == COPY:
                    logits.detach().clone()
                else:
                    logits.grad = None
                    losses[name](logits).backward()
            if turn >= 0:
                times[name].append((time.perf_counter() - start) * 1e3 / calls)
    gc.enable()
    return times


def measure_memory(shape: tuple[int, ...], options: argparse.Namespace) -> dict[str, float | None]:
    """Peak memory beyond logits and gradient, in units of the logits' bytes; each contestant in a fresh process."""
    found: dict[str, float | None] = {}
    for name in contestants(shape):
        command = [sys.executable, __file__, "--threads", str(options.threads), "--memory-of", name]
        if options.no_compiler:
            command.append("--no-compiler")
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        found[name] = json.loads(ran.stdout.splitlines()[-1])
    return found


def peak_of(name: str, shape: tuple[int, ...]) -> float | None:
    """One contestant's peak in this process: growth of the resident set (Linux's VmHWM), less the gradient's bytes.

    The resident set counts every buffer, the C++ kernel's own as well. A tiny call first loads libraries and
    starts threads. None where the peak cannot be reset, which needs Linux.
    """
    loss = contestants((shape[0], shape[1], *(16 for _ in shape[2:])))[name]()
    loss(make_logits((shape[0], shape[1], 16, 16))).backward()
    logits = make_logits(shape)
    loss = contestants(shape)[name]()
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status_kib("VmRSS")
        loss(logits).backward()
        grown = (_status_kib("VmHWM") - before) * 1024
    except OSError:
        return None
    own = logits.numel() * logits.element_size()
    return (grown - own) / own


def _status_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}")


def promises(medians: dict[str, dict[str, float]], memory: dict[str, float | None]) -> list[dict[str, Any]]:
    """The promised bounds beside the numbers of this run; ``met`` is None without a number."""
    times, small = medians["map"], medians["small"]
    auto, eager, plain = (f"adadem mean, {backend}" for backend in ("auto", "eager", "reference"))
    faster = "speed over the pseudo code"
    rows: list[tuple[str, str, float | None, float, bool]] = [
        (faster, "at least", times[PSEUDO_CODE] / times[auto], 6.0, True),
        (f"{faster} without a compiler (eager)", "at least", times[PSEUDO_CODE] / times[eager], 3.0, True),
        ("time over F.cross_entropy", "at most", times[auto] / times[CROSS_ENTROPY], 1.3, False),
        ("memory beyond logits and gradient, in logits", "at most", memory.get(auto), 0.25, False),
        ("small inputs: time over the plain equations", "at most", small[auto] / small[plain], 1.05, False),
    ]  # fmt: skip
    if "adadem mean, compiled" not in times:
        rows = rows[1:2] + rows[3:]  # the others are promises for a machine with a compiler
    return [
        {
            "promise": f"{what}: {relation} {bound}",
            "measured": value,
            "met": None if value is None else (value >= bound if upwards else value <= bound),
        }
        for what, relation, value, bound, upwards in rows
    ]


def environment(threads: int, no_compiler: bool) -> dict[str, Any]:
    """The machine and the versions that the numbers belong to."""
    return {
        "cpu": processor()[0],
        "cpu_count": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "threads": threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "kernel": not no_compiler and supports_kernel(torch.zeros(1, 7), 7),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": " ".join(["python", *sys.argv]),
    }


def table_rows(times: dict[str, float], memory: dict[str, float | None]) -> list[list[str]]:
    """A line per contestant: name, median, speed over the pseudo code, time over cross-entropy, memory."""
    return [
        [
            name,
            f"{value:.3g} ms",
            f"{times[PSEUDO_CODE] / value:.2f}x",
            f"{value / times[CROSS_ENTROPY]:.2f}x",
            "" if memory.get(name) is None else f"{memory[name]:.2f}",
        ]
        for name, value in times.items()
    ]


HEADER = ["forward + backward", "median", "speed over pseudo code", "time over cross-entropy", "extra memory / logits"]


def show(result: dict[str, Any], markdown: bool) -> None:
    """Print one table per shape and the promises."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    for shape, times in result["medians_ms"].items():
        title = "x".join(map(str, SHAPES[shape][0]))
        rows = table_rows(times, result["extra_memory"] if shape == "map" else {})
        if markdown:
            print(f"\n{title} float32\n\n" + _markdown(HEADER, rows))
            continue
        table = Table(*HEADER, title=f"{title} float32, {result['environment']['threads']} threads")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    verdicts = [
        [each["promise"], "-" if each["measured"] is None else f"{each['measured']:.2f}",
         {True: "met", False: "NOT met", None: "not measured"}[each["met"]]]
        for each in result["promises"]
    ]  # fmt: skip
    if markdown:
        print("\n" + _markdown(["promise", "measured", "in this run"], verdicts))
    else:
        table = Table("promise", "measured", "in this run")
        for row in verdicts:
            table.add_row(*row)
        console.print(table)
    print("\n" + ", ".join(f"{key}: {value}" for key, value in result["environment"].items()))


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="threads of torch and of the kernel")
    parser.add_argument("--repeats", type=int, default=21, help="measurements of each contestant")
    parser.add_argument("--out", type=Path, help="JSON file for the raw values")
    parser.add_argument("--markdown", action="store_true", help="print the tables as docs/benchmarks.md has them")
    parser.add_argument("--no-compiler", action="store_true", help="as on a machine that has no C++ compiler")
    parser.add_argument("--no-memory", action="store_true", help="leave the memory measurements out")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)  # how measure_memory calls its processes
    return parser.parse_args()


def main() -> None:
    """Measure, print, save."""
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    if options.no_compiler:
        os.environ.pop("CXX", None)
        os.environ["PATH"] = ""  # where the kernel looks for a compiler
    if options.memory_of:
        print(json.dumps(peak_of(options.memory_of, SHAPES["map"][0])))
        return
    env = environment(options.threads, options.no_compiler)
    times = {name: measure_times(shape, calls, options.repeats) for name, (shape, calls) in SHAPES.items()}
    medians = {name: {key: statistics.median(value) for key, value in each.items()} for name, each in times.items()}
    memory = {} if options.no_memory else measure_memory(SHAPES["map"][0], options)
    result = {
        "environment": env,
        "shapes": {name: list(shape) for name, (shape, _) in SHAPES.items()},
        "promises": promises(medians, memory),
        "medians_ms": medians,
        "extra_memory": memory,
        "times_ms": {name: {key: [round(t, 5) for t in value] for key, value in each.items()}
                     for name, each in times.items()},
    }  # fmt: skip
    show(result, options.markdown)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
