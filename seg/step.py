"""One optimiser step of every method: cross-entropy on source, objective and adversary on target, discriminators."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn

from dem_apps.errors import InputError, NotFiniteError
from dem_apps.reduction import world_size
from dem_apps.runtime.load_state import checked_step, fitting, load_optimizer, load_weights
from dem_apps.runtime.seeds import random_states, restore_random_states
from seg.config import OptimizerConfig, TrainConfig
from seg.data.labels import IGNORE_INDEX
from seg.data.loader import Batch
from seg.methods.advent import AdvEnt
from seg.methods.minent import MinEnt, supervised_loss, upsampled
from seg.models import build_model
from seg.models.batch_norm import feed_batch_norm, set_up_batch_norm
from seg.models.network import parameter_groups

Pass = tuple[Batch, Batch | None]
"""A source batch and, for methods that look at target images, a target batch."""


@dataclass
class Training:
    """Everything that changes while training and is in a checkpoint."""

    model: nn.Module
    optimizer: Any
    minent: MinEnt | None
    adversary: AdvEnt | None
    adversary_optimizer: Any
    scaler: Any
    step: int = 0

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            **{name: part.state_dict() for name, part in self._parts().items()},
            "step": self.step,
            "random": random_states(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where :meth:`state` was taken.

        Raises:
            InputError: a checkpoint of weights alone, such as a converted one, or one that does not fit.
        """
        for name in self._parts():
            if name not in state:
                raise InputError(
                    f"--resume: the run's checkpoint holds no '{name}', so it cannot be continued; start a new run "
                    "from its weights with --model.start-from"
                )
        for name, part in self._parts().items():
            where = f"--resume: the checkpoint's '{name}'"
            if isinstance(part, nn.Module):
                load_weights(part, state[name], where)
            elif name == "scaler":
                with fitting(where):
                    part.load_state_dict(state[name])
            else:
                load_optimizer(part, state[name], where)
        self.step = checked_step(state, "--resume: the checkpoint")
        restore_random_states(state.get("random"))

    def _parts(self) -> dict[str, Any]:
        parts = {
            "model": self.model,
            "optimizer": self.optimizer,
            "minent": self.minent,
            "adversary": self.adversary,
            "adversary_optimizer": self.adversary_optimizer,
            "scaler": self.scaler,
        }
        return {name: part for name, part in parts.items() if part is not None}


def set_up(config: TrainConfig, num_classes: int, accelerator: Accelerator) -> Training:
    """The network, its losses and optimisers, on their device."""
    device = accelerator.device
    network = build_model(**config.model.architecture(), num_classes=num_classes, weights=config.model.encoder_weights)
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = set_up_batch_norm(network, config.model.batch_norm, synchronised=world_size() > 1)
    groups = parameter_groups(model, config.optimizer.lr, config.optimizer.head_factor)
    optimizer = accelerator.prepare_optimizer(_optimizer(config.optimizer, groups))
    if config.compile:
        model.compile()
    minent = adversary = adversary_optimizer = None
    weights = config.weights
    if config.method != "source":
        per_head = {head: getattr(weights, f"target_{head}") for head in network.heads}
        minent = MinEnt(config.loss, num_classes, per_head, config.reduction, config.objective_options()).to(device)
    if config.method == "advent":
        per_head = {head: getattr(weights, f"adversarial_{head}") for head in network.heads}
        adversary = AdvEnt(num_classes, per_head, config.discriminator.channels)
        adversary.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        rate = config.discriminator.lr
        group = {"params": list(adversary.parameters()), "base_lr": rate}
        adversary_optimizer = accelerator.prepare_optimizer(torch.optim.Adam([group], rate, betas=(0.9, 0.99)))
    return Training(model, optimizer, minent, adversary, adversary_optimizer, accelerator.scaler)


def training_step(
    training: Training, config: TrainConfig, accelerator: Accelerator, passes: Iterable[Pass]
) -> dict[str, float]:
    """One step of the network, then one of the discriminators; values to log, the mean over passes and processes.

    Args:
        training: is moved on by one step.
        config: of the run.
        accelerator: owns device, precision and loss scale.
        passes: the batches whose gradients are averaged into this step.

    Raises:
        NotFiniteError: a loss that is not finite, with the step and the names of the images. Neither the network nor,
            where it is theirs, the discriminators have made the step.
    """
    set_learning_rates(training, config)
    training.model.train()
    training.optimizer.zero_grad()
    passes = list(passes)
    logged, seen = [], []
    for source, target in passes:
        values, logits = _one_pass(training, config, accelerator, source, target, share=1.0 / len(passes))
        logged.append(values)
        seen.append(logits)
    _average_gradients(training.model)
    means = _means(logged)
    _refuse_nonfinite(means, logged, training.step + 1, passes)
    training.optimizer.step()
    if training.adversary is not None:
        means |= _discriminator_step(training, accelerator, seen, passes)
    training.step += 1
    return means


def set_learning_rates(training: Training, config: TrainConfig) -> None:
    """Poly schedule; its horizon may be beyond the last step, as in ADVENT (250k and 120k)."""
    horizon = config.optimizer.horizon or config.max_steps
    factor = max(0.0, 1.0 - training.step / horizon) ** config.optimizer.power
    for optimizer in (training.optimizer, training.adversary_optimizer):
        for group in optimizer.param_groups if optimizer is not None else ():
            group["lr"] = group["base_lr"] * factor


def _optimizer(settings: OptimizerConfig, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    if settings.name == "sgd":
        return torch.optim.SGD(groups, settings.lr, settings.momentum, weight_decay=settings.weight_decay)
    return torch.optim.AdamW(groups, settings.lr, weight_decay=settings.weight_decay)


def _one_pass(
    training: Training,
    config: TrainConfig,
    accelerator: Accelerator,
    source: Batch,
    target: Batch | None,
    share: float,
) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """Add a pass's gradients to the network's; returns values to log and what the discriminators learn from."""
    source_logits = _predict(training, config, accelerator, source, "source")
    weights = {head: getattr(config.weights, f"seg_{head}") for head in source_logits}
    label = source["label"].to(accelerator.device, non_blocking=True)
    loss, values = supervised_loss(source_logits, label, weights, IGNORE_INDEX)
    accelerator.backward(share * loss)
    seen = [{head: logits.detach() for head, logits in source_logits.items()}] if training.adversary else []
    del source_logits, loss  # the full-size maps of one domain at a time
    if target is None or training.minent is None:
        return values, seen
    learns = config.loss != "none" or training.adversary is not None
    with nullcontext() if learns else torch.no_grad():
        target_logits = _predict(training, config, accelerator, target, "target")
    target_loss, target_values = training.minent(target_logits)
    values |= target_values
    if training.adversary is not None:
        with accelerator.autocast():
            fooling, fooling_values = training.adversary.fooling_loss(target_logits)
        target_loss = fooling if target_loss is None else target_loss + fooling
        values |= {name: value.detach() for name, value in fooling_values.items()}
        seen.append({head: logits.detach() for head, logits in target_logits.items()})
    if target_loss is not None:
        accelerator.backward(share * target_loss)
    return values, seen


def _predict(
    training: Training, config: TrainConfig, accelerator: Accelerator, batch: Batch, domain: Literal["source", "target"]
) -> dict[str, Tensor]:
    """Every head's logits at the images' size, float32."""
    feed_batch_norm(training.model, config.model.batch_norm, domain)
    images = batch["image"].to(accelerator.device, memory_format=torch.channels_last, non_blocking=True)
    with accelerator.autocast():
        logits: Mapping[str, Tensor] = training.model(images)
    size = (images.shape[-2], images.shape[-1])
    return {head: upsampled(values, size, config.model.align_corners) for head, values in logits.items()}


def _discriminator_step(
    training: Training, accelerator: Accelerator, seen: list[list[dict[str, Tensor]]], passes: list[Pass]
) -> dict[str, float]:
    """After the network's step, so that with fp16 each optimiser undoes the loss scale its gradients were made with."""
    assert training.adversary is not None
    training.adversary_optimizer.zero_grad()
    logged = []
    for source_logits, target_logits in seen:
        with accelerator.autocast():
            loss, values = training.adversary.discriminator_loss(source_logits, target_logits)
        accelerator.backward(loss / len(seen))
        logged.append({name: value.detach() for name, value in values.items()})
    _average_gradients(training.adversary)
    means = _means(logged)
    _refuse_nonfinite(means, logged, training.step + 1, passes)
    training.adversary_optimizer.step()
    return means


def _average_gradients(module: nn.Module) -> None:
    """Over processes, in one message: every backward pass of a step before has only added to the local gradients."""
    if world_size() == 1:
        return
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    message = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(message)
    message /= world_size()
    for gradient, piece in zip(gradients, message.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(piece.view_as(gradient))


def _means(logged: list[dict[str, Tensor]]) -> dict[str, float]:
    """The mean over passes and processes, with one wait for the device."""
    stacked = torch.stack([torch.stack([value.float() for value in values.values()]) for values in logged]).mean(0)
    if world_size() > 1:
        dist.all_reduce(stacked)
        stacked /= world_size()
    return dict(zip(logged[0], stacked.tolist(), strict=True))


def _refuse_nonfinite(means: dict[str, float], logged: list[dict[str, Tensor]], step: int, passes: list[Pass]) -> None:
    """Stop at a loss that is NaN or infinite, in every process alike: the means are those of all of them."""
    wrong = {name: value for name, value in means.items() if not math.isfinite(value)}
    if not wrong:
        return
    images: list[str] = []
    for values, (source, target) in zip(logged, passes, strict=True):
        names = [name for name in wrong if not values[name].isfinite()]
        if any(not name.startswith("target/") for name in names):
            images += source["name"]
        if target is not None and any(not name.startswith("source/") for name in names):
            images += target["name"]
    if world_size() > 1:
        shares: list[list[str]] = [[] for _ in range(world_size())]
        dist.all_gather_object(shares, images)
        images = [name for share in shares for name in share]
    losses = " and ".join(f"{name} ({value})" for name, value in wrong.items())
    raise NotFiniteError(
        f"step {step}: no finite number for {losses}, with the images {', '.join(images)}; training has stopped before "
        "this step"
    )
