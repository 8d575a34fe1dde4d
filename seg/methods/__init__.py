"""Adaptation methods: the table of ``--method``, and one file for each. The table needs no torch."""

from __future__ import annotations

from typing import NamedTuple

from seg.methods import settings


class Row(NamedTuple):
    """A method: its class, and what the settings need to know of it."""

    path: str  #: module and class, a :class:`seg.methods.method.Method`
    summary: str  #: follows the name in ``--help``
    uses_target: bool = True  #: whether it reads target images
    #: What it adds counts times the source's cross-entropy, unless ``--weights.relative`` says otherwise.
    relative: bool = False
    #: Its options, by the name of the field of :class:`seg.config.TrainConfig`; a section ``weights`` is a base class
    #: of :class:`seg.config.WeightConfig`.
    sections: tuple[tuple[str, type], ...] = ()


METHODS = {
    "source": Row("seg.methods.method:Method", "source images alone", uses_target=False),
    # A weight that suits the first steps is many times too large when the source has been learned:
    # docs/appendix.md#weights-that-are-too-large.
    "minent": Row("seg.methods.minent:MinEnt", "the objective on target", relative=True),
    "advent": Row(
        "seg.methods.advent:AdvEnt",
        "the objective, and discriminators to fool",
        sections=(("discriminator", settings.DiscriminatorConfig), ("weights", settings.AdversarialWeights)),
    ),
    "self-training": Row(
        "seg.methods.self_training:SelfTraining",
        "a teacher's pseudo-labels and the objective on target, source pixels pasted in",
        sections=(("self_training", settings.SelfTrainingConfig), ("weights", settings.PseudoLabelWeights)),
    ),
    "vat": Row(
        "seg.methods.vat:VAT",
        "the objective, and target predictions that an adversarial perturbation leaves alone",
        sections=(("vat", settings.VATConfig), ("weights", settings.VATWeights)),
    ),
    "mixmatch": Row(
        "seg.methods.mixmatch:MixMatch",
        "the objective, and guessed target labels mixed with source",
        sections=(("mixmatch", settings.MixMatchConfig), ("weights", settings.MixMatchWeights)),
    ),
}
