"""The policy's half of the hook: a mixin whose ``evaluate_actions`` returns an objective in place of the entropy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import CategoricalDistribution, Distribution
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import Tensor, nn

from dem_apps import EntropyObjective, build_objective
from dem_apps.errors import InputError
from rl.hook.adaptive_entropy import AdaptiveEntropy
from rl.hook.complexity import Complexity
from rl.hook.contrib import class_masks

#: Terms beside those of the core.
POLICY_TERMS: dict[str, type[EntropyObjective]] = {"complexity": Complexity, "adaptive-entropy": AdaptiveEntropy}

#: No entropy term at all, whatever ``ent_coef`` says.
NONE = "none"
#: SB3's own entropy, untouched: the same run bit for bit.
STOCK = "entropy"

#: A logit at which, or below which, an action is masked; the number of sb3-contrib's MaskableCategorical.
MASKED = -1e8
#: What a policy may override to act by other logits than those of its ``action_net``.
_ACTING = (
    "forward", "evaluate_actions", "get_distribution", "_get_action_dist_from_latent", "_predict", "predict_values",
    "extract_features",
)  # fmt: skip


class EntropyObjectivePolicy(BasePolicy):
    """Mixin for an actor-critic policy of SB3 or sb3-contrib: the third value of ``evaluate_actions`` is the objective.

    The objective acts, and its state moves, only while the policy is in training mode and gradients are on;
    otherwise the third value is SB3's own entropy.

    Actions that a mask forbids (MaskablePPO) and rows that ``counted_rows`` leaves out (RecurrentPPO's padding) change
    neither the value nor the gradient nor the state.
    """

    objective: ClassVar[str]
    objective_options: ClassVar[dict[str, Any]]
    action_net: nn.Module
    action_dist: Distribution

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # After super().__init__(), so that the optimiser and the initialisation of the weights never see it.
        sizes = [] if self.objective in (NONE, STOCK) else action_sizes(self.action_space)
        #: One objective per action dimension that has a choice.
        self.entropy_objective = nn.ModuleList(
            build_term(self.objective, num_classes=size, **self.objective_options) for size in sizes if size > 1
        )
        #: Sum of the objective, sum of the Shannon entropy and number of minibatches since this was last zeroed.
        self.entropy_totals = np.zeros(3)
        #: (rows,) bool, the rows of the next batch that count; None: all of them.
        self.counted_rows: Tensor | None = None

    def evaluate_actions(
        self, obs: PyTorchObs, actions: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """As in the policy's own class: values and log-probabilities of the actions, (rows,), and the entropy term.

        The term is (rows,), or a scalar, their mean, where an objective makes it and all rows count.
        """
        with acting_logits(self.action_dist) as made_from:
            values, log_prob, entropy = super().evaluate_actions(obs, actions, *args, **kwargs)  # type: ignore[misc]
        if not (self.training and torch.is_grad_enabled()):
            return values, log_prob, entropy
        term = self._entropy_term(made_from, log_prob, entropy)
        if term is not None and entropy is not None:
            self.entropy_totals += (self._mean(term), self._mean(entropy), 1)
        return values, log_prob, term

    def _entropy_term(self, made_from: list[Tensor], log_prob: Tensor, entropy: Tensor | None) -> Tensor | None:
        if self.objective == STOCK:
            return entropy
        if self.objective == NONE:
            return torch.zeros_like(log_prob)
        if not made_from:
            raise InputError(
                f"{type(self).__name__}.evaluate_actions did not make its action_dist, on whose logits the entropy "
                f"objective '{self.objective}' acts; use a policy that does, or the objective '{STOCK}'"
            )
        sizes = action_sizes(self.action_space)
        heads = made_from[-1].reshape(-1, sum(sizes)).split(sizes, dim=1)
        choices = [
            (head, _with_impossible(head, class_mask))
            for head, class_mask in zip(heads, class_masks(self.action_dist, len(heads)), strict=True)
            if head.shape[1] > 1
        ]
        # Like the entropy, the terms of independent dimensions add up.
        # The mean at once and not a value per sample: SB3 averages the term anyway, and this takes the one-pass form.
        term = sum(
            (
                objective(head, dim=1, mask=self.counted_rows, class_mask=class_mask)
                for objective, (head, class_mask) in zip(self.entropy_objective, choices, strict=True)
            ),
            start=log_prob.new_zeros(()),
        )
        # RecurrentPPO picks the rows that count out of the term before it averages
        return term if self.counted_rows is None else term.expand_as(log_prob)

    def _mean(self, term: Tensor) -> float:
        if term.dim() == 0 or self.counted_rows is None:
            return term.mean().item()
        return term[self.counted_rows].mean().item()


@contextmanager
def acting_logits(distribution: Distribution) -> Iterator[list[Tensor]]:
    """Inside, collects the logits that a policy acts by: those that its distribution is made from, (rows, choices).

    The distribution itself keeps normalised logits only, on which CADF would be the entropy.
    """
    made_from: list[Tensor] = []
    make: Any = distribution.proba_distribution

    def make_and_note(action_logits: Tensor, *args: Any, **kwargs: Any) -> Distribution:
        made_from.append(action_logits)
        made: Distribution = make(action_logits, *args, **kwargs)
        return made

    distribution.proba_distribution = make_and_note  # type: ignore[method-assign]
    try:
        yield made_from
    finally:
        del distribution.proba_distribution


def acts_by_action_net(policy: Any) -> bool:
    """Whether the logits of :func:`acting_logits` are those of a linear ``action_net``, as in SB3's own policies."""
    if not isinstance(policy, ActorCriticPolicy):
        return False
    classes = type(policy).__mro__
    above = [kind for kind in classes[: classes.index(ActorCriticPolicy)] if kind is not EntropyObjectivePolicy]
    return (
        not any(name in vars(kind) for kind in above for name in _ACTING)
        and type(policy.action_dist) is CategoricalDistribution
        and type(policy.action_net) is nn.Linear
    )


def _with_impossible(logits: Tensor, class_mask: Tensor | None) -> Tensor | None:
    """The class mask with the actions that the policy masks by their logit: -inf, or :data:`MASKED` and below."""
    impossible = logits <= MASKED
    if not impossible.any():
        return class_mask
    return impossible if class_mask is None else class_mask | impossible


def build_term(name: str, num_classes: int, **options: Any) -> EntropyObjective:
    """A term by name.

    >>> build_term("complexity", num_classes=7)
    Complexity(num_classes=7, backend=auto)

    Raises:
        ValueError: an unknown name, option or value.
    """
    if name not in POLICY_TERMS:
        return build_objective(name, num_classes=num_classes, **options)
    return POLICY_TERMS[name](num_classes, **options)


def policy_with_objective(
    policy_class: type[Any], objective: str, options: dict[str, Any]
) -> type[EntropyObjectivePolicy]:
    """``policy_class`` with :class:`EntropyObjectivePolicy` mixed in.

    Raises:
        InputError: the class comes out of a zip file that was saved with another objective.
    """
    if issubclass(policy_class, EntropyObjectivePolicy):
        if (policy_class.objective, policy_class.objective_options) != (objective, options):
            raise InputError(
                f"the policy was saved with the objective '{policy_class.objective}' {policy_class.objective_options}, "
                f"but this class trains '{objective}' {options}; load it with the class it was saved with"
            )
        return policy_class
    # The name stays: SB3 compares it to advise against a GPU for small networks.
    attributes = {
        "objective": objective, "objective_options": options, "__doc__": policy_class.__doc__, "__module__": __name__,
    }  # fmt: skip
    return type(policy_class.__name__, (EntropyObjectivePolicy, policy_class), attributes)


def action_sizes(space: spaces.Space[Any]) -> list[int]:
    """The number of choices of each action dimension.

    Raises:
        InputError: an action space without logits over choices (Box, MultiBinary).
    """
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return [int(size) for size in space.nvec]
    raise InputError(
        f"the entropy objectives act on logits over choices: Discrete and one-dimensional MultiDiscrete action spaces "
        f"are supported, not {type(space).__name__}; with 'entropy' or 'none' any action space works"
    )
