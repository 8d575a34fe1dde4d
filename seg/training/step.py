"""One optimiser step of every method: cross-entropy on source labels, then what the method adds on target images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dem_apps.reduction import summed_over_processes, sums_in, world_size
from dem_apps.runtime.checkpoint import fitting, load_state
from dem_apps.runtime.documents import Document
from dem_apps.runtime.reproducibility import random_states, restore_random_states
from seg.data.labels import IGNORE_INDEX
from seg.methods.method import Method
from seg.methods.optimization import (
    Means,
    MicroBatch,
    MicroBatches,
    PolySchedule,
    Summed,
    Values,
    on_device,
    update,
    weighted_sum,
)
from seg.methods.settings import Weights
from seg.models.network import HeadLogits, Predictor
from seg.trained.adaptive_batch_norm import Estimated
from seg.trained.trained_network import RE_ESTIMATED_ON


@dataclass
class TrainState:
    """Train state: everything that changes while training and is in a checkpoint, and the parts that a step uses."""

    predict: Predictor  #: the network that learns
    optimizer: Any  #: the network's optimiser, prepared by accelerate
    method: Method  #: what is added to the source loss, with modules and optimisers of its own
    #: weights of the cross-entropy per head, such as ``{"main": 1.0, "aux": 0.1}``
    source_weights: Weights
    schedule: PolySchedule  #: learning rates of every optimiser
    #: (C,) int64, pixels per class of the labels that were trained on, of all processes
    label_counts: Tensor
    #: what the method adds counts times the source's cross-entropy, of the main head, at most 1
    relative: bool
    step: int = 0
    #: Returns a copy of a network with statistics of other images (``--batch-norm-after``); every process calls it.
    re_estimate: Callable[[nn.Module], Estimated] | None = None
    _adapted: Estimated | None = field(default=None, init=False)  #: scored network of this step

    @property
    def model(self) -> nn.Module:
        """The network that learns."""
        return self.predict.model

    def source_shares(self, names: Sequence[str]) -> dict[str, float]:
        """The share of each class, by its name, in the labels so far; all 0 before the first step."""
        counts = self.label_counts.cpu().double()
        shares = counts / counts.sum().clamp_min(1)
        return dict(zip(names, shares.tolist(), strict=True))

    def scored_model(self) -> nn.Module:
        """The method's, with re-estimated statistics where they were asked for; every process calls it alike."""
        if self.re_estimate is None:
            return self.method.scored_model()
        if self._adapted is None:
            self._adapted = self.re_estimate(self.method.scored_model())
        return self._adapted.network

    def result(self) -> Document:
        """The part of a checkpoint that is scored, exported and started from; one process may ask for it alone.

        It has the re-estimated statistics of :meth:`scored_model` if they were made at this step, and says so.
        """
        scored = self.method.scored_model() if self._adapted is None else self._adapted.network
        result = {"model": scored.state_dict(), "step": self.step}
        if self._adapted is not None:
            result[RE_ESTIMATED_ON] = f"target images (share {self._adapted.share:g})"
        return result

    def state(self) -> Document:
        """Return the state for a checkpoint."""
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        others = {"label_counts": self.label_counts, "random": random_states()}
        return self.result() | parts | others

    def restore(self, state: Document) -> None:
        """Continue where :meth:`state` was taken.

        Raises:
            InputError: the state has weights alone, or does not fit.
        """
        for name, part in self._parts().items():
            load_state(part, state.get(name), f"--resume: the checkpoint's '{name}'")
        self.step = state["step"]
        self._adapted = None
        with fitting("--resume: the checkpoint"):
            self.label_counts.copy_(state["label_counts"])
            restore_random_states(state["random"])

    def _parts(self) -> Document:
        """Return the state to resume from, by its names in a checkpoint; ``model`` is the scored network."""
        scored = self.method.scored_model()
        scaler = self.predict.accelerator.scaler
        # re-estimated statistics are not those that the scored network goes on with
        name = "model" if self.re_estimate is None else "scored_model"
        parts: Document = {} if scored is self.model else {name: scored}
        parts["trained_model" if parts or self.re_estimate else "model"] = self.model
        parts |= {"optimizer": self.optimizer, **self.method.modules, **self.method.optimizers}
        return parts if scaler is None else parts | {"scaler": scaler}


def training_step(state: TrainState, batches: MicroBatches) -> Means:
    """Make one step of the network and then of the method.

    The micro-batches' gradients are averaged.

    Returns:
        Values to log, means over all processes.

    Raises:
        NotFiniteError: a loss is not finite, before its step.
    """
    state.schedule.set_rates((state.optimizer, *state.method.optimizers.values()), state.step)
    state.model.train()
    state.optimizer.zero_grad()
    logged = [_add_gradients(state, batch, share=1.0 / len(batches)) for batch in batches]
    values = update(state.model, state.optimizer, logged, batches, state.step + 1)
    values |= state.method.after_step(batches, state.step + 1)
    state.step += 1
    state._adapted = None
    return values


def _add_gradients(state: TrainState, batch: MicroBatch, share: float) -> Values:
    """Make forward and backward of a micro-batch, and return values to log.

    ``share`` of its gradient goes into the step.
    """
    accelerator = state.predict.accelerator
    batch = MicroBatch(*(on_device(domain, accelerator.device) for domain in batch))
    logits = state.predict(batch.source["image"], "source")
    label = batch.source["label"]
    (counts,) = summed_over_processes(
        torch.bincount(label[label != IGNORE_INDEX], minlength=len(state.label_counts))
    )
    state.label_counts += counts
    loss, values = supervised_loss(logits, label, state.source_weights)
    accelerator.backward(share * loss)
    state.method.after_source({head: maps.detach() for head, maps in logits.items()})
    del logits, loss  # the full-size maps of one domain at a time
    target_loss, of_target = state.method.target_loss(batch)
    if target_loss is not None:
        factor: Tensor | float = share  # of all that the method adds; the same in every process
        if state.relative:
            cross_entropy = values["source/cross_entropy_main"]
            (total,) = summed_over_processes(cross_entropy.to(sums_in(cross_entropy)))
            factor = share * (total / world_size()).clamp_max(1).float()
        accelerator.backward(factor * target_loss)
    return values | of_target


def supervised_loss(logits: HeadLogits, label: Tensor, weights: Weights) -> Summed:
    """Weighted cross-entropy of the heads, the mean over labelled pixels or 0 without any, and values to log.

    ``logits`` are (B, C, H, W) per head, ``label`` (B, H, W) train ids. Labelled pixels of every process are counted,
    so that the mean of the processes' losses is the loss of the joined batch.
    """
    (labelled,) = summed_over_processes((label != IGNORE_INDEX).sum().to(sums_in(label)))
    share = (world_size() / labelled.clamp_min(1)).float()
    # on a GPU torch adds up the pixels of an image in an order that differs from run to run, or refuses to
    reduction = "none" if torch.are_deterministic_algorithms_enabled() else "sum"
    losses = {}
    for head in weights:
        pixels = F.cross_entropy(
            logits[head], label, ignore_index=IGNORE_INDEX, reduction=reduction
        )
        losses[head] = share * pixels.sum()
    return weighted_sum(losses, weights, "source/cross_entropy")
