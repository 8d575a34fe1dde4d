"""The one hook between the objectives and Stable-Baselines3: the entropy term of PPO and A2C.

Both algorithms maximise ``ent_coef * mean(entropy)``, where ``entropy`` is the third value that
``policy.evaluate_actions`` returns. A policy that returns something else there changes the term, and neither
``train()`` nor any file of SB3 has to be touched. The objective is a submodule of the policy, so its state is in
``policy.state_dict()`` and in the zip file that ``model.save`` writes.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from dem_apps import OBJECTIVE_NAMES, build_objective
from dem_apps.errors import InputError, nearest
from rl.envs import warn_if_observations_are_cut

Algorithm = TypeVar("Algorithm", bound=OnPolicyAlgorithm)

#: No entropy term at all, whatever ``ent_coef`` says.
NONE = "none"
#: SB3's own entropy, untouched: the same run bit for bit.
STOCK = "entropy"


def with_entropy_objective(algorithm: type[Algorithm], objective: str = "adadem", **options: Any) -> type[Algorithm]:
    """A class that is ``algorithm`` with another entropy term; use it as you would use ``algorithm``.

    Args:
        algorithm: ``stable_baselines3.PPO``, ``stable_baselines3.A2C`` or a subclass.
        objective: a name of ``dem_apps.OBJECTIVE_NAMES``, or ``"none"``. ``"entropy"`` is SB3's own term and gives
            SB3's own numbers, bit for bit.
        **options: options of the objective, such as ``tau`` and ``alpha`` of ``"dem"``.

    Returns:
        a subclass. Its ``"MlpPolicy"``, ``"CnnPolicy"``, ``"MultiInputPolicy"`` and any policy class of your own get
        the term. It logs ``train/entropy_objective`` (the term's value) and ``train/policy_entropy`` (Shannon
        entropy of the actions in nats, whatever is trained), both means over the minibatches of an update.

    Raises:
        InputError: (a ``ValueError``) another algorithm, an unknown name; when the model is made: an action space
            without logits (Box, MultiBinary).

    Example:
        >>> from stable_baselines3 import PPO
        >>> PPOAda = with_entropy_objective(PPO, "adadem")
        >>> model = PPOAda("MlpPolicy", "CartPole-v1", ent_coef=0.001)
    """
    if not (isinstance(algorithm, type) and issubclass(algorithm, (PPO, A2C))):
        name = getattr(algorithm, "__name__", repr(algorithm))
        raise InputError(f"with_entropy_objective: supports PPO and A2C of stable_baselines3, not {name}")
    _check_objective(objective, options)
    wrapped = issubclass(algorithm, _EntropyObjectiveAlgorithm)
    bases = (algorithm,) if wrapped else (_EntropyObjectiveAlgorithm, algorithm)
    attributes = _attributes(objective, options, algorithm)
    return type(f"{algorithm.__name__}_{objective.replace('-', '_')}", bases, attributes)


class EntropyObjectivePolicy(ActorCriticPolicy):
    """Mixin for an actor-critic policy: ``evaluate_actions`` returns the objective in place of the entropy.

    The objective acts, and its state moves, only while the policy is in training mode and gradients are on;
    otherwise the third value is SB3's own entropy.
    """

    objective: ClassVar[str]
    objective_options: ClassVar[dict[str, Any]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # After super().__init__(), so that the optimiser and the initialisation of the weights never see it.
        sizes = [] if self.objective in (NONE, STOCK) else _action_sizes(self.action_space)
        self.entropy_objective = nn.ModuleList(
            build_objective(self.objective, num_classes=size, **self.objective_options) for size in sizes
        )
        #: Sum of the objective, sum of the Shannon entropy and number of minibatches since this was last zeroed.
        self.entropy_totals = np.zeros(3)

    def evaluate_actions(
        self, obs: PyTorchObs, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """As in SB3: values and log-probabilities of the actions, one per sample, and the entropy term.

        The term is one value per sample too, or their mean where an objective makes it.
        """
        # The distribution keeps normalised logits only, on which CADF would be the entropy; so listen to the layer.
        logits: list[torch.Tensor] = []
        with self.action_net.register_forward_hook(lambda _layer, _inputs, output: logits.append(output)):
            values, log_prob, entropy = super().evaluate_actions(obs, actions)
        if not (self.training and torch.is_grad_enabled()):
            return values, log_prob, entropy
        term = self._entropy_term(logits[-1], log_prob, entropy)
        if term is not None and entropy is not None:
            self.entropy_totals += (term.mean().item(), entropy.mean().item(), 1)
        return values, log_prob, term

    def _entropy_term(
        self, logits: torch.Tensor, log_prob: torch.Tensor, entropy: torch.Tensor | None
    ) -> torch.Tensor | None:
        if self.objective == STOCK:
            return entropy
        if self.objective == NONE:
            return torch.zeros_like(log_prob)
        # One table per action dimension; like the entropy, the terms of independent dimensions add up.
        heads = logits.split(_action_sizes(self.action_space), dim=1)
        # The mean at once and not a value per sample: SB3 averages the term anyway, and this takes the one-pass form.
        terms = [objective(head, dim=1) for objective, head in zip(self.entropy_objective, heads, strict=True)]
        return torch.stack(terms).sum()


class _EntropyObjectiveAlgorithm(OnPolicyAlgorithm):
    """Mixin for the algorithm: it gives the policy class its objective and logs what the policy recorded."""

    objective: ClassVar[str]
    objective_options: ClassVar[dict[str, Any]]
    policy: EntropyObjectivePolicy

    def _setup_model(self) -> None:
        if self.objective not in (NONE, STOCK):
            _action_sizes(self.action_space)
        warn_if_observations_are_cut(self.get_vec_normalize_env())
        self.policy_class: type[EntropyObjectivePolicy] = _policy_with_objective(
            self.policy_class, self.objective, self.objective_options
        )
        super()._setup_model()

    def train(self) -> None:
        """SB3's own update, then two more lines in the log."""
        self.policy.entropy_totals[:] = 0
        super().train()
        objective, entropy, count = self.policy.entropy_totals
        if count:
            self.logger.record("train/entropy_objective", objective / count)
            self.logger.record("train/policy_entropy", entropy / count)


def _policy_with_objective(
    policy_class: type[Any], objective: str, options: dict[str, Any]
) -> type[EntropyObjectivePolicy]:
    if issubclass(policy_class, EntropyObjectivePolicy):
        # a policy class that comes out of a saved zip
        if (policy_class.objective, policy_class.objective_options) != (objective, options):
            raise InputError(
                f"the policy was saved with the objective '{policy_class.objective}' {policy_class.objective_options}, "
                f"but this class trains '{objective}' {options}; load it with the class it was saved with"
            )
        return policy_class
    attributes = _attributes(objective, options, policy_class)
    # The name stays: SB3 compares it to advise against a GPU for small networks.
    return type(policy_class.__name__, (EntropyObjectivePolicy, policy_class), attributes)


def _attributes(objective: str, options: dict[str, Any], base: type) -> dict[str, Any]:
    return {"objective": objective, "objective_options": options, "__doc__": base.__doc__, "__module__": __name__}


def _check_objective(objective: str, options: dict[str, Any]) -> None:
    known = (*OBJECTIVE_NAMES, NONE)
    if objective not in known:
        raise InputError(
            f"unknown entropy objective '{objective}'{nearest(objective, known)}; known are {', '.join(known)}"
        )
    if objective == NONE and options:
        raise InputError(f"the entropy objective '{objective}' has no options, but got {', '.join(sorted(options))}")
    if objective != NONE:
        build_objective(objective, num_classes=2, **options)  # a wrong option is an error here, not after minutes


def _action_sizes(space: spaces.Space) -> list[int]:
    """The number of choices of each action dimension."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return [int(size) for size in space.nvec]
    raise InputError(
        f"the entropy objectives act on logits over choices: Discrete and one-dimensional MultiDiscrete action spaces "
        f"are supported, not {type(space).__name__}; with 'entropy' or 'none' any action space works"
    )
