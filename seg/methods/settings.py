"""Settings of the adaptation methods and their optimiser; without torch, so that ``--help`` is quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dem_apps.runtime.settings import option

#: The weight of each head, such as ``{"main": 1.0, "aux": 0.1}``.
Weights = Mapping[str, float]
#: Learning rates from random and from pretrained weights of the encoder.
RANDOM_RATE, PRETRAINED_RATE = 3e-3, 5e-4


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimiser and its schedule."""

    name: str = option("adamw", "optimiser", ("adamw", "sgd"))
    lr: float | None = option(
        None,
        f"rate of the encoder; default: {RANDOM_RATE}, {PRETRAINED_RATE} with encoder weights or --model.start-from",
        at_least=0,
    )
    head_factor: float = option(1.0, "the heads learn this many times faster", at_least=0)
    weight_decay: float = option(5e-4, "weight decay", at_least=0)
    momentum: float = option(0.9, "momentum of sgd", at_least=0, below=1)
    power: float = option(
        0.9, "the learning rate falls as (1 - step / horizon) ** power", at_least=0
    )
    horizon: int | None = option(
        None, "steps over which the rate falls to 0; default: --max-steps", at_least=1
    )


@dataclass(frozen=True)
class DiscriminatorConfig:
    """Discriminators of --method advent, one per head."""

    lr: float = option(1e-4, "learning rate of Adam; falls as the network's does", at_least=0)
    channels: int = option(
        64,
        "channels of the first of five convolutions; the next ones have 2, 4 and 8 times that",
        at_least=1,
        at_most=512,
    )


@dataclass(frozen=True)
class SelfTrainingConfig:
    """Teacher, pseudo-labels and views of --method self-training."""

    teacher_decay: float = option(
        0.99,
        "share of itself that the teacher keeps at a step, less in the first ones; 0: it is the student",
        at_least=0,
        at_most=1,
    )
    pseudo_weight: float = option(
        1.0,
        "what a confident pseudo-label counts beside 1 of a pasted pixel; 0: pasted pixels alone",
        at_least=0,
    )
    threshold: float = option(
        0.968, "confidence of a pseudo-label that counts", at_least=0, at_most=1
    )
    mix: Literal["classes", "none"] = option(
        "classes", "source pixels of half of the classes are pasted into target images, or none"
    )
    mask_ratio: float = option(
        0.0,
        "share of blocks hidden in one more view (masked consistency); 0.7 in MIC, 0: none",
        at_least=0,
        at_most=1,
    )


@dataclass(frozen=True)
class WeightConfig:
    """Weights of the parts of the loss."""

    seg_main: float = option(1.0, "weight of the main head's cross-entropy on source", at_least=0)
    seg_aux: float = option(
        0.1, "weight of the auxiliary head's cross-entropy on source", at_least=0
    )
    target_main: float | None = option(
        None,
        "weight of the main head's objective on target (default: 0.03 for minent with adadem, else 0.01)",
        at_least=0,
    )
    adversarial_main: float = option(
        0.001, "advent: weight of fooling the main head's discriminator on target", at_least=0
    )
    aux: float | None = option(
        None,
        "weight of the auxiliary head on target, relative to the main head "
        "(default: 0.2 for minent and advent, else 0.1)",
        at_least=0,
    )
    relative: bool | None = option(
        None,
        "factor on the target loss: the source's cross-entropy, at most 1 (default: true for minent without adadem)",
    )

    def on_target(self, name: str | None, heads: Sequence[str] = ("main", "aux")) -> Weights:
        """Weights by head of the part ``name``, such as ``target``; without a name the main head's is 1."""
        main: float = 1.0 if name is None else getattr(self, f"{name}_main")
        weights = {"main": main, "aux": main * float(self.aux or 0)}
        return {head: weights[head] for head in heads}
