"""The one hook between the objectives and Stable-Baselines3: the entropy term of its on-policy algorithms.

PPO, A2C and sb3-contrib's MaskablePPO and RecurrentPPO maximise ``ent_coef * mean(entropy)``, where ``entropy`` is
the third value that ``policy.evaluate_actions`` returns. A policy that returns something else there changes the term
(:mod:`rl.hook.policy`), and no line of their updates has to be copied. The objective is a submodule of the
policy, so its state is in ``policy.state_dict()`` and in the zip file that ``model.save`` writes.

This package needs torch, numpy and stable-baselines3, and sb3-contrib where its algorithms are used
(:mod:`rl.hook.contrib`). ``rl.train`` is one user of it; a script of yours may be another.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.vec_env import VecNormalize

from dem_apps import OBJECTIVE_NAMES, EntropyObjective
from dem_apps.errors import InputError, nearest
from rl.hook import contrib
from rl.hook.policy import (
    NONE,
    POLICY_TERMS,
    STOCK,
    EntropyObjectivePolicy,
    action_sizes,
    build_term,
    policy_with_objective,
)

__all__ = ["NONE", "STOCK", "EntropyObjectivePolicy", "with_entropy_objective"]

Algorithm = TypeVar("Algorithm", bound=OnPolicyAlgorithm)

_log = logging.getLogger(__name__)
_STATE = "entropy_objective."


def with_entropy_objective(algorithm: type[Algorithm], objective: str = "adadem", **options: Any) -> type[Algorithm]:
    """A class that is ``algorithm`` with another entropy term; use it as you would use ``algorithm``.

    Args:
        algorithm: ``stable_baselines3.PPO`` or ``A2C``, ``sb3_contrib.MaskablePPO`` or ``RecurrentPPO``, or a subclass.
        objective: a name of ``dem_apps.OBJECTIVE_NAMES`` or of :data:`rl.hook.policy.POLICY_TERMS`, or ``"none"``.
            ``"entropy"`` is SB3's own term and gives SB3's own numbers, bit for bit.
        **options: options of the objective, such as ``tau`` and ``alpha`` of ``"dem"``.

    Returns:
        a subclass. Its policy aliases ("MlpPolicy", "MlpLstmPolicy", …) and any policy class of your own get the
        term. ``ent_coef`` may also be a schedule: a callable of the remaining progress, which falls from 1 to 0.
        ``load`` takes zip files of this class and of the plain algorithm; with the latter the objective starts afresh.

        It logs, as means over the minibatches of an update: ``train/entropy_objective`` (the term's value) and
        ``train/policy_entropy`` (Shannon entropy of the actions in nats, whatever is trained). Beside them
        ``train/ent_coef`` and, for A2C, which logs none itself, ``train/approx_kl`` of the update.

    Raises:
        InputError: (a ``ValueError``) another algorithm, an unknown name; when the model is made: an action space
            without logits (Box, MultiBinary).

    Example:
        >>> from stable_baselines3 import PPO
        >>> PPOAda = with_entropy_objective(PPO, "adadem")
        >>> model = PPOAda("MlpPolicy", "CartPole-v1", ent_coef=0.001, n_steps=64, n_epochs=1, device="cpu")
        >>> table = model.policy.entropy_objective[0].class_marginals
        >>> table
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
        >>> bool((model.learn(64).policy.entropy_objective[0].class_marginals != 0.5).any())
        True
    """
    if not (isinstance(algorithm, type) and issubclass(algorithm, (PPO, A2C, *contrib.ALGORITHMS))):
        name = getattr(algorithm, "__name__", repr(algorithm))
        raise InputError(
            "with_entropy_objective: supports PPO and A2C of stable_baselines3, MaskablePPO and RecurrentPPO of "
            f"sb3_contrib, not {name}"
        )
    _check_objective(objective, options)
    wrapped = issubclass(algorithm, _EntropyObjectiveAlgorithm)
    bases = (algorithm,) if wrapped else (_EntropyObjectiveAlgorithm, algorithm)
    attributes = {
        "objective": objective, "objective_options": options, "__doc__": algorithm.__doc__, "__module__": __name__,
        "__qualname__": f"{algorithm.__qualname__}_{objective.replace('-', '_')}",
    }  # fmt: skip
    # The name stays, since SB3's messages speak of it; repr() shows the qualified name.
    return type(algorithm.__name__, bases, attributes)


class _EntropyObjectiveAlgorithm(OnPolicyAlgorithm):
    """Mixin for the algorithm: it gives the policy class its objective and logs what the policy recorded."""

    objective: ClassVar[str]
    objective_options: ClassVar[dict[str, Any]]
    policy: EntropyObjectivePolicy  # type: ignore[assignment]

    def _setup_model(self) -> None:
        if self.objective not in (NONE, STOCK):
            action_sizes(self.action_space)
            if not callable(self.ent_coef) and self.ent_coef == 0:
                # a line of the log and no warning: SB3's default is 0, and a model of defaults is no mistake in SB3
                _log.warning(
                    "ent_coef is 0, so the entropy objective '%s' has no effect; give ent_coef=0.001 or another weight",
                    self.objective,
                )
        _warn_if_observations_are_cut(self.get_vec_normalize_env())
        self.policy_class: type[EntropyObjectivePolicy] = policy_with_objective(
            self.policy_class, self.objective, self.objective_options
        )
        super()._setup_model()

    def train(self) -> None:
        """The algorithm's own update, then more lines in the log."""
        self.policy.entropy_totals[:] = 0
        with self._ent_coef_of_now() as ent_coef, self._padding_left_out():
            super().train()
        objective, entropy, count = self.policy.entropy_totals
        if count:
            self.logger.record("train/entropy_objective", objective / count)
            self.logger.record("train/policy_entropy", entropy / count)
        self.logger.record("train/ent_coef", ent_coef)
        if isinstance(self, A2C):
            self.logger.record("train/approx_kl", _kl_of_the_update(self))

    def set_parameters(self, load_path_or_dict: Any, exact_match: bool = True, device: Any = "auto") -> None:
        """As in SB3. Parameters without any state of the objective, those of a plain model, start it afresh."""
        params = load_path_or_dict
        if not isinstance(params, dict):
            params = load_from_zip_file(load_path_or_dict, device=device, load_data=False)[1]
        if exact_match and "policy" in params:
            params = {**params, "policy": self._with_fresh_state(params["policy"])}
        super().set_parameters(params, exact_match, device)

    def _with_fresh_state(self, policy: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        state = {name: value for name, value in self.policy.state_dict().items() if name.startswith(_STATE)}
        if not state or any(name.startswith(_STATE) for name in policy):
            return policy
        warnings.warn(
            f"the parameters come from a model without an entropy objective; '{self.objective}' starts afresh",
            UserWarning,
            stacklevel=3,
        )
        for objective in self.policy.entropy_objective:
            assert isinstance(objective, EntropyObjective)
            objective.reset()
        return {**policy, **state}  # the values are the tables themselves, so they are as reset

    @contextmanager
    def _ent_coef_of_now(self) -> Iterator[float]:
        """While this lasts ``self.ent_coef`` is a number; before and after, what was given, so that it can be saved."""
        given = self.ent_coef
        # a number stays what it is, so that SB3 computes with the same type
        now = float(given(self._current_progress_remaining)) if callable(given) else given
        self.ent_coef = now
        try:
            yield now
        finally:
            self.ent_coef = given

    @contextmanager
    def _padding_left_out(self) -> Iterator[None]:
        """While this lasts the policy knows which rows of a batch are padding (RecurrentPPO's)."""
        with contrib.padding_told(self, functools.partial(setattr, self.policy, "counted_rows")):
            try:
                yield
            finally:
                self.policy.counted_rows = None


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


def _check_objective(objective: str, options: dict[str, Any]) -> None:
    known = (*OBJECTIVE_NAMES, *POLICY_TERMS, NONE)
    if objective not in known:
        raise InputError(
            f"unknown entropy objective '{objective}'{nearest(objective, known)}; known are {', '.join(known)}"
        )
    if objective == NONE and options:
        raise InputError(f"the entropy objective '{objective}' has no options, but got {', '.join(sorted(options))}")
    if objective != NONE:
        build_term(objective, num_classes=2, **options)  # a wrong option is an error here, not after minutes


def _warn_if_observations_are_cut(normalised: VecNormalize | None) -> None:
    """Warn where a rollout buffer would cut normalised observations to integers (see :mod:`rl.envs.make`)."""
    if normalised is None or not normalised.norm_obs:
        return
    dtype = normalised.observation_space.dtype
    if dtype is not None and not np.issubdtype(dtype, np.floating):
        warnings.warn(
            f"VecNormalize hands out floats, but the observation space is declared {dtype}, the type in which the "
            "rollout buffer stores them: normalised values will be cut to whole numbers. Wrap each environment in "
            "gymnasium.wrappers.DtypeObservation(env, numpy.float32).",
            stacklevel=2,
        )
