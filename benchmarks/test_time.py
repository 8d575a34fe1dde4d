"""Time and memory of a step of TestTimeAdapter, against the shortest Tent loop, for docs/benchmarks.md.

    OMP_NUM_THREADS=1 python benchmarks/test_time.py [--size 128] [--batch 4] [--rounds 15] [--out FILE.json]

All adapt the same network to the same batches in turn. Time is the median over rounds, of the process on a CPU; memory
is the peak of PyTorch's allocator in a step, on a CPU summed from the profiler's events. The network is a DeepLabV3+ on
ResNet-18 of segmentation-models-pytorch with 19 classes.
"""

import copy
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import segmentation_models_pytorch as smp
import torch
from csv_rows import parser_of
from measuring import machine, memory_growth, times_in_turn, write_json
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from dem_apps import TestTimeAdapter

METHODS: dict[str, dict[str, Any]] = {
    "tent": {},
    "tent, adadem balanced": {"method": "tent", "objective": "adadem", "reduction": "balanced"},
    # an untrained network is uncertain everywhere
    "eta": {"similarity": 1.0, "entropy_margin": 10.0},
    "sar": {"reset_below": 0.0, "entropy_margin": 10.0},
}


def main() -> None:
    """Print and write one row per method, relative to the loop."""
    parser = parser_of(__doc__)
    for name, default in (("--size", 128), ("--batch", 4), ("--rounds", 15)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    computer = machine(device, device=device)
    torch.manual_seed(0)
    model = smp.DeepLabV3Plus("resnet18", encoder_weights=None, classes=19).to(device)
    images = torch.randn(arguments.batch, 3, arguments.size, arguments.size, device=device)
    adapters: dict[str, Callable[[Tensor], Tensor]] = {"loop": shortest_tent(copy.deepcopy(model))}
    for name, options in METHODS.items():
        adapters[name] = TestTimeAdapter(
            copy.deepcopy(model), **{"method": name, "lr": 1e-5, **options}
        )
    steps = {name: partial(adapter, images) for name, adapter in adapters.items()}
    clock = time.perf_counter if device == "cuda" else time.process_time
    times = times_in_turn(steps, device, arguments.rounds, warm_up=2, clock=clock)
    medians = {name: statistics.median(each) for name, each in times.items()}
    peaks = {name: peak(step, device) for name, step in steps.items()}
    rows = []
    for name, own, most in zip(steps, medians.values(), peaks.values(), strict=True):
        over = {"time": round(own / medians["loop"], 3), "memory": round(most / peaks["loop"], 3)}
        rows.append(
            {"step": name, "milliseconds": round(own, 2), "megabytes": round(most / 1e6, 2), **over}
        )
        print(rows[-1])
    how = {name: getattr(arguments, name) for name in ("size", "batch", "rounds")}
    write_json(arguments.out, {"machine": computer, **how, "rows": rows})


def shortest_tent(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Tent without options."""
    model.eval().requires_grad_(False)
    parameters = []
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean = layer.running_var = None
            parameters += list(layer.requires_grad_(True).parameters())
    optimizer = torch.optim.SGD(parameters, 1e-5, momentum=0.9)

    def step(images: Tensor) -> Tensor:
        logits = model(images)
        loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return logits.detach()

    return step


def peak(step: Callable[[], object], device: str) -> int:
    """Peak bytes of a step beyond those before it."""
    if device == "cuda":
        return memory_growth(step, device) or 0
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    changes = [
        event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    in_order = sorted(changes, key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in in_order), initial=0))


if __name__ == "__main__":
    main()
