"""The objective in the return: an advantage of its own, added to the task's (EAPO, arXiv 2407.18143).

The bonus in the loss is short-sighted: it moves the entropy of this state alone. Here the objective's value at each
state of a rollout is a reward e_t with a discount γ, a λ and a value head of its own. Its generalised advantage
A_t = Σ (γλ)^k (e_{t+k} + γ V(s_{t+k+1}) − V(s_{t+k})) is added to the task's with a weight τ; the task's returns, and
so its critic, stay as they are. e_t does not depend on the action at t, so this is the gradient of what follows; the
bonus in the loss, with the same weight, is the gradient of e_t itself, and ``where="both"`` is their sum.

The value head is linear in the last hidden layers of actor and critic and is fitted in closed form, so it has no
optimiser and sends no gradient into them: with τ = 0 the training is that without a term, bit for bit.

As a reward an entropy is from 0 to log A in every state and pays for long episodes, up to τ log A / (1 − γ): where
solving a task ends the episode, τ has to be small beside what that brings. AdaDEM's value is a difference, 0 where all
actions are alike, else about −Σ_a (p_a − M_ka) z_a / δ in a state with the most probable action k, where M_k is the
mean policy of such states: above 0 where the policy is less sure than it usually is with this action, below where it is
surer. Its mean is below 0 (−0.33 with three actions and Gaussian logits of deviation 2, and correlated with the entropy
by 0.88), so it is a cost of sure states that shrinks as the marginals follow. A τ that suits the entropy is of the
right order for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.utils import explained_variance
from torch import Tensor, nn

from dem_apps.errors import InputError, number, one_of

WHERE = ("loss", "return", "both")
#: Rows after which an earlier one counts half in the fit of the value head, and the ridge beside hidden units of ±1.
HALF_LIFE, RIDGE = 2048, 1e-3


class InReturn(NamedTuple):
    """Where the objective acts beside or in place of the loss, and its weight τ (None: ``ent_coef``), γ and λ."""

    where: str
    weight: float | None
    gamma: float
    gae_lambda: float

    @classmethod
    def checked(
        cls, where: str, weight: float | None, gamma: float, gae_lambda: float
    ) -> InReturn | None:
        """None for ``"loss"``; an InputError for another word, a number out of its range, or one without use."""
        one_of("where", where, WHERE)
        made = cls(
            where,
            None if weight is None else number("return_weight", weight, 0.0),
            number("return_gamma", gamma, 0.0, 1.0),
            number("return_lambda", gae_lambda, 0.0, 1.0),
        )
        if where == "loss" and weight is not None:
            raise InputError(
                "return_weight: has no effect where the objective is in the loss alone"
            )
        return None if where == "loss" else made


class ReturnValue(nn.Module):
    """The value head: ridge regression of the objective's returns on ``units`` hidden units and a constant.

    Buffers hold running means of φφᵀ and φy, so that rollouts of a few rows (A2C) are enough.
    """

    moments: Tensor
    products: Tensor

    def __init__(self, units: int) -> None:
        super().__init__()
        self.register_buffer("moments", torch.zeros(units + 1, units + 1, dtype=torch.float64))
        self.register_buffer("products", torch.zeros(units + 1, dtype=torch.float64))

    def forward(self, hidden: np.ndarray) -> np.ndarray:
        """Values (rows,) for hidden units (rows, units); 0 before the first :meth:`fit`."""
        moments, products = self.moments.cpu().numpy(), self.products.cpu().numpy()
        weights = np.linalg.solve(moments + RIDGE * np.eye(len(moments)), products)
        values: np.ndarray = _with_constant(hidden) @ weights
        return values

    def fit(self, hidden: np.ndarray, returns: np.ndarray) -> None:
        """Move towards the returns (rows,) of a rollout."""
        rows = _with_constant(hidden)
        share = 1 - 0.5 ** (len(rows) / HALF_LIFE) if self.moments.any() else 1.0
        for buffer, mean in (
            (self.moments, rows.T @ rows / len(rows)),
            (self.products, rows.T @ returns / len(rows)),
        ):
            buffer.lerp_(torch.from_numpy(mean).to(buffer), share)


def _with_constant(hidden: np.ndarray) -> np.ndarray:
    return np.concatenate([hidden, np.ones((len(hidden), 1))], axis=1, dtype=np.float64)


def generalised_advantages(
    rewards: np.ndarray,
    values: np.ndarray,
    starts: np.ndarray,
    last_values: np.ndarray,
    cut: np.ndarray,
    own: InReturn,
) -> np.ndarray:
    """GAE (T, E) of rewards and values (T, E) that are of T states of E environments.

    ``starts`` (T + 1, E) says where an episode begins, after the rollout too; ``last_values`` (E,) are of the states
    after it, and ``cut`` (T, E) of those in which a time limit ended an episode, 0 elsewhere.
    """
    advantages, following = np.zeros_like(rewards), np.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        goes_on = 1.0 - starts[t + 1]
        then = (last_values if t + 1 == len(rewards) else values[t + 1]) * goes_on + cut[t]
        following = (
            rewards[t]
            + own.gamma * then
            - values[t]
            + own.gamma * own.gae_lambda * goes_on * following
        )
        advantages[t] = following
    return advantages


def cut_off(infos: list[dict[str, Any]], dones: np.ndarray) -> Iterator[tuple[int, Any]]:
    """The environments in which a time limit has just ended an episode, each with its last observation."""
    for index in np.flatnonzero(dones):
        last = infos[index].get("terminal_observation")
        if last is not None and infos[index].get("TimeLimit.truncated", False):
            yield int(index), last


def add_advantages(model: Any, own: InReturn, weight: float) -> dict[str, float]:
    """Add the objective's advantages to those in the rollout buffer; returns what is logged.

    ``weight`` is ``ent_coef`` now. What the policy keeps moves: the value head learns the rollout's returns afterwards.
    """
    buffer, policy, head = model.rollout_buffer, model.policy, model.policy.entropy_value
    weight = weight if own.weight is None else own.weight
    steps, count = buffer.advantages.shape
    # as while the actions were taken; the objective's state stands still
    policy.set_training_mode(False)
    masks = {"action_masks": _rows(buffer.action_masks)} if hasattr(buffer, "action_masks") else {}
    rewards, hidden = rated_states(
        model, _rows(buffer.observations), _rows(buffer.actions), **masks
    )
    parts = [hidden, rated_states(model, model._last_obs)[1]]
    places = [(step, index) for step, index, _ in model.cut_off]
    if places:  # at once, for a call costs more than its rows
        parts.append(rated_states(model, stacked([last for *_, last in model.cut_off]))[1])
    values, after, ended = np.split(
        head(np.concatenate(parts)), [steps * count, (steps + 1) * count]
    )
    values, cut = values.reshape(steps, count), np.zeros((steps, count))
    for place, value in zip(places, ended, strict=True):
        cut[place] = value
    starts = np.concatenate(
        [buffer.episode_starts, np.asarray(model._last_episode_starts, float)[None]]
    )
    advantages = generalised_advantages(
        rewards.reshape(steps, count), values, starts, after, cut, own
    )
    returns = (advantages + values).ravel()
    head.fit(hidden, returns)
    if weight:
        buffer.advantages = (buffer.advantages + weight * advantages).astype(np.float32)
    return {
        "entropy_reward": float(rewards.mean()),
        "entropy_explained_variance": float(explained_variance(values.ravel(), returns)),
    }


def rated_states(
    model: Any, observations: Any, actions: np.ndarray | None = None, **masks: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The objective's value of each state, (rows,), and the last hidden units of actor and critic, (rows, units).

    Without ``actions`` (rows, dimensions) only the units count.
    """
    fast = getattr(model, "rated_fast", None)  # of FastPPO
    rated: tuple[np.ndarray, np.ndarray] | None = None if fast is None else fast(observations)
    if rated is not None:
        return rated
    policy, seen = model.policy, dict[str, Tensor]()
    given = policy.obs_to_tensor(observations)[0]
    rows = len(next(iter(given.values())) if isinstance(given, dict) else given)
    chosen = (
        np.zeros((rows, int(np.prod(model.action_space.shape))), np.float32)
        if actions is None
        else actions
    )
    # as SB3's buffer gives them
    drawn = torch.as_tensor(chosen, dtype=torch.float32, device=model.device)
    drawn = drawn.long().flatten() if isinstance(model.action_space, spaces.Discrete) else drawn
    layers = {"actor": policy.action_net, "critic": policy.value_net}
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs, name=name: seen.update({name: inputs[0]}))
        for name, layer in layers.items()
    ]
    policy.rates_states = actions is not None
    try:
        with torch.no_grad():
            term = policy.evaluate_actions(given, drawn, **masks)[2]
    finally:
        policy.rates_states = False
        for hook in hooks:
            hook.remove()
    if term is None:
        raise InputError(
            "where: the policy's distribution has no entropy in closed form, which could be rewarded"
        )
    return term.cpu().numpy(), torch.cat(
        [seen[name].flatten(1) for name in layers], dim=1
    ).cpu().numpy()


def stacked(observations: Sequence[Any]) -> Any:
    """Observations of several environments as one array (N, …), or a dictionary of arrays."""
    if isinstance(observations[0], dict):
        return {key: np.stack([each[key] for each in observations]) for key in observations[0]}
    return np.stack(observations)


def _rows(values: Any) -> Any:
    """Arrays (T, E, …) as (T·E, …); of dictionaries each."""
    if isinstance(values, dict):
        return {key: _rows(part) for key, part in values.items()}
    return values.reshape(-1, *values.shape[2:])
