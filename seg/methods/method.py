"""Base class of the adaptation methods: the part of a training step that reads target images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from seg.methods.optimization import Loss, Means, MicroBatch, MicroBatches
from seg.models.network import HeadLogits, Predictor


@dataclass(eq=False)
class Method:
    """Adaptation method that adds nothing, which is ``source``; the base class of the others.

    :func:`seg.training.step.training_step` calls, for every micro-batch, the source loss, :meth:`after_source`
    and :meth:`target_loss`; then the network makes its step, and :meth:`after_step` follows. A
    method adds its own

    - ``modules``, such as objectives with a table or discriminators, and ``optimizers``, in ``__post_init__``: by these
      names they are in checkpoints. Each optimiser is prepared by ``network.accelerator``, and its groups hold a
      ``base_lr``, which falls as the network's does.
    - options: the section that its line in the table names, a field of :class:`seg.config.TrainConfig`: a
      section ``self_training`` with a field ``mix`` is the flag ``--self-training.mix``, and the field
      ``self_training`` of the method has it, beside a field ``weights``.
    """

    #: the network that learns; called with images it gives every head's logits at their size
    network: Predictor
    num_classes: int  #: C
    #: the objective of ``--loss`` for each head, with its weights: :class:`seg.methods.minent.HeadObjectives`
    objectives: nn.Module

    def __post_init__(self) -> None:
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Any] = {}

    def after_source(self, logits: HeadLogits) -> None:
        """Take the detached source predictions, (B, C, H, W) per head; keeping them costs their memory."""

    def target_loss(self, batch: MicroBatch) -> Loss:
        """Return the loss on target, or None, and detached values to log under the same names at every step."""
        return None, {}

    def after_step(self, batches: MicroBatches, step: int) -> Means:
        """Train discriminators, or move a teacher, after the network's step.

        Args:
            batches: the step's micro-batches.
            step: counts from 1.

        Returns:
            Values to log.

        Raises:
            NotFiniteError: a loss is not finite, see :func:`seg.methods.optimization.update`.
        """
        return {}

    def scored_model(self) -> nn.Module:
        """Return the network that is scored, selected and saved as the run's.

        A checkpoint to resume has the trained network too.
        """
        return self.network.model
