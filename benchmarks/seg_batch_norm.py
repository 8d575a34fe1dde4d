"""Scores under batch norm statistics of the source, of both domains and of the target, without adaptation loss.

    OMP_NUM_THREADS=1 python benchmarks/seg_batch_norm.py [--worlds 0:1.0 1:1.0 2:1.5] [--seeds 0 1 2] [--steps 700]
        [--out docs/results/seg_batch_norm.csv] [--markdown]

In training every policy but ``frozen`` normalises by the batch, so with ``--loss none`` the policies differ in their
running statistics alone: one training gives the scores of ``source`` (also of ``--method source``), of ``target``, of
``trainable`` (both domains, as in ADVENT) and of statistics re-estimated on target images at the end (AdaBN). A
world is ``SEED:GAP``. The same command continues with the missing rows.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from csv_rows import CsvRows
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dem_apps.report.intervals import difference_interval, mean_interval
from dem_apps.report.tables import markdown
from dem_apps.runtime.reproducibility import seed_everything
from seg.config import DemoConfig, ModelConfig, TrainConfig
from seg.data.domains import DomainPair, open_pair
from seg.data.loader import labelled_sampler
from seg.models.adaptive_batch_norm import re_estimated_on
from seg.scores.evaluation import evaluate
from seg.step import TrainState, training_step
from seg.training.loop import _SOURCE_STREAM, _steps, build_state

KEYS = ("world", "seed", "steps")
POLICIES = ("source", "trainable", "target", "re-estimated")


def main() -> None:
    """Measure and append the missing rows, or print the table."""
    arguments = _arguments()
    rows = CsvRows(arguments.out, KEYS, POLICIES)
    if arguments.markdown:
        print(_table(list(rows.rows.values())), end="")
        return
    for seed, world, steps in itertools.product(arguments.seeds, arguments.worlds, arguments.steps):
        row = {"world": world, "seed": seed, "steps": steps}
        if rows.get(row) is None:
            print(rows.add(row | _scores(world, seed, steps)), flush=True)


def _scores(world: str, seed: int, steps: int) -> dict[str, float]:
    world_seed, gap = world.split(":")
    config = TrainConfig(
        method="minent", loss="none", seed=seed, max_steps=steps,
        demo=DemoConfig(int(world_seed), float(gap)), model=ModelConfig(batch_norm="trainable", encoder_weights=None),
    )  # fmt: skip
    AcceleratorState._reset_state()
    accelerator = Accelerator(cpu=True)
    seed_everything(seed)
    pair = open_pair(config.source, config.target, demo=config.demo)
    state = build_state(config, len(pair.classes), accelerator)
    statistics = _train(config, state, pair, accelerator)
    model = state.model
    statistics["re-estimated"] = _read(re_estimated_on(pair.target_train, model, accelerator.device, 1.0).network)
    results = {}
    for name in POLICIES:
        _write(model, statistics[name])
        results[name] = evaluate(model, pair.target_val, pair.classes, accelerator.device)["miou"]
    return results


def _train(config: TrainConfig, state: TrainState, pair: DomainPair, accelerator: Accelerator) -> dict[str, Tensor]:
    """The running statistics under each policy; a step moves those of the source, then those of the target."""
    kept = 1.0 - float(next(_layers(state.model)).momentum or 0.0)
    before = source = target = _read(state.model)
    between = before

    def after_source(_logits: dict[str, Tensor]) -> None:
        nonlocal between
        between = _read(state.model)

    state.method.after_source = after_source  # type: ignore[method-assign]
    sampler = labelled_sampler(pair.labelled, (config.seed, _SOURCE_STREAM))
    for micro_batches in _steps(config, pair, sampler, accelerator, 0):
        training_step(state, micro_batches)
        after = _read(state.model)
        # a batch adds the same to the joined statistics and to those of its domain
        source = kept * source + between - kept * before
        target = kept * target + after - kept * between
        before = after
    return {"source": source, "target": target, "trainable": before}


def _layers(model: nn.Module) -> Iterator[_BatchNorm]:
    return (module for module in model.modules() if isinstance(module, _BatchNorm))


def _read(model: nn.Module) -> Tensor:
    parts = [part for layer in _layers(model) for part in (layer.running_mean, layer.running_var)]
    return torch.cat([part.double() for part in parts if part is not None])


def _write(model: nn.Module, statistics: Tensor) -> None:
    parts = [part for layer in _layers(model) for part in (layer.running_mean, layer.running_var) if part is not None]
    for part, values in zip(parts, statistics.split([part.numel() for part in parts]), strict=True):
        part.copy_(values)


def _table(rows: list[Mapping[str, Any]]) -> str:
    """Mean mIoU per world and number of steps, with the difference to ``trainable`` seed by seed."""
    lines = []
    for world, steps in dict.fromkeys((row["world"], str(row["steps"])) for row in rows):
        here = {row["seed"]: row for row in rows if (row["world"], str(row["steps"])) == (world, steps)}
        scores = {name: {seed: 100 * float(row[name]) for seed, row in here.items()} for name in POLICIES}
        cells = []
        for name in POLICIES:
            apart = difference_interval(scores[name], scores["trainable"])
            ends = "" if apart.low is None else f" [{apart.low:+.1f}, {apart.high:+.1f}]"
            difference = "" if name == "trainable" else f" ({apart.estimate:+.1f}{ends})"
            cells.append(f"{mean_interval(list(scores[name].values())).estimate:.1f}{difference}")
        lines.append([world, steps, str(len(here)), *cells])
    return markdown(["world, seed:gap", "steps", "seeds", *POLICIES], lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", default=["0:1.0", "1:1.0", "2:1.5"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", nargs="+", type=int, default=[700])
    parser.add_argument("--out", type=Path, default=Path("docs/results/seg_batch_norm.csv"))
    parser.add_argument("--markdown", action="store_true", help="train nothing, print the table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
