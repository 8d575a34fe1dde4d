"""Adaptation methods: the table of ``--method``, and one file for each. The table needs no torch."""

from __future__ import annotations

from typing import NamedTuple


class TargetWeight(NamedTuple):
    """Defaults of ``--weights.target-main`` and ``--weights.relative``."""

    main: float = 0.01
    #: whether the source's cross-entropy scales target losses
    relative: bool = False


class MethodRow(NamedTuple):
    """A method: its class, and the facts that settings depend on."""

    path: str  #: module and class, a :class:`seg.methods.method.Method`
    title: str  #: its name in tables and on pages
    summary: str  #: follows the name in ``--help``
    uses_target: bool = True  #: whether it reads target images
    loss: str | None = None  #: objective without ``--loss``; None: the method takes no objective
    target_weight: TargetWeight = TargetWeight()
    #: default of ``--weights.aux``, the auxiliary head's weight on target relative to the main's
    aux: float = 0.1
    section: str | None = None  #: the field of :class:`seg.config.TrainConfig` with its options
    #: first part of its weight's name in :class:`seg.methods.settings.WeightConfig`
    #: (None: the weight is 1)
    weight: str | None = None


METHODS = {
    "source": MethodRow(
        "seg.methods.method:Method", "source only", "no target images", uses_target=False
    ),
    "control": MethodRow(
        "seg.methods.control:Control",
        "control",
        "target images only move batch norm statistics; no objective",
    ),
    # A weight that suits the first steps is many times too large when the source has been learned:
    # docs/appendix.md#weights-that-are-too-large.
    "minent": MethodRow(
        "seg.methods.minent:MinEnt",
        "MinEnt",
        "an objective on target predictions, by default entropy",
        loss="entropy",
        target_weight=TargetWeight(relative=True),
        aux=0.2,
    ),
    "advent": MethodRow(
        "seg.methods.advent:AdvEnt",
        "AdvEnt",
        "discriminators on entropy maps; --loss adds an objective",
        loss="none",
        aux=0.2,
        section="discriminator",
        weight="adversarial",
    ),
    "self-training": MethodRow(
        "seg.methods.self_training:SelfTraining",
        "self-training",
        "pseudo-labels of a mean teacher; --loss adds an objective",
        loss="none",
        section="self_training",
    ),
}
#: MinEnt's with AdaDEM, chosen and confirmed on photographs: docs/appendix.md#minents-weight-on-photographs.
_MINENT_ADADEM = TargetWeight(0.03)


def target_weight(method: str, objective: str) -> TargetWeight:
    """The default weight of an objective in a method of :data:`METHODS`."""
    if (method, objective) == ("minent", "adadem"):
        return _MINENT_ADADEM
    return METHODS[method].target_weight
