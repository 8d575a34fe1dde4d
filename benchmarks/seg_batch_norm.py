"""Whose batch statistics a network is scored with, and what that is worth without any adaptation loss.

    OMP_NUM_THREADS=1 python benchmarks/seg_batch_norm.py [--worlds 0:1.0 1:1.0 2:1.5] [--seeds 0 1 2] [--steps 700]
        [--out docs/results/seg_batch_norm.jsonl] [--markdown]

In training every policy but ``frozen`` normalises by the batch, so with ``--loss none`` the policies differ in their
running statistics alone: one training gives the scores of ``source`` (which is also ``--method source``), of
``target``, of ``trainable`` (both domains, ADVENT's way) and of statistics re-estimated on all target images at the
end (AdaBN). tests/seg/models/test_batch_norm.py holds the policies' weights to each other. A world is ``SEED:GAP``.
A row that stands in the file is not made again, so the same command continues.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dem_apps.report.intervals import difference_interval, mean_interval
from dem_apps.report.tables import markdown
from dem_apps.runtime.device import processor
from dem_apps.runtime.reproducibility import seed_everything
from seg.config import DemoConfig, ModelConfig, TrainConfig
from seg.data.domains import DomainPair, open_pair
from seg.data.sampling import labelled_sampler
from seg.models.adaptive_batch_norm import re_estimated_on
from seg.scores.evaluation import evaluate
from seg.step import TrainState, training_step
from seg.training.loop import _SOURCE_STREAM, _steps, build_state

POLICIES = ("source", "trainable", "target", "re-estimated")


def main() -> None:
    """Make the rows that are missing, each written as it comes, or print what there is."""
    arguments = _arguments()
    if arguments.markdown:
        print(_table(_rows(arguments.out)), end="")
        return
    done = {_key(row) for row in _rows(arguments.out)}
    for seed in arguments.seeds:
        for world in arguments.worlds:
            for steps in arguments.steps:
                if (world, seed, steps) not in done:
                    row = {"world": world, "seed": seed, "steps": steps, **_scores(world, seed, steps)}
                    with arguments.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    print({name: round(100 * row["miou"][name], 2) for name in POLICIES}, row["world"], seed, steps)


def _scores(world: str, seed: int, steps: int) -> dict[str, Any]:
    world_seed, gap = world.split(":")
    config = TrainConfig(
        method="minent", loss="none", seed=seed, max_steps=steps,
        demo=DemoConfig(int(world_seed), float(gap)), model=ModelConfig(batch_norm="trainable"),
    )  # fmt: skip
    AcceleratorState._reset_state()
    accelerator = Accelerator(cpu=True)
    seed_everything(seed)
    pair = open_pair(config.source, config.target, demo=config.demo)
    state = build_state(config, len(pair.classes), accelerator)
    statistics = _train(config, state, pair, accelerator)
    model = state.model
    statistics["re-estimated"] = _read(re_estimated_on(pair.target_train, model, accelerator.device))
    results = {}
    for name in POLICIES:
        _write(model, statistics[name])
        results[name] = evaluate(model, pair.target_val, pair.classes, accelerator.device)
    return {
        "miou": {name: result["miou"] for name, result in results.items()},
        "per_class_iu": {name: result["per_class_iu"] for name, result in results.items()},
        "processor": processor(), "torch": torch.__version__,
    }  # fmt: skip


def _train(config: TrainConfig, state: TrainState, pair: DomainPair, accelerator: Accelerator) -> dict[str, Tensor]:
    """The running statistics that each policy would have had: a step moves those of both domains, in this order."""
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
        # what a batch added to the joined statistics it adds to its domain's own
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


def _table(rows: list[dict[str, Any]]) -> str:
    """Mean mIoU per world and number of steps, with the difference to ``trainable`` seed by seed."""
    lines = []
    for world, steps in sorted({(row["world"], row["steps"]) for row in rows}, key=lambda key: (key[1], key[0])):
        here = {row["seed"]: row["miou"] for row in rows if (row["world"], row["steps"]) == (world, steps)}
        scores = {name: {seed: 100 * miou[name] for seed, miou in here.items()} for name in POLICIES}
        cells = []
        for name in POLICIES:
            apart = difference_interval(scores[name], scores["trainable"])
            ends = "" if apart.low is None else f" [{apart.low:+.1f}, {apart.high:+.1f}]"
            difference = "" if name == "trainable" else f" ({apart.estimate:+.1f}{ends})"
            cells.append(f"{mean_interval(list(scores[name].values())).estimate:.1f}{difference}")
        lines.append([world, str(steps), str(len(here)), *cells])
    return markdown(["world, seed:gap", "steps", "seeds", *POLICIES], lines)


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def _key(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["world"], row["seed"], row["steps"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", default=["0:1.0", "1:1.0", "2:1.5"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", nargs="+", type=int, default=[700])
    parser.add_argument("--out", type=Path, default=Path("docs/results/seg_batch_norm.jsonl"))
    parser.add_argument("--markdown", action="store_true", help="train nothing, print the table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
