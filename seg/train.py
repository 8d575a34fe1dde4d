"""``python -m seg.train``: one loop for every method. Reads top-down: set up, train, score, save."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from dem_apps.config import parse_config, to_dict
from dem_apps.device import torch_device
from dem_apps.errors import InputError, run_command
from dem_apps.progress import TrainingProgress
from dem_apps.rng import random_states, restore_random_states, seed_everything
from dem_apps.run import RunFolder, default_run_dir, read_last_checkpoint
from seg.config import TrainConfig
from seg.data.datasets import Sample
from seg.data.labels import CLASS_NAMES, IGNORE_INDEX, PALETTE
from seg.data.pair import DomainPair, open_pair
from seg.data.stream import Batch, batches
from seg.deeplabv2 import build_model
from seg.entropy_maps import coloured_entropy, coloured_prediction, normalised_entropy, panel, save_panel
from seg.evaluate import OnSample, evaluate, protocol, score_table
from seg.minent import MinEnt, supervised_loss

_SOURCE_STREAM, _TARGET_STREAM = 0, 1


@dataclass
class Training:
    """Everything that changes while training and is in a checkpoint."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    adaptation: MinEnt | None
    step: int = 0
    best_miou: float = -1.0

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "adaptation": {} if self.adaptation is None else dict(self.adaptation.state_dict()),
            "step": self.step,
            "best_miou": self.best_miou,
            "random": random_states(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where :meth:`state` was taken."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.adaptation is not None:
            self.adaptation.load_state_dict(state["adaptation"])
        self.step, self.best_miou = state["step"], state["best_miou"]
        restore_random_states(state["random"])


def train(config: TrainConfig) -> Path:
    """Run one training and return its run folder."""
    config.check()
    device = torch_device(config.device)
    seed_everything(config.seed)
    pair = open_pair(config)
    training = _set_up(config, device)
    run = _open_run(config, training, device)
    _print_summary(config, pair, run.path, device)
    first = training.step
    progress = TrainingProgress(config.max_steps, first)
    try:
        for batch_source, batch_target in _batches(config, pair, training.step):
            values = _step(training, config, batch_source, batch_target, device)
            progress.update(training.step)
            if training.step % config.log_every == 0 or training.step == config.max_steps:
                run.log(training.step, **values)
            if training.step % config.eval_every == 0 and training.step < config.max_steps:
                result = _score_and_save(training, pair, run, device)
                progress.note(training.step, f"target mIoU {100 * result['miou']:.2f} %")
        progress.close()
        _finish(training, config, pair, run, device, trained=training.step > first)
    finally:
        progress.close()
        run.close()
    return run.path


def _set_up(config: TrainConfig, device: torch.device) -> Training:
    settings = config.model
    model = build_model(
        settings.name,
        settings.encoder,
        len(CLASS_NAMES),
        settings.output_stride,
        settings.depth,
        settings.encoder_weights,
    )
    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    adaptation = None
    if config.method != "source":
        weights = {"main": config.weights.target_main, "aux": config.weights.target_aux}
        adaptation = MinEnt(config.loss, len(CLASS_NAMES), weights, config.reduction, config.objective_options())
        adaptation.to(device)
    return Training(model, _optimizer(config, model), adaptation)


def _optimizer(config: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    settings = config.optimizer
    groups = model.parameter_groups(settings.lr, settings.head_factor)  # type: ignore[operator]
    if settings.name == "sgd":
        return torch.optim.SGD(groups, settings.lr, settings.momentum, weight_decay=settings.weight_decay)
    return torch.optim.AdamW(groups, settings.lr, weight_decay=settings.weight_decay)


def _open_run(config: TrainConfig, training: Training, device: torch.device) -> RunFolder:
    path = Path(config.run_dir) if config.run_dir else default_run_dir("seg", config.method, config.loss)
    if not config.resume:
        return RunFolder.create(path, to_dict(config), config.seed, str(device))
    training.restore(read_last_checkpoint(path))
    return RunFolder.resume(path, training.step)


def _batches(config: TrainConfig, pair: DomainPair, first: int) -> Iterator[tuple[Batch, Batch | None]]:
    steps = range(first, config.max_steps)
    source = batches(
        pair.source_train, config.batch_size, steps, (config.seed, _SOURCE_STREAM), config.source.augmentation,
        config.workers,
    )  # fmt: skip
    if config.method == "source":
        return ((batch, None) for batch in source)
    target = batches(
        pair.target_train, config.batch_size, steps, (config.seed, _TARGET_STREAM), config.target.augmentation,
        config.workers,
    )  # fmt: skip
    return zip(source, target, strict=True)


def _step(
    training: Training, config: TrainConfig, source: Batch, target: Batch | None, device: torch.device
) -> dict[str, float]:
    """One optimiser step: cross-entropy on source, then the adaptation's loss on target; values to log."""
    _set_learning_rate(training.optimizer, config, training.step)
    training.model.train()
    training.optimizer.zero_grad(set_to_none=True)
    weights = {"main": config.weights.seg_main, "aux": config.weights.seg_aux}
    logits = training.model(_images(source, device))
    loss, values = supervised_loss(logits, source["label"].to(device), weights, IGNORE_INDEX)
    loss.backward()
    if target is not None and training.adaptation is not None:
        images = _images(target, device)
        target_loss, target_values = training.adaptation(training.model(images), tuple(images.shape[-2:]))
        if target_loss is not None:
            target_loss.backward()
        values.update(target_values)
    if not np.isfinite(list(values.values())).all():
        names = ", ".join([*source["name"], *(target["name"] if target else [])])
        raise InputError(f"step {training.step + 1}: a loss is not finite ({values}); the batch was {names}")
    training.optimizer.step()
    training.step += 1
    return values


def _images(batch: Batch, device: torch.device) -> Tensor:
    images: Tensor = batch["image"].to(device, memory_format=torch.channels_last)
    return images


def _set_learning_rate(optimizer: torch.optim.Optimizer, config: TrainConfig, step: int) -> None:
    """Poly schedule; its horizon may be beyond the last step, as in ADVENT (250k and 120k)."""
    horizon = config.optimizer.horizon or config.max_steps
    factor = max(0.0, 1.0 - step / horizon) ** config.optimizer.power
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor


def _score_and_save(
    training: Training, pair: DomainPair, run: RunFolder, device: torch.device, on_sample: OnSample | None = None
) -> dict[str, Any]:
    """Score on the target's validation set, log it, keep the state; ``best`` is chosen with labels and says so."""
    result = evaluate(training.model, pair.target_val, device, on_sample)
    names = ("miou", "pixel_accuracy", "mean_entropy", "calibration_error")
    run.log(training.step, **{f"val/{name}": result[name] for name in names})
    if result["miou"] > training.best_miou:
        training.best_miou = result["miou"]
        run.save_checkpoint("best", {"model": training.model.state_dict(), "step": training.step}, training.step)
    run.save_checkpoint("last", training.state(), training.step)
    return result


def _finish(
    training: Training, config: TrainConfig, pair: DomainPair, run: RunFolder, device: torch.device, trained: bool
) -> None:
    """Entropy maps, ``eval.json`` and the table. Without ``trained`` a checkpoint of the last step was resumed."""
    map_writer = _map_writer(config, pair, run)
    if trained:
        result = _score_and_save(training, pair, run, device, map_writer)
    else:
        result = evaluate(training.model, pair.target_val, device, map_writer)
    uses = {"best_miou_chosen_with_target_labels": training.best_miou}
    document = {**result, "checkpoint": "last", **uses, "protocol": protocol(config, "last", training.step)}
    run.write_json("eval.json", document)
    Console().print(score_table(result, f"target validation, {len(pair.target_val)} images, last checkpoint"))
    print(f"entropy maps: {run.path / 'entropy_maps'}\nscores:       {run.path / 'eval.json'}")


def _map_writer(config: TrainConfig, pair: DomainPair, run: RunFolder) -> OnSample:
    """Writes the entropy maps of validation images that are spread over the set."""
    count = min(config.maps, len(pair.target_val))
    chosen = set(np.linspace(0, len(pair.target_val) - 1, count).round().astype(int)) if count else set()

    def on_sample(index: int, sample: Sample, logits: Tensor) -> None:
        if index not in chosen:
            return
        entropy = normalised_entropy(logits)
        prediction = coloured_prediction(logits.argmax(0).cpu().numpy(), PALETTE)
        image = sample.image
        picture = panel(image, prediction, coloured_entropy(entropy), f"mean {entropy.mean():.2f}")
        save_panel(run.path / "entropy_maps" / f"{Path(sample.name).stem}.png", picture)
        run.log_image(f"entropy_maps/{Path(sample.name).stem}", np.asarray(picture), config.max_steps)

    return on_sample


def _print_summary(config: TrainConfig, pair: DomainPair, path: Path, device: torch.device) -> None:
    data = "demo pair" if config.source.root is None else f"{config.source.root} -> {config.target.root}"
    loss = "" if config.method == "source" else f", loss {config.loss} ({config.reduction})"
    print(
        f"method   {config.method}{loss}\n"
        f"data     {data}: {len(pair.source_train)} source, {len(pair.target_train)} target, "
        f"{len(pair.target_val)} validation images\n"
        f"network  {config.model.name}, {config.model.encoder}, output stride {config.model.output_stride}\n"
        f"device   {device}, {torch.get_num_threads()} threads; {config.max_steps} steps, seed {config.seed}\n"
        f"results  {path}",
        flush=True,
    )


def _main() -> None:
    train(parse_config(TrainConfig, "python -m seg.train", "python -m seg.train --loss adadem --max-steps 600"))


if __name__ == "__main__":
    run_command(_main)
