"""Speed and memory of the segmentation training step, beside a plain loop that follows ADVENT.

    python benchmarks/seg_step.py [--settings advent demo] [--scale 1.0] [--threads 2] [--repeats 5]
        [--out docs/results/seg_step.json]

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
import sys
import time
from pathlib import Path
from typing import Any

import torch
from measuring import in_fresh_processes, machine, medians_and_times, resident_growth, write_json
from seg_step_contestants import CLASSES, COMPARED_WITH, CONTESTANTS, SETTINGS, Contestant, Setting, chosen, make_step

from dem_apps.fused.kernel import supports_kernel
from dem_apps.report.tables import markdown
from dem_apps.runtime.device import processor, torch_device

Memory = dict[str, float | None]


def measure_times(setting: Setting, device: torch.device, options: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds per step, ``repeats`` measurements of each contestant in turn, after the warm-up rounds."""
    contestants = chosen(options.methods, setting, options.compiled)
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


def peak_of(setting: Setting, contestant: Contestant, device: torch.device) -> float | None:
    """MiB that two steps need beyond the network's weights: activations, gradients, momentum, maps.

    The allocator's record on a GPU; on a CPU growth of the resident set, None where there is no record of it. A tiny
    step first loads libraries and starts threads.
    """
    tiny = dataclasses.replace(SETTINGS["demo"], source=(32, 32), target=(32, 32))
    make_step(tiny, contestant, device)()
    step = make_step(setting, contestant, device)
    if device.type == "cuda":
        gc.collect()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step(), step()
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    grown = resident_growth(lambda: (step(), step()))
    return None if grown is None else grown / 2**20


def ratios(name: str, medians: dict[str, float], memory: Memory) -> tuple[float, float | None]:
    """Speed over what the method is compared with, and memory as a share of its."""
    plain = COMPARED_WITH[CONTESTANTS[name].method]
    own, theirs = memory.get(name), memory.get(plain)
    return medians[plain] / medians[name], own / theirs if own and theirs else None


def environment(device: torch.device, scale: float) -> dict[str, Any]:
    """The machine and the settings that the numbers belong to."""
    bf16 = [flag for flag in ("avx512_bf16", "amx_bf16") if flag in processor()[1]]
    kernel = supports_kernel(torch.zeros(1, CLASSES), CLASSES)
    found = machine(device=str(device), bf16_instructions=bf16, kernel=kernel, scale=scale)
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


def show(result: dict[str, Any]) -> None:
    """Print a Markdown table per setting, and the environment."""
    for name, setting in result["settings"].items():
        source, target = ("x".join(map(str, setting[domain])) for domain in ("source", "target"))
        print(f"#### {name}: {source} + {target}, batch {setting['batch']} + {setting['batch']}\n")
        print(markdown(HEADER, table_rows(result["medians_ms"][name], result["peak_mib"][name])), end="")
    print(", ".join(f"{key}: {value}" for key, value in result["environment"].items()))


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
    parser.add_argument("--compiled", action="store_true", help="with torch.compile as well; a minute each to begin")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch and of the kernel")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each contestant")
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before them, at least 1")
    parser.add_argument("--out", type=Path, help="JSON file for the raw values")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)  # of the processes that measure it
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
    found = environment(device, options.scale)
    command = [__file__, "--threads", str(options.threads), "--scale", str(options.scale)]
    command += ["--device", options.device, "--memory-of"]
    # memory first: its processes need room beside this one
    memory = {}
    for name in options.settings:
        contestants = chosen(options.methods, settings[name], options.compiled)
        memory[name] = in_fresh_processes(contestants, [*command, name])
    times = {name: measure_times(settings[name], device, options) for name in options.settings}
    result = {
        "environment": found,
        "settings": {name: dataclasses.asdict(settings[name]) for name in options.settings},
        "peak_mib": memory,
        **medians_and_times(times),
    }
    show(result)
    write_json(options.out, result)


if __name__ == "__main__":
    main()
