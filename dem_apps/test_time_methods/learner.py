"""The objective, the optimiser and the state of the methods that learn."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from dem_apps.errors import InputError, NotFiniteError, number, one_of
from dem_apps.objective import EntropyObjective
from dem_apps.objectives import AVERAGES, build_objective
from dem_apps.reduction import class_weights, sums_in
from dem_apps.test_time_methods.copies import State
from dem_apps.test_time_methods.network import AdaptedNetwork, check_finite, refuse_quantised

OptimizerBuilder = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}

#: The starts of class marginals; the first is the default.
#: See :class:`dem_apps.TestTimeAdapter`.
MARGINALS = ("start", "uniform")


class Learner:
    """A network with an objective and an optimiser.

    The arguments are described at :class:`dem_apps.TestTimeAdapter`.
    """

    def __init__(
        self,
        network: AdaptedNetwork,
        objective: str,
        objective_options: dict[str, Any],
        optimizer: str | OptimizerBuilder,
        lr: float,
        reduction: str,
        num_classes: int | None,
        seed: int,
        marginals: str | None,
    ) -> None:
        self.network = network
        self.reduction = one_of("reduction", reduction, AVERAGES)
        self._objective: EntropyObjective | None = None
        self._first_objective: State = {}
        #: True if the first batch that is learnt from starts the objective's class marginals.
        self._starts = one_of("marginals", marginals or MARGINALS[0], MARGINALS) == "start"
        self._build = partial(build_objective, str(objective), **objective_options)
        self._build(num_classes=num_classes or 2)  # to refuse mistakes now
        self.num_classes = num_classes
        self.optimizer = _optimizer(network, optimizer, lr)
        self._made_of = [str(objective), type(self.optimizer).__name__]
        # without any state yet: what reset() goes back to
        self._first_optimizer = _state(self.optimizer)
        # on the CPU: the same draws on every device
        self.generator = torch.Generator().manual_seed(seed)
        self._first_draws = self.generator.get_state()
        if num_classes is not None and self.optimizer is not None:
            self.prepare(num_classes, next(network.model.parameters()).device)

    @property
    def objective(self) -> EntropyObjective:
        """The objective; it is built for the first logits."""
        if self._objective is None:
            raise InputError("num_classes: is not known before the first batch; give num_classes=")
        return self._objective

    def logits(self, images: Tensor, model: nn.Module | None = None) -> Tensor:
        """Return the logits of the network, or of another ``model``.

        :meth:`prepare` checks their number of classes.
        """
        logits = self.network.logits(images, model)
        self.prepare(logits.shape[1], logits.device)
        return logits

    def prepare(self, num_classes: int, device: torch.device) -> None:
        """The objective for so many classes, on the logits' device."""
        if self.num_classes not in (None, num_classes):
            raise InputError(
                f"num_classes: is {self.num_classes}, but the network's logits have {num_classes} classes"
            )
        self.num_classes = num_classes
        if self.optimizer is None:
            return
        if num_classes < 2:
            raise InputError(
                "model: one logit per element, as for yes or no, has no classes to choose from; give logits_of=lambda "
                "output: torch.cat([torch.zeros_like(output), output], 1)"
            )
        if self._objective is None:
            self._objective = self._build(num_classes=num_classes)
            self._first_objective = copy.deepcopy(self._objective.state_dict())
        self.objective.to(device)

    def start_for_good(self, logits: Tensor, counted: Tensor) -> None:
        """Start the class marginals, and keep the start for :meth:`reset`.

        Several calls add up.
        """
        self.objective.start(logits, 1, counted, further="start_sums" in self._first_objective)
        self._first_objective = copy.deepcopy(self.objective.state_dict())

    def loss(
        self,
        logits: Tensor,
        counted: Tensor,
        weights: Tensor | None = None,
        observe: bool = True,
    ) -> Tensor:
        """Return the objective's mean over the elements that count.

        Args:
            logits: (B, C) or (B, C, H, W).
            counted: bool, the logits' shape without C, with a True.
            weights: of the shape of ``counted``; they multiply values, not the divisor.
            observe: False leaves the objective's buffers as they are.
        """
        objective = self.objective.train(observe)
        if self._starts and hasattr(objective, "class_marginals") and objective.start_sums is None:
            # the loss is NaN as well, and its error says what became of the batch
            with suppress(NotFiniteError):
                objective.start(logits.detach(), 1, counted)
        if weights is None:
            loss: Tensor = objective(logits, dim=1, mask=counted, reduction=self.reduction)
            return loss
        values = objective(logits, dim=1, mask=counted, reduction="none")
        return self.weighed(values * weights, logits, counted)

    def weighed(self, values: Tensor, logits: Tensor, counted: Tensor) -> Tensor:
        """Reduce values in the same way as the objective's.

        Args:
            values: (B,) or (B, H, W), 0 where nothing counts.
            logits: the logits; ``balanced`` groups elements by their predicted classes.
            counted: bool, the elements that count.
        """
        groups = torch.zeros_like(values, dtype=torch.long)
        if self.reduction == "balanced":
            groups = logits.detach().argmax(1)
        counts = torch.bincount(groups[counted], minlength=logits.shape[1])
        each = class_weights(counts.to(sums_in(counts)), self.reduction, self.objective.balance)
        return (values * each.to(values.dtype)[groups]).sum()

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Undo what fails inside, around a batch.

        Every method takes the batch's step by this class and its checks.
        """
        before = self.state_dict()
        # the others are copies
        before |= {part: copy.deepcopy(before[part]) for part in ("optimizer", "objective")}
        try:
            with self.network.step():
                yield
        except BaseException:
            self.load_state_dict(before)
            raise

    def backward(self, loss: Tensor) -> None:
        """The gradients of a loss in place of the earlier ones; both have to be finite."""
        check_finite("the loss", loss)
        self.network.model.zero_grad()
        if loss.requires_grad:
            loss.backward()
        gradients = self.network.gradients()
        if not gradients:
            refuse_quantised(self.network.model)
            raise InputError(
                "model: what learns got no gradient; the logits are detached from it, or its parameters or a forward "
                "were replaced since the adapter was made"
            )
        check_finite("a gradient", *gradients)

    def apply(self) -> None:
        """One step of the optimiser; afterwards there are no gradients."""
        assert self.optimizer is not None
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.network.write()
        states = chain.from_iterable(each.values() for each in self.optimizer.state.values())
        moved = [*self.network.learning.values(), *filter(torch.is_tensor, states)]
        check_finite("a weight or the optimiser's state after the step", *moved)

    def descend(self, loss: Tensor) -> None:
        """Gradients of a loss, and one step of the optimiser."""
        self.backward(loss)
        self.apply()

    def reset(self) -> None:
        """Weights, objective, draws and the optimiser as they began."""
        self.network.reset()
        self._put(self._first_optimizer, self._first_objective, self._first_draws)

    def _put(self, optimizer: Any, objective: State, draws: Tensor) -> None:
        if self.optimizer is not None:
            self.optimizer.zero_grad()
            self.optimizer.load_state_dict(optimizer)
        if self._objective is not None:
            self._objective.load_state_dict(objective)
        self.generator.set_state(draws)

    def state_dict(self) -> State:
        """All that the next step depends on, without the weights that never learn."""
        return {
            "made_of": self._made_of,
            "network": self.network.state_dict(),
            "optimizer": _state(self.optimizer),
            "num_classes": self.num_classes,
            "objective": _state(self._objective),
            "first_objective": self._first_objective,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a :meth:`state_dict` of a learner made with the same arguments."""
        made_of = state.get("made_of", self._made_of)  # an older state does not say
        if made_of != self._made_of:
            raise InputError(
                f"state: is of objective and optimiser {' and '.join(made_of)}, and this adapter has "
                f"{' and '.join(self._made_of)}"
            )
        self.network.load_state_dict(state["network"])
        if state["objective"] is not None:
            self.prepare(state["num_classes"], next(self.network.model.parameters()).device)
            self._first_objective = state["first_objective"]
        objective = state["objective"] or self._first_objective
        self._put(state["optimizer"], objective, state["generator"])


def _state(part: Any) -> Any:
    return None if part is None else part.state_dict()


def _optimizer(
    network: AdaptedNetwork, optimizer: str | OptimizerBuilder, lr: float
) -> torch.optim.Optimizer | None:
    """The optimiser of the parameters that learn; None without any."""
    lr = number("lr", lr, 0.0)
    if isinstance(optimizer, str):
        known: Any = OPTIMIZERS[one_of("optimizer", optimizer, list(OPTIMIZERS))]
        optimizer = partial(known, lr=lr)
    elif isinstance(optimizer, type):
        optimizer = partial(optimizer, lr=lr)
    if not callable(optimizer):
        raise InputError(
            f"optimizer: expected one of {', '.join(OPTIMIZERS)}, or a function that makes one, such as "
            "lambda parameters: torch.optim.SGD(parameters, lr=0.01)"
        )
    if not network.weights:
        return None
    made = optimizer(network.weights.values())
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(f"optimizer: expected an optimiser of torch, got {type(made).__name__}")
    return made
