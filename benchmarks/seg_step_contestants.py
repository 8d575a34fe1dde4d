"""The settings and contestants of ``benchmarks/seg_step.py``, and the step of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from advent_loop import PlainLoop
from torch import Tensor

from dem_apps.runtime.reproducibility import seed_everything
from seg.config import TrainConfig
from seg.data.labels import IGNORE_INDEX
from seg.methods.optimization import MicroBatch
from seg.methods.settings import OptimizerConfig, WeightConfig
from seg.models.settings import ModelConfig
from seg.trained.run_network import build_network
from seg.training.loop import build_state
from seg.training.step import training_step

CLASSES = 19
Step = Callable[[], dict[str, float]]


@dataclass(frozen=True)
class Setting:
    """Image sizes (width, height) of the two domains, images per domain, steps per measurement, the network."""

    source: tuple[int, int]
    target: tuple[int, int]
    batch: int
    steps: int
    model: ModelConfig

    def scaled(self, scale: float) -> Setting:
        """With both sides of the images ``scale`` times as long, in multiples of 8."""
        source, target = (
            (max(16, round(w * scale / 8) * 8), max(16, round(h * scale / 8) * 8))
            for w, h in (self.source, self.target)
        )
        return dataclasses.replace(self, source=source, target=target)


@dataclass(frozen=True)
class Contestant:
    """A way to make the step; ``plain`` is the reference loop."""

    method: str
    loss: str
    precision: str = "float32"
    plain: bool = False
    compile: bool = False


SETTINGS = {
    "advent": Setting(
        (1280, 720), (1024, 512), 1, 1,
        ModelConfig(encoder="resnet101", depth=5, output_stride=8, batch_norm="affine-frozen"),
    ),
    "demo": Setting(
        (192, 96), (192, 96), 2, 5,
        ModelConfig(encoder="resnet18", depth=3, output_stride=4, batch_norm="affine-frozen"),
    ),
    # ADVENT's target size for both: self-training pastes one image into the other
    "one-size": Setting(
        (1024, 512), (1024, 512), 1, 1,
        ModelConfig(encoder="resnet101", depth=5, output_stride=8, batch_norm="affine-frozen"),
    ),
}  # fmt: skip
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
    "minent": "plain loop, MinEnt", "advent": "plain loop, AdvEnt", "self-training": "MinEnt, float32",
}  # fmt: skip


def micro_batch(setting: Setting) -> MicroBatch:
    """A source and a target batch: noise of unit variance, labels in blocks of 16 pixels, one in ten unlabelled."""
    generator = torch.Generator().manual_seed(0)

    def images(size: tuple[int, int]) -> Tensor:
        return torch.randn(setting.batch, 3, size[1], size[0], generator=generator)

    width, height = setting.source
    coarse = torch.randint(CLASSES + 2, (setting.batch, 1, height // 16 + 1, width // 16 + 1), generator=generator)
    coarse[coarse >= CLASSES] = IGNORE_INDEX
    label = coarse.repeat_interleave(16, 2).repeat_interleave(16, 3)[:, 0, :height, :width].contiguous()
    names = [f"{i}.png" for i in range(setting.batch)]
    draws = torch.arange(setting.batch)
    return MicroBatch(
        {"image": images(setting.source), "label": label, "name": names, "draw": draws},
        {"image": images(setting.target), "name": names, "draw": draws},
    )


def make_step(setting: Setting, contestant: Contestant, device: torch.device) -> Step:
    """A function that makes one step; every contestant begins with the same weights."""
    config = TrainConfig(
        method=contestant.method,
        loss=contestant.loss,
        reduction="mean",
        precision=contestant.precision,
        compile=contestant.compile,
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
    while more := {COMPARED_WITH[CONTESTANTS[name].method] for name in needed} - needed:
        needed |= more
    found = {name: each for name, each in CONTESTANTS.items() if each.method in can or name in needed}
    return {name: each for name, each in found.items() if compiled or not each.compile}
