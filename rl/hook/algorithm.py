"""The hook between the objectives and Stable-Baselines3: the entropy term of its on-policy algorithms.

They maximise ``ent_coef * mean(entropy)``, where ``entropy`` is the third value of ``policy.evaluate_actions``. A
policy that returns something else there changes the term. The objective is a submodule of the policy.
"""

from __future__ import annotations

import copyreg
import functools
import logging
import math
import re
import traceback
import warnings
from abc import ABCMeta
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, SupportsFloat, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor, nn

from dem_apps import OBJECTIVE_NAMES, EntropyObjective, build_objective
from dem_apps.errors import InputError, one_of
from rl.hook import contrib
from rl.hook.logits import Made, acting_heads, action_sizes, distributions_made
from rl.hook.terms import AdaptiveEntropy

Algorithm = TypeVar("Algorithm", bound=OnPolicyAlgorithm)

#: Terms in addition to the core's.
POLICY_TERMS: dict[str, type[EntropyObjective]] = {"adaptive-entropy": AdaptiveEntropy}
#: No entropy term, at any ``ent_coef``.
NONE = "none"
#: SB3's own entropy, untouched: the same run bit for bit.
STOCK = "entropy"

#: Messages of Python where an environment has the API of the old Gym.
_OLD_API = re.compile(r"unexpected keyword argument '(seed|options)'|unpack \(expected [25]\b")
#: Packages that call environments.
_CALLERS = ("gymnasium", "stable_baselines3", "sb3_contrib", "rl")

_log = logging.getLogger(__name__)
#: Beginning of the names of the objective's state in a policy's state dict.
STATE = "entropy_objective."


def with_entropy_objective(
    algorithm: type[Algorithm], objective: str = "adadem", **options: Any
) -> type[Algorithm]:
    """A class that is ``algorithm`` with another entropy term; use it as you would use ``algorithm``.

    Args:
        algorithm: ``stable_baselines3.PPO`` or ``A2C``, ``sb3_contrib.MaskablePPO`` or ``RecurrentPPO``, or a subclass.
        objective: a name of ``dem_apps.OBJECTIVE_NAMES`` or of :data:`POLICY_TERMS`, or ``"none"``.
            ``"entropy"`` is SB3's own term and gives SB3's own numbers, bit for bit.
        **options: options of the objective, such as ``tau`` and ``alpha`` of ``"dem"``.

    Returns:
        a subclass. Its policy aliases ("MlpPolicy", "MlpLstmPolicy", …) and any policy class of your own get the
        term, on the logits that their distribution is of. ``ent_coef`` may also be a callable of the remaining
        progress, 1 to 0. ``load`` takes zips of the plain algorithm too; the objective then starts afresh.
        It logs means over the minibatches of an update: ``train/entropy_objective`` (the term) and
        ``train/policy_entropy`` (Shannon's, in nats); also ``train/ent_coef`` and, for A2C, ``train/approx_kl``.

    Raises:
        InputError: (a ``ValueError``) another algorithm, an unknown name; when the model is made: an action space
            without logits (Box, MultiBinary), a weight that is no number; when it trains: a policy that acts by logits
            which its distribution does not have.

    Example:
        >>> from stable_baselines3 import PPO
        >>> PPOAda = with_entropy_objective(PPO, "adadem")
        >>> model = PPOAda("MlpPolicy", "CartPole-v1", ent_coef=0.1, n_steps=64, n_epochs=1, device="cpu")
        >>> bool((model.learn(64).policy.entropy_objective[0].class_marginals != 0.5).any())
        True
    """
    if not (isinstance(algorithm, type) and issubclass(algorithm, (PPO, A2C, *contrib.ALGORITHMS))):
        name = getattr(algorithm, "__name__", repr(algorithm))
        raise InputError(
            "with_entropy_objective: supports PPO and A2C of stable_baselines3, MaskablePPO and RecurrentPPO of "
            f"sb3_contrib, not {name}"
        )
    one_of("objective", objective, (*OBJECTIVE_NAMES, *POLICY_TERMS, NONE))
    if objective != NONE:
        # a wrong option is an error here, not after minutes
        build_term(objective, num_classes=2, **options)
    elif options:
        raise InputError(
            f"the entropy objective '{objective}' has no options, but got {', '.join(sorted(options))}"
        )
    return _hooked(_EntropyObjectiveAlgorithm, algorithm, objective, *sorted(options.items()))


class _Hooked(ABCMeta):
    """The type of the classes that :func:`_hooked` makes.

    No module holds these classes, so a pickle names their parts.
    """


@functools.cache
def _hooked(
    mixin: type[Any],
    base: type[Any],
    objective: str,
    *options: tuple[str, Any],
) -> type[Any]:
    """``base`` with the mixin before it; the same class for the same parts, out of a pickle too."""
    attributes = {
        "objective": objective,
        "__doc__": base.__doc__,
        "__module__": __name__,
        "__qualname__": f"{base.__qualname__}_{objective.replace('-', '_')}",
        "made_of": (mixin, base, objective, *options),
    }
    # The name stays: it is in SB3's messages, and SB3 compares a policy's. repr() shows the qualified name.
    return type(base.__name__, (base,) if issubclass(base, mixin) else (mixin, base), attributes)


def _pickled(made: type[Any]) -> Any:
    # a user's subclass of such a class has no ``made_of`` of its own and is pickled by its name
    return (_hooked, made.made_of) if "made_of" in vars(made) else made.__qualname__


copyreg.pickle(_Hooked, _pickled)


class _EntropyObjectiveAlgorithm(OnPolicyAlgorithm, metaclass=_Hooked):
    """Mixin for the algorithm: it gives the policy class its objective and logs what the policy recorded."""

    objective: ClassVar[str]
    made_of: ClassVar[tuple[Any, ...]]
    policy: EntropyObjectivePolicy  # type: ignore[assignment]

    def _setup_model(self) -> None:
        weight: Any = self.ent_coef
        if not (callable(weight) or (isinstance(weight, SupportsFloat) and math.isfinite(weight))):
            raise InputError(
                f"ent_coef: expected a number, or a function of the remaining progress, not {self.ent_coef!r}; the "
                "objective 'adaptive-entropy' adapts the weight itself"
            )
        if self.objective not in (NONE, STOCK):
            action_sizes(self.action_space)
            if not callable(self.ent_coef) and self.ent_coef == 0:
                # a line of the log and no warning: 0 is SB3's default
                _log.warning(
                    "ent_coef is 0, so the entropy objective '%s' has no effect; give it a weight: "
                    "0.1 where rewards are sparse",
                    self.objective,
                )
        _warn_if_observations_are_cut(self.get_vec_normalize_env())
        self.policy_class: type[EntropyObjectivePolicy] = policy_with_objective(
            self.policy_class, *self.made_of[2:]
        )
        super()._setup_model()

    def learn(self, *args: Any, **kwargs: Any) -> Any:
        """As in the algorithm."""
        with gymnasium_api("the environment"):
            return super().learn(*args, **kwargs)

    def train(self) -> None:
        """The algorithm's own update, then more lines in the log."""
        self.policy.entropy_totals[:] = 0
        weight = self.ent_coef  # put back after the update, so that a schedule is saved
        self.ent_coef = ent_coef = weight_now(self)
        try:
            with contrib.padding_left_out(self):
                super().train()
        finally:
            self.ent_coef = weight
        objective, entropy, count = self.policy.entropy_totals
        if count:
            self.logger.record("train/entropy_objective", objective / count)
            self.logger.record("train/policy_entropy", entropy / count)
        self.logger.record("train/ent_coef", ent_coef)
        if isinstance(self, A2C):
            self.logger.record("train/approx_kl", _kl_of_the_update(self))


@contextmanager
def gymnasium_api(where: str) -> Iterator[None]:
    """Around resets and steps: an InputError that begins with ``where`` for an environment of the old Gym.

    It is told where a library calls the environment, so the user's own mistakes keep their traceback.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        caller = frame.f_globals.get("__name__", "").partition(".")[0]
        if not _OLD_API.search(str(error)) or caller not in _CALLERS:
            raise
        raise InputError(
            f"{where}: in gymnasium's API reset(seed=…, options=…) returns (observation, info), and step() returns "
            f"(observation, reward, terminated, truncated, info); here: {error}"
        ) from error


def weight_now(model: OnPolicyAlgorithm) -> float:
    """``ent_coef`` at the model's progress; a number keeps its type, so that SB3 computes with the same one."""
    weight: Any = model.ent_coef
    # an update past the last step has a progress below 0
    return (
        float(weight(max(model._current_progress_remaining, 0.0))) if callable(weight) else weight
    )


class EntropyObjectivePolicy(BasePolicy, metaclass=_Hooked):
    """Mixin for an actor-critic policy of SB3 or sb3-contrib: the third value of ``evaluate_actions`` is the objective.

    The objective acts, and its state moves, only in training mode with gradients on; otherwise the third value is SB3's
    own entropy. Masked actions (MaskablePPO) and rows outside ``counted_rows`` (RecurrentPPO's padding) change nothing.
    """

    objective: ClassVar[str]
    made_of: ClassVar[tuple[Any, ...]]
    action_dist: Distribution

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # After super().__init__(), so that the optimiser and the initialisation of the weights leave it alone.
        sizes = [] if self.objective in (NONE, STOCK) else action_sizes(self.action_space)
        #: One objective per action dimension that has a choice.
        self.entropy_objective = nn.ModuleList(
            build_term(self.objective, num_classes=size, **dict(self.made_of[3:]))
            for size in sizes
            if size > 1
        )
        #: Sum of the objective, sum of the Shannon entropy and number of minibatches since this was last zeroed.
        self.entropy_totals = np.zeros(3)
        #: (rows,) bool, the rows of the next batch that count; None: all of them.
        self.counted_rows: Tensor | None = None
        self._made: Made = (None, None)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """As in torch. The state of a plain policy, without any of the objective, starts that afresh."""
        fresh = {name: value for name, value in self.state_dict().items() if name.startswith(STATE)}
        if strict and fresh and not fresh.keys() & state_dict.keys():
            warnings.warn(
                f"the parameters come from a model without an entropy objective, so '{self.objective}' starts afresh",
                stacklevel=2,
            )
            for objective in self.entropy_objective:
                objective.reset()  # type: ignore[operator]
            state_dict = {**state_dict, **fresh}  # the buffers themselves
        return super().load_state_dict(state_dict, strict, assign)

    def _get_action_dist_from_latent(self, *args: Any, **kwargs: Any) -> Any:
        distribution = super()._get_action_dist_from_latent(*args, **kwargs)  # type: ignore[misc]
        self._made = (None, distribution)
        return distribution

    def evaluate_actions(
        self, obs: PyTorchObs, actions: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """As in the policy's own class: values and log-probabilities of the actions, (rows,), and the entropy term.

        The term is (rows,), or a scalar, their mean, where an objective makes it and all rows count.
        """
        self._made = (None, None)
        with distributions_made(self.action_dist) as made:
            values, log_prob, entropy = super().evaluate_actions(obs, actions, *args, **kwargs)  # type: ignore[misc]
        if not (self.training and torch.is_grad_enabled()):
            return values, log_prob, entropy
        term = self._entropy_term([self._made, *made], actions, log_prob, entropy)
        if term is not None and entropy is not None:
            self.entropy_totals += (self._mean(term), self._mean(entropy), 1)
        return values, log_prob, term

    def _entropy_term(
        self,
        made: list[Made],
        actions: Tensor,
        log_prob: Tensor,
        entropy: Tensor | None,
    ) -> Tensor | None:
        if self.objective == STOCK:
            return entropy
        if self.objective == NONE:
            return torch.zeros_like(log_prob)
        heads = acting_heads(made, self.action_space, actions, log_prob)
        if heads is None:
            raise InputError(
                f"{type(self).__name__}.evaluate_actions scores the actions by logits that its distribution does not "
                f"have, so the entropy objective '{self.objective}' cannot act on them; change the logits in "
                f"_get_action_dist_from_latent, or use the objective '{STOCK}'"
            )
        # Like the entropy, the terms of dimensions add up. The mean at once, which SB3 takes anyway, is one pass.
        term = sum(
            (
                objective(head, dim=1, mask=self.counted_rows, class_mask=class_mask)
                for objective, (head, class_mask) in zip(self.entropy_objective, heads, strict=True)
            ),
            start=log_prob.new_zeros(()),
        )
        # RecurrentPPO picks the rows that count out of the term before it averages
        return term if self.counted_rows is None else term.expand_as(log_prob)

    def _mean(self, term: Tensor) -> float:
        counted = term if self.counted_rows is None else term[self.counted_rows]
        return counted.mean().item()


def policy_with_objective(policy_class: type[Any], *trained: Any) -> type[EntropyObjectivePolicy]:
    """Return the policy class with :class:`EntropyObjectivePolicy` before it.

    Args:
        policy_class: a policy's class, with an objective already if it comes from a zip.
        *trained: the objective and its options, as :func:`_hooked` takes them beside the classes.

    Raises:
        InputError: the class of a zip has another objective.
    """
    if not issubclass(policy_class, EntropyObjectivePolicy):
        return _hooked(EntropyObjectivePolicy, policy_class, *trained)  # type: ignore[arg-type]
    if policy_class.made_of[2:] != trained:
        raise InputError(
            f"the policy was saved with the objective '{policy_class.objective}' {policy_class.made_of[3:]}, but this "
            f"class trains '{trained[0]}' {trained[1:]}; load it with the class it was saved with"
        )
    return policy_class


def build_term(name: str, num_classes: int, **options: Any) -> EntropyObjective:
    """A term by name; a ValueError for an unknown name, option or value."""
    if name not in POLICY_TERMS:
        return build_objective(name, num_classes=num_classes, **options)
    return POLICY_TERMS[name](num_classes, **options)


@torch.no_grad()
def _kl_of_the_update(model: OnPolicyAlgorithm) -> float:
    """KL divergence of the updated policy from the one that acted, in nats: PPO's estimator, on the rollout."""
    buffer, policy = model.rollout_buffer, model.policy
    # by index and not through get(), which would shuffle and so draw random numbers that SB3 does not draw
    samples = buffer._get_samples(np.arange(buffer.buffer_size * buffer.n_envs))
    actions = samples.actions
    if isinstance(model.action_space, spaces.Discrete):
        actions = actions.long().flatten()
    policy.set_training_mode(False)  # as during the rollout
    log_ratio = policy.evaluate_actions(samples.observations, actions)[1] - samples.old_log_prob
    policy.set_training_mode(True)
    return (log_ratio.exp() - 1 - log_ratio).mean().item()


def _warn_if_observations_are_cut(normalised: VecNormalize | None) -> None:
    """Warn where a rollout buffer would cut normalised observations to integers (see :mod:`rl.envs.checked`)."""
    if normalised is None or not normalised.norm_obs:
        return
    space = normalised.observation_space
    if isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating):
        warnings.warn(
            f"VecNormalize hands out floats, but the observation space is declared {space.dtype}, the type in which "
            "the rollout buffer stores them: normalised values will be cut to whole numbers. Wrap each environment "
            "in gymnasium.wrappers.DtypeObservation(env, numpy.float32).",
            stacklevel=2,
        )
