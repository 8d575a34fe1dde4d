"""Helpers of the benchmarks of speed and memory: the machine, times in turn, peak memory, the file of results."""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dem_apps.runtime import files
from dem_apps.runtime.device import processor


def machine(kind: str = "cpu", **more: Any) -> dict[str, Any]:
    """The machine, its load before the measurements, and the versions and settings that numbers belong to."""
    return {
        "cpu": processor()[0],
        "cpu_count": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **({"gpu": torch.cuda.get_device_name()} if kind == "cuda" else {}),
        **more,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": " ".join(["python", *sys.argv]),
    }


def times_in_turn(
    steps: Mapping[str, Callable[[], object]],
    device: str,
    repeats: int,
    warm_up: int,
    calls: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Milliseconds of a call of each step: measurements in turn (A B C, A B C, …), after rounds that warm up."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    gc.disable()
    for turn in range(-warm_up, repeats):
        for name, step in steps.items():
            wait()
            start = clock()
            for _ in range(calls):
                step()
            wait()
            if turn >= 0:
                times[name].append((clock() - start) * 1e3 / calls)
    gc.enable()
    return times


def memory_growth(call: Callable[[], object], device: str = "cpu") -> int | None:
    """Bytes from before a call to its peak: on a GPU by the allocator's record, else of the resident set (VmHWM).

    The resident set counts every buffer of every library, the C++ kernel's own as well. None where Linux cannot reset
    its peak.
    """
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status_bytes("VmRSS")
        call()
        return _status_bytes("VmHWM") - before
    except (OSError, KeyError):
        return None


def _status_bytes(field: str) -> int:
    found = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(found[field].split()[0])


def in_fresh_processes(names: Iterable[str], command: Sequence[str]) -> dict[str, Any]:
    """By name, the JSON that a Python script with its arguments, and the name behind them, prints last."""
    found = {}
    for name in names:
        ran = subprocess.run(
            [sys.executable, *command, name], check=True, stdout=subprocess.PIPE, text=True
        )
        found[name] = json.loads(ran.stdout.splitlines()[-1])
    return found


def medians_and_times(times: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """``medians_ms`` and ``times_ms`` of a document, by setting and contestant."""
    medians = {
        name: {key: statistics.median(each) for key, each in by.items()}
        for name, by in times.items()
    }
    rounded = {
        name: {key: [round(t, 5) for t in each] for key, each in by.items()}
        for name, by in times.items()
    }
    return {"medians_ms": medians, "times_ms": rounded}


def write_json(out: Path | None, document: dict[str, Any]) -> None:
    """Write a document of results, where a file is asked for."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(out, document)
