"""Scores of a policy over whole episodes, with greedy and with sampled actions.

They differ a lot on MiniGrid, where a greedy policy can turn in circles. The figures on top (``mean_return``, …) are of
sampled actions, as the Zoo's published returns of MiniGrid are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from dem_apps.fused.numpy_objective import log_softmax
from dem_apps.runtime.progress import print_table
from rl.envs.episode import RestorableEpisode
from rl.envs.families import counts_as_success
from rl.envs.make import Wrappers, drawn_from, make_env
from rl.fast.compact_normalize import CompactNormalize
from rl.fast.network import Network, drawn, why_no_network
from rl.results.described_metrics import ACTIONS

#: Scores over episodes, see :func:`summary`.
Figures = dict[str, float | None]
#: Evaluations during training and the final one have different episodes: the best policy is chosen on the former.
DURING_TRAINING, FINAL = 1, 2
#: The kind of actions whose figures are on top and choose the best policy.
HEADLINE = "sampled"
#: Environments of an evaluation, which play at once; one that ends an episode begins the next.
SIDE_BY_SIDE = 10
#: Steps after which an episode is cut: 108,000 frames of Atari at four a step, the longest in the Zoo.
LONGEST_EPISODE = 27_000
#: An evaluated episode may be twice as long as training's longest one, up to this many steps, even
#: where the evaluation's own limit is shorter.
SHORT_EPISODE = 100


@dataclass
class Episode:
    """One episode; its seed and its actions repeat it."""

    seed: int  #: of the environment
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    #: the environment's ``is_success`` at the end; None without one
    success: float | None = None
    cut: bool = False  #: whether it was ended by :func:`play` and not by the environment
    place: int = 0  #: of its environment among those that played

    @property
    def total(self) -> float:
        """The undiscounted return."""
        return sum(self.rewards)

    @property
    def length(self) -> int:
        """Number of steps."""
        return len(self.actions)


class Acting:
    """A model's actions in raw observations, with its weights as they are when this is made: faster than SB3's.

    Actions drawn are those that SB3 draws, from torch's global generator, but for one in very many by rounding. Other
    models go through SB3's ``predict``; noise of gSDE is drawn as often as in training. The model's normalisation is
    used and not moved.
    """

    def __init__(self, model: OnPolicyAlgorithm) -> None:
        self._policy, self._envs = model.policy, model.get_vec_normalize_env()
        self._network: Network | None = None
        # of gSDE, which serves some steps
        self._noise: Any = model.policy.action_dist if model.use_sde else None
        self._steps = 0
        self._noise_steps = model.sde_sample_freq if model.sde_sample_freq > 0 else model.n_steps
        model.policy.set_training_mode(False)
        if isinstance(self._envs, CompactNormalize) and why_no_network(model) is None:
            self._network = Network(model.policy, self._envs.columns)

    def __call__(self, observations: Any, greedy: bool) -> np.ndarray:
        """Actions (N, …) for raw observations, (N, …) or a dictionary of such: the most probable ones, or drawn."""
        if self._noise is not None and not greedy:
            count = _number(observations)
            changed = len(self._noise.exploration_matrices) != count
            if changed or self._steps % self._noise_steps == 0:
                self._policy.reset_noise(count)
            self._steps += 1
        envs: Any = self._envs
        # a column that training has never seen set is normalised by SB3 like any other
        if self._network is None or envs.unseen(observations).any():
            if envs is not None:
                observations = envs.normalize_obs(observations)
            return self._policy.predict(observations, deterministic=greedy)[0]
        with torch.no_grad():
            logits = self._network.actor(envs.scaled(observations.take(envs.columns, axis=1)))
        return np.asarray(logits.argmax(axis=1)) if greedy else drawn(log_softmax(logits)[1])


def _number(observations: Any) -> int:
    """The number of environments: arrays have a row for each, and so has each array of a dictionary."""
    arrays = observations.values() if isinstance(observations, dict) else [observations]
    return len(next(iter(arrays)))


def play(
    model: OnPolicyAlgorithm,
    envs: Sequence[gym.Env],
    seeds: Sequence[int],
    greedy: bool,
    length: int = LONGEST_EPISODE,
) -> list[Episode]:
    """Play one episode per seed, each to its end; returned in the seeds' order.

    There are no more environments than seeds. Together they take ``length`` steps per episode at most, short ones
    leaving theirs to long ones; what has not ended then, or after :data:`LONGEST_EPISODE` steps, is cut. Training's
    normalisation is used and not moved. Actions that are not greedy use torch's global generator.
    """
    episodes = [Episode(seed) for seed in seeds]
    waiting = iter(episodes)
    act, budget, unended = Acting(model), length * len(seeds), len(seeds)
    # by the place of an environment that plays
    playing, observations = dict[int, Episode](), dict[int, Any]()

    def begin(place: int) -> None:
        """Let an environment begin the next episode, or rest where none is left."""
        if episode := next(waiting, None):
            episode.place, playing[place] = place, episode
            observations[place] = envs[place].reset(seed=episode.seed)[0]
        else:
            del playing[place], observations[place]

    for place in range(len(envs)):
        begin(place)
    while playing:
        actions = act(stacked([*observations.values()]), greedy)
        for (place, episode), action in zip([*playing.items()], actions, strict=True):
            observations[place], reward, terminated, truncated, info = envs[place].step(action)
            episode.actions.append(action)
            episode.rewards.append(float(reward))
            longest = min(LONGEST_EPISODE, max(budget // unended, 1))
            episode.cut = not (terminated or truncated) and episode.length >= longest
            if terminated or truncated or episode.cut:
                episode.success = info.get("is_success")
                budget, unended = budget - episode.length, unended - 1
                begin(place)
    return episodes


def stacked(observations: Sequence[Any]) -> Any:
    """Observations of several environments as one array (N, …), or a dictionary of arrays."""
    if isinstance(observations[0], dict):
        return {key: np.stack([each[key] for each in observations]) for key in observations[0]}
    return np.stack(observations)


class Evaluator:
    """Plays a fixed set of episodes, the same ones at every call, without touching anything that training uses.

    ``purpose`` is :data:`DURING_TRAINING` or :data:`FINAL`; the two have different episodes, both from the run's seed.
    """

    def __init__(
        self,
        env_id: str,
        wrapper: Wrappers,
        episodes: int,
        seed: int,
        purpose: int,
        goal: float | None = None,
        length: int = LONGEST_EPISODE,
    ) -> None:
        seeds = np.random.SeedSequence([seed, purpose]).generate_state(episodes + 1).tolist()
        self._sampling_seed, self._seeds = seeds[0], seeds[1:]
        self.env_id, self._wrapper, self._goal, self._length = env_id, wrapper, goal, length

    def __call__(
        self, model: OnPolicyAlgorithm, kinds: Sequence[str] = ACTIONS
    ) -> dict[str, Figures]:
        """Return the figures of :func:`summary`, by ``"sampled"`` and ``"greedy"`` actions."""
        return {
            actions: summary(self.episodes(model, actions == "greedy"), self.env_id, self._goal)
            for actions in kinds
        }

    def environments(
        self, model: OnPolicyAlgorithm, render_mode: str | None = None
    ) -> list[RestorableEpisode]:
        """Make new environments for :meth:`episodes` to play in.

        They are the same at every call, and have the scale that training has.
        """
        assert model.env is not None
        (statistics,) = model.env.env_method("statistics", indices=0)
        count = min(len(self._seeds), SIDE_BY_SIDE)
        with drawn_from(self._sampling_seed):
            envs = [make_env(self.env_id, self._wrapper, render_mode) for _ in range(count)]
        for env in envs:
            env.use_statistics(statistics, frozen=True)
        return envs

    def episodes(self, model: OnPolicyAlgorithm, greedy: bool) -> list[Episode]:
        """The episodes themselves; a second call with the same policy gives the same ones."""
        # episodes that end by themselves are not cut for a training of a few steps
        in_training = max((info["l"] for info in model.ep_info_buffer or ()), default=0)
        length = max(self._length, min(2 * in_training, SHORT_EPISODE))
        envs = self.environments(model)
        noise = vars(model.policy.action_dist).copy()
        with drawn_from(self._sampling_seed):
            episodes = play(model, envs, self._seeds, greedy, length)
        vars(model.policy.action_dist).update(noise)  # the training's own, of gSDE
        cut = [episode.length for episode in episodes if episode.cut]
        if cut:
            print(
                f"note: {len(cut)} of {len(episodes)} episodes of the evaluation did not end within {max(cut):,} steps "
                "and count up to there; give the environment a max_episode_steps",
                file=sys.stderr,
                flush=True,
            )
        return episodes


def summary(episodes: Sequence[Episode], env_id: str, goal: float | None = None) -> Figures:
    """Mean and standard deviation (divisor n) of the undiscounted return, success rate in 0..1, mean length.

    Success is the environment's ``is_success``, False where only other episodes have it; without any it is
    :func:`rl.envs.families.counts_as_success` of the return, and the rate is None if that cannot tell.
    """
    returns = np.array([episode.total for episode in episodes])
    if any(episode.success is not None for episode in episodes):
        successes: list[bool | None] = [bool(episode.success) for episode in episodes]
    else:
        successes = [counts_as_success(env_id, episode.total, goal) for episode in episodes]
    return {
        "mean_return": float(returns.mean()),
        "std_return": float(returns.std()),
        "success_rate": None if None in successes else float(np.mean(successes)),  # type: ignore[arg-type]
        "mean_length": float(np.mean([episode.length for episode in episodes])),
    }


def print_results(
    title: str, episodes: int, results: Sequence[dict[str, Any]], note: str = ""
) -> None:
    """Print the first result in a sentence, what it assumes, and a row per checkpoint and kind of actions.

    Args:
        title: of the table.
        episodes: number of episodes of each row.
        results: of :func:`rl.training.state.evaluate_checkpoint`.
        note: a line above the table.
    """
    rows = []
    for result, actions in product(results, ACTIONS):
        figures = result[actions]
        spread = f"{figures['mean_return']:.3f} ± {figures['std_return']:.3f}"
        rate = "–" if figures["success_rate"] is None else f"{figures['success_rate']:.0%}"
        rows.append([result["checkpoint"], f"{result['step']:,}", actions, spread, rate])
    checkpoint, step, actions, spread, rate = rows[0]
    success = "" if rate == "–" else f" (success in {rate})"
    print(f"result: {actions} return {spread} over {episodes} episodes at step {step}{success}")
    print(
        f"assumes: actions drawn from the {checkpoint} policy, as in training; ± is the standard deviation over the "
        "episodes of this one seed"
    )
    if note:
        print(note)
    print_table(
        f"{title}, {episodes} episodes",
        ["checkpoint", "step", "actions", "return", "success"],
        rows,
        left=("actions",),
    )
