"""Speed and memory of the segmentation training step, against a plain loop of ADVENT's: docs/benchmarks.md.

    python benchmarks/seg_step.py [--settings advent demo] [--scale 1.0] [--threads 2] [--repeats 5]
        [--out docs/results/seg_step.json]

A number is one training step: source and target forward, losses of both heads, both backwards, the optimisers. Both
sides have the same network, weights, images and schedule; their losses at the first step must agree. Contestants take
turns (A B C, A B C, …), and medians are compared within the run, so a slow phase of the machine counts for all. Peak
memory is measured in a fresh process for each.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from advent_loop import PlainLoop
from csv_rows import parser_of
from measuring import (
    in_fresh_processes,
    machine,
    medians_and_times,
    memory_growth,
    times_in_turn,
    write_json,
)

from dem_apps.fused.kernel import supports_kernel
from dem_apps.report.tables import markdown
from dem_apps.runtime.device import processor, torch_device
from dem_apps.runtime.reproducibility import seed_everything
from seg.config import TrainConfig
from seg.data.labels import IGNORE_INDEX
from seg.methods.optimization import MicroBatch
from seg.methods.settings import OptimizerConfig, WeightConfig
from seg.models.settings import ModelConfig
from seg.trained.run_network import build_network
from seg.training.setup import build_state
from seg.training.step import training_step

CLASSES = 19
Step = Callable[[], dict[str, float]]


class Setting(NamedTuple):
    """Image sizes (width, height) of the two domains, images per domain, steps per measurement, the network."""

    source: tuple[int, int]
    target: tuple[int, int]
    batch: int
    steps: int
    model: ModelConfig

    def scaled(self, scale: float) -> Setting:
        """With both sides of the images ``scale`` times as long, in multiples of 8."""

        def scaled(side: int) -> int:
            return max(16, round(side * scale / 8) * 8)

        source, target = (
            (scaled(width), scaled(height)) for width, height in (self.source, self.target)
        )
        return self._replace(source=source, target=target)


class Contestant(NamedTuple):
    """A way to make the step; ``plain`` is the reference loop."""

    method: str
    loss: str
    precision: str = "float32"
    plain: bool = False
    compile: bool = False


_RESNET101 = ModelConfig(encoder="resnet101", depth=5, output_stride=8, batch_norm="affine-frozen")
_RESNET18 = ModelConfig(encoder="resnet18", depth=3, output_stride=4, batch_norm="affine-frozen")
SETTINGS = {
    "advent": Setting((1280, 720), (1024, 512), 1, 1, _RESNET101),
    "demo": Setting((192, 96), (192, 96), 2, 5, _RESNET18),
    # ADVENT's target size for both: self-training pastes one image into the other
    "one-size": Setting((1024, 512), (1024, 512), 1, 1, _RESNET101),
}
#: float32 before bf16: accelerate has one state per process, which accelerators of mixed precision read.
CONTESTANTS = {
    "plain loop, MinEnt": Contestant("minent", "entropy", plain=True),
    "plain loop, AdvEnt": Contestant("advent", "none", plain=True),
    "MinEnt, float32": Contestant("minent", "entropy"),
    "MinEnt + AdaDEM, float32": Contestant("minent", "adadem"),
    "AdvEnt, float32": Contestant("advent", "none"),
    "MinEnt, bf16": Contestant("minent", "entropy", "bf16"),
    "MinEnt + AdaDEM, bf16": Contestant("minent", "adadem", "bf16"),
    "AdvEnt, bf16": Contestant("advent", "none", "bf16"),
    "MinEnt + AdaDEM, bf16, compiled": Contestant("minent", "adadem", "bf16", compile=True),
    "self-training, float32": Contestant("self-training", "none"),
}
#: The reference of each method; self-training has no plain loop here.
COMPARED_WITH = {
    "minent": "plain loop, MinEnt",
    "advent": "plain loop, AdvEnt",
    "self-training": "MinEnt, float32",
}


def micro_batch(setting: Setting) -> MicroBatch:
    """A source and a target batch: noise of unit variance, labels in blocks of 16 pixels, one in ten unlabelled."""
    generator = torch.Generator().manual_seed(0)
    width, height = setting.source
    coarse = torch.randint(
        CLASSES + 2, (setting.batch, 1, height // 16 + 1, width // 16 + 1), generator=generator
    )
    coarse[coarse >= CLASSES] = IGNORE_INDEX
    label = (
        coarse.repeat_interleave(16, 2).repeat_interleave(16, 3)[:, 0, :height, :width].contiguous()
    )
    sizes = (setting.source, setting.target)
    source, target = (torch.randn(setting.batch, 3, h, w, generator=generator) for w, h in sizes)
    known = {
        "name": [f"{i}.png" for i in range(setting.batch)],
        "draw": torch.arange(setting.batch),
    }
    return MicroBatch({"image": source, "label": label, **known}, {"image": target, **known})


def make_step(setting: Setting, contestant: Contestant, device: torch.device) -> Step:
    """A function that makes one step; every contestant begins with the same weights."""
    config = TrainConfig(
        **{name: getattr(contestant, name) for name in ("method", "loss", "precision", "compile")},
        reduction="mean",
        batch_size=setting.batch,
        max_steps=120_000,
        model=setting.model,
        optimizer=OptimizerConfig(name="sgd", lr=2.5e-4, head_factor=10.0, horizon=250_000),
        weights=WeightConfig(target_main=0.001, aux=0.2, relative=False),
    )
    batch = micro_batch(setting)
    seed_everything(0)
    if contestant.plain:
        loop = PlainLoop(config, CLASSES, device)
        return lambda: loop.step(*batch)
    AcceleratorState._reset_state()
    precision = "no" if contestant.precision == "float32" else contestant.precision
    accelerator = Accelerator(mixed_precision=precision, cpu=device.type == "cpu")
    config = config.resolved()
    network = build_network(config.model, CLASSES)
    state = build_state(config.for_network(network), network, CLASSES, accelerator)
    return lambda: training_step(state, [batch])


def chosen(methods: Sequence[str], setting: Setting, compiled: bool) -> dict[str, Contestant]:
    """The contestants of these methods, with what they are compared with; the compiled ones if asked for."""
    can = [each for each in methods if each != "self-training" or setting.source == setting.target]
    needed = {COMPARED_WITH[each] for each in can}
    needed |= {COMPARED_WITH[CONTESTANTS[name].method] for name in needed}
    found = {
        name: each for name, each in CONTESTANTS.items() if each.method in can or name in needed
    }
    return {name: each for name, each in found.items() if compiled or not each.compile}


def measure_times(
    setting: Setting, device: torch.device, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Milliseconds per step, ``repeats`` measurements of each contestant in turn, after the warm-up rounds."""
    contestants = chosen(options.methods, setting, options.compiled)
    steps = {
        name: make_step(setting, contestant, device) for name, contestant in contestants.items()
    }
    # all have the same weights at the first step only; it is part of the warm-up
    check_agreement(contestants, {name: step() for name, step in steps.items()})
    return times_in_turn(steps, device.type, options.repeats, options.warm_up - 1, setting.steps)


def check_agreement(
    contestants: dict[str, Contestant], losses: dict[str, dict[str, float]]
) -> None:
    """End the benchmark if the two sides do not compute the same losses, up to rounding: on a GPU that of TF32."""
    rounded = torch.cuda.is_available() and torch.backends.cudnn.allow_tf32
    for name, contestant in contestants.items():
        plain = losses[COMPARED_WITH[contestant.method]]
        tolerance = (1e-2 if rounded else 1e-3) if contestant.precision == "float32" else 0.1
        # AdaDEM is another objective, and self-training has other target images
        others = {"self-training": "target/"}.get(contestant.method, "target/objective")
        common = [
            key for key in plain if contestant.loss == "entropy" or not key.startswith(others)
        ]
        for key in common:
            if not math.isclose(losses[name][key], plain[key], rel_tol=tolerance):
                sys.exit(
                    f"{name}: {key} is {losses[name][key]} at the first step, {plain[key]} in the plain loop"
                )


def peak_of(setting: Setting, contestant: Contestant, device: torch.device) -> float | None:
    """MiB that two steps need beyond the network's weights: activations, gradients, momentum, maps.

    The allocator's record on a GPU; on a CPU growth of the resident set, None where there is no record of it. A tiny
    step first loads libraries and starts threads.
    """
    tiny = SETTINGS["demo"]._replace(source=(32, 32), target=(32, 32))
    make_step(tiny, contestant, device)()
    step = make_step(setting, contestant, device)
    grown = memory_growth(lambda: (step(), step()), device.type)
    return None if grown is None else grown / 2**20


def show(result: dict[str, Any]) -> None:
    """Print a Markdown table per setting, and the environment."""
    heads = [
        "training step",
        "median",
        "speed over its reference",
        "peak memory",
        "memory / reference",
    ]
    for name, setting in result["settings"].items():
        source, target = ("x".join(map(str, setting[domain])) for domain in ("source", "target"))
        print(f"#### {name}: {source} + {target}, batch {setting['batch']} + {setting['batch']}\n")
        memory, medians, rows = result["peak_mib"][name], result["medians_ms"][name], []
        for contestant, value in medians.items():
            plain = COMPARED_WITH[CONTESTANTS[contestant].method]
            peak, plain_peak = memory.get(contestant), memory.get(plain)
            share = f"{peak / plain_peak:.2f}" if peak and plain_peak else ""
            used = "" if peak is None else f"{peak:.0f} MiB"
            rows.append(
                [contestant, f"{value:.0f} ms", f"{medians[plain] / value:.2f}x", used, share]
            )
        print(markdown(heads, rows), end="")
    print(", ".join(f"{key}: {value}" for key, value in result["environment"].items()))


def main() -> None:
    """Measure, print, save."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="sizes and networks"
    )
    parser.add_argument("--methods", nargs="+", choices=COMPARED_WITH, default=list(COMPARED_WITH))
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the sides of the images of advent and one-size"
    )
    parser.add_argument(
        "--compiled", action="store_true", help="with torch.compile as well; a minute each to begin"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch and of the kernel")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each contestant")
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before them, at least 1")
    parser.add_argument("--out", type=Path, help="JSON file for the raw values")
    # of the processes that measure it
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch_device(options.device)
    settings = SETTINGS | {
        name: SETTINGS[name].scaled(options.scale) for name in ("advent", "one-size")
    }
    if options.memory_of:
        setting, name = options.memory_of
        print(json.dumps(peak_of(settings[setting], CONTESTANTS[name], device)))
        return
    bf16 = [flag for flag in ("avx512_bf16", "amx_bf16") if flag in processor()[1]]
    kernel = supports_kernel(torch.zeros(1, CLASSES), CLASSES)
    computer = machine(
        device.type, device=str(device), bf16_instructions=bf16, kernel=kernel, scale=options.scale
    )
    if device.type == "cuda":
        computer["tf32_convolutions"] = torch.backends.cudnn.allow_tf32
        computer["tf32_matmul"] = torch.backends.cuda.matmul.allow_tf32
    command = [__file__, "--threads", str(options.threads), "--scale", str(options.scale)]
    command += ["--device", options.device, "--memory-of"]
    settings = {name: settings[name] for name in options.settings}
    # memory first: its processes need room beside this one
    contestants = {
        name: chosen(options.methods, each, options.compiled) for name, each in settings.items()
    }
    memory = {
        name: in_fresh_processes(each, [*command, name]) for name, each in contestants.items()
    }
    times = {name: measure_times(each, device, options) for name, each in settings.items()}
    result = {
        "environment": computer,
        "settings": {
            name: each._asdict() | {"model": asdict(each.model)} for name, each in settings.items()
        },
        "peak_mib": memory,
        **medians_and_times(times),
    }
    show(result)
    write_json(options.out, result)


if __name__ == "__main__":
    main()
