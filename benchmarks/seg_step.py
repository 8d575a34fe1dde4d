"""Speed and memory of the segmentation training step, beside a plain loop that follows ADVENT.

    python benchmarks/seg_step.py [--settings advent demo] [--scale 1.0] [--threads 2] [--repeats 5]
        [--out docs/results/seg_step.json] [--markdown]

A number is one training step: source and target forward, losses of both heads, both backwards, the optimisers. Both
sides have the same network, weights, images and schedule; their losses at the first step must agree. Contestants take
turns (A B C, A B C, …), and medians are compared within the run, so a slow phase of the machine counts for all. Peak
memory is measured in a fresh process for each. Results: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from seg_step_contestants import CLASSES, COMPARED_WITH, CONTESTANTS, SETTINGS, Contestant, Setting, chosen, make_step

from dem_apps.fused.kernel import supports_kernel
from dem_apps.report.tables import markdown
from dem_apps.runtime.device import processor, torch_device

Memory = dict[str, float | None]


def measure_times(setting: Setting, device: torch.device, options: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds per step, ``repeats`` measurements of each contestant in turn, after the warm-up rounds."""
    contestants = chosen(options.methods, setting)
    steps = {name: make_step(setting, contestant, device) for name, contestant in contestants.items()}
    # all have the same weights at the first step only; it is part of the warm-up
    check_agreement(contestants, {name: step() for name, step in steps.items()})
    times: dict[str, list[float]] = {name: [] for name in steps}
    gc.disable()
    for turn in range(1 - options.warm_up, options.repeats):
        for name, step in steps.items():
            _wait_for(device)
            start = time.perf_counter()
            for _ in range(setting.steps):
                step()
            _wait_for(device)
            if turn >= 0:
                times[name].append((time.perf_counter() - start) * 1e3 / setting.steps)
    gc.enable()
    return times


def check_agreement(contestants: dict[str, Contestant], losses: dict[str, dict[str, float]]) -> None:
    """End the benchmark if the two sides do not compute the same losses."""
    for name, contestant in contestants.items():
        plain = losses[COMPARED_WITH[contestant.method]]
        tolerance = 1e-3 if contestant.precision == "float32" else 0.1
        # AdaDEM is another objective, and self-training has other target images
        others = {"self-training": "target/"}.get(contestant.method, "target/objective")
        common = [key for key in plain if contestant.loss == "entropy" or not key.startswith(others)]
        for key in common:
            if not math.isclose(losses[name][key], plain[key], rel_tol=tolerance):
                sys.exit(f"{name}: {key} is {losses[name][key]} at the first step, {plain[key]} in the plain loop")


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_memory(name_of_setting: str, options: argparse.Namespace) -> Memory:
    """Peak memory of a step in MiB; each contestant in a fresh process."""
    found: Memory = {}
    for name in chosen(options.methods, SETTINGS[name_of_setting]):
        command = [sys.executable, __file__, "--threads", str(options.threads), "--scale", str(options.scale)]
        command += ["--device", options.device, "--memory-of", name_of_setting, name]
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found[name] = json.loads(ran.stdout.splitlines()[-1])
    return found


def peak_of(setting: Setting, contestant: Contestant, device: torch.device) -> float | None:
    """MiB that two steps need beyond the network's weights: activations, gradients, momentum, maps.

    The allocator's record on a GPU; on a CPU growth of the resident set (Linux's VmHWM), which counts every buffer
    of every library. A tiny step first loads libraries and starts threads. None where there is no such record.
    """
    tiny = dataclasses.replace(SETTINGS["demo"], source=(32, 32), target=(32, 32))
    make_step(tiny, contestant, device)()
    step = make_step(setting, contestant, device)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step(), step()
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    try:
        Path("/proc/self/clear_refs").write_text("5")
        resident = _status_kib("VmRSS")
        step(), step()
        return (_status_kib("VmHWM") - resident) / 2**10
    except OSError:
        return None


def _status_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}")


def ratios(name: str, medians: dict[str, float], memory: Memory) -> tuple[float, float | None]:
    """Speed over what the method is compared with, and memory as a share of its."""
    plain = COMPARED_WITH[CONTESTANTS[name].method]
    own, theirs = memory.get(name), memory.get(plain)
    return medians[plain] / medians[name], own / theirs if own and theirs else None


def promises(setting: str, medians: dict[str, float], memory: Memory, cuda: bool) -> list[dict[str, Any]]:
    """The promised bounds beside the numbers of this run; ``met`` is None without a number."""
    bound = 3.0 if cuda else 1.5
    rows: list[dict[str, Any]] = []
    for name, contestant in CONTESTANTS.items():
        if name not in medians or contestant.plain or contestant.loss == "adadem":
            continue
        speed, share = ratios(name, medians, memory)
        if contestant.method == "self-training":
            met = None if share is None else share <= 1.2
            rows += [
                {"promise": f"{setting}, {name}: at most 2.0 steps of MinEnt", "measured": 1 / speed,
                 "met": speed >= 0.5},
                {"promise": f"{setting}, {name}: peak memory: at most 1.2 of MinEnt's", "measured": share, "met": met},
            ]  # fmt: skip
            continue
        met = None if share is None else share <= 0.6
        rows += [
            {"promise": f"{setting}, {name}: speed: at least {bound}", "measured": speed, "met": speed >= bound},
            {"promise": f"{setting}, {name}: peak memory: at most 0.6", "measured": share, "met": met},
        ]
    return rows


def environment(device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """The machine and the versions that the numbers belong to."""
    cpu, flags = processor()
    found = {
        "device": str(device),
        "cpu": cpu,
        "cpu_count": os.cpu_count(),
        "bf16_instructions": [flag for flag in ("avx512_bf16", "amx_bf16") if flag in flags],
        "load_before": os.getloadavg()[0],
        "threads": options.threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "kernel": supports_kernel(torch.zeros(1, CLASSES), CLASSES),
        "scale": options.scale,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": " ".join(["python", *sys.argv]),
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["tf32_convolutions"] = torch.backends.cudnn.allow_tf32
        found["tf32_matmul"] = torch.backends.cuda.matmul.allow_tf32
    return found


HEADER = ["training step", "median", "speed over its reference", "peak memory", "memory / reference"]


def table_rows(medians: dict[str, float], memory: Memory) -> list[list[str]]:
    """A line per contestant: name, median, speed over its reference, peak memory, its share of the reference's."""
    rows = []
    for name, value in medians.items():
        speed, share = ratios(name, medians, memory)
        peak = memory.get(name)
        rows.append(
            [
                name,
                f"{value:.0f} ms",
                f"{speed:.2f}x",
                "" if peak is None else f"{peak:.0f} MiB",
                "" if share is None else f"{share:.2f}",
            ]
        )
    return rows


def show(result: dict[str, Any], as_markdown: bool) -> None:
    """Print one table per setting, the promises and the environment."""
    for name, setting in result["settings"].items():
        source, target = ("x".join(map(str, setting[domain])) for domain in ("source", "target"))
        title = f"{name}: {source} + {target}, batch {setting['batch']} + {setting['batch']}"
        _print(title, HEADER, table_rows(result["medians_ms"][name], result["peak_mib"][name]), as_markdown)
    verdicts = [
        [each["promise"], "-" if each["measured"] is None else f"{each['measured']:.2f}",
         {True: "met", False: "NOT met", None: "not measured"}[each["met"]]]
        for each in result["promises"]
    ]  # fmt: skip
    _print("promises", ["promise", "measured", "in this run"], verdicts, as_markdown)
    print("\n" + ", ".join(f"{key}: {value}" for key, value in result["environment"].items()))


def _print(title: str, header: list[str], rows: list[list[str]], as_markdown: bool) -> None:
    if as_markdown:
        print(f"\n#### {title}\n\n{markdown(header, rows)}", end="")
        return
    table = Table(*header, title=title)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="sizes and networks")
    parser.add_argument(
        "--methods", nargs="+", choices=COMPARED_WITH, default=list(COMPARED_WITH), help="methods to measure"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="images of the settings advent and one-size, sides times this"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch and of the kernel")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each contestant")
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before them, at least 1")
    parser.add_argument("--out", type=Path, help="JSON file for the raw values")
    parser.add_argument("--markdown", action="store_true", help="print the tables as docs/benchmarks.md has them")
    parser.add_argument("--no-memory", action="store_true", help="leave the memory measurements out")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)  # how measure_memory calls its processes
    options = parser.parse_args()
    for name, least in (("threads", 1), ("repeats", 1), ("warm_up", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')}: expected {least} or more, got {getattr(options, name)}")
    if not 0.0 < options.scale <= 4.0:
        parser.error(f"--scale: expected a number above 0 and up to 4, got {options.scale}")
    return options


def main() -> None:
    """Measure, print, save."""
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    device = torch_device(options.device)
    settings = SETTINGS | {name: SETTINGS[name].scaled(options.scale) for name in ("advent", "one-size")}
    if options.memory_of:
        setting, name = options.memory_of
        print(json.dumps(peak_of(settings[setting], CONTESTANTS[name], device)))
        return
    found = environment(device, options)
    # memory first: its processes need room beside this one
    memory = {name: {} if options.no_memory else measure_memory(name, options) for name in options.settings}
    times = {name: measure_times(settings[name], device, options) for name in options.settings}
    medians = {name: {key: statistics.median(value) for key, value in each.items()} for name, each in times.items()}
    result = {
        "environment": found,
        "settings": {name: dataclasses.asdict(settings[name]) for name in options.settings},
        "promises": [row for name in options.settings
                     for row in promises(name, medians[name], memory[name], device.type == "cuda")],
        "medians_ms": medians,
        "peak_mib": memory,
        "times_ms": {name: {key: [round(t, 3) for t in value] for key, value in each.items()}
                     for name, each in times.items()},
    }  # fmt: skip
    show(result, options.markdown)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
