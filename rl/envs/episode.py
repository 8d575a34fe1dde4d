"""Episodes that a resumed run goes on with: their actions are repeated, and what comes back is compared.

An environment comes to the same state again where its reset and ``np_random`` decide all that it draws. One that keeps
something else over a reset, such as a curriculum, does not; the digest of the present or the previous episode tells.
"""

from __future__ import annotations

import copy
import hashlib
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from rl.envs.checked import Info, Step

#: Values that a checkpoint takes, by name.
State = dict[str, Any]
#: Parts of outcomes that are kept before they move the digest.
_KEPT = 512


class _Episode:
    """The start of an episode, its actions, and a digest of every observation, reward and end."""

    def __init__(self, start: State) -> None:
        self.start = start
        self._actions: list[Any] = []
        self._type: Any = None
        self._outcomes: list[bytes] = []
        self._digest = hashlib.sha256()

    def act(self, action: Any) -> None:
        """Keep an action: numbers of Python take less memory than arrays."""
        array = np.asarray(action)
        self._type = array.dtype
        self._actions.append(array.tolist())

    def note(self, observation: Any, *ends: Any) -> None:
        """Take an outcome into the digest, perhaps later: most episodes end before anything asks for it."""
        parts = observation.values() if isinstance(observation, dict) else [observation]
        self._outcomes += [np.asarray(part).tobytes() for part in parts]
        self._outcomes.append(repr(ends).encode())
        if len(self._outcomes) > _KEPT:
            self._take()

    def record(self) -> State:
        """The episode so far, as values that a checkpoint takes."""
        self._take()
        actions = np.asarray(self._actions, self._type)
        return {**self.start, "actions": actions, "digest": self._digest.hexdigest()}

    def _take(self) -> None:
        self._digest.update(b"".join(self._outcomes))
        self._outcomes.clear()


class RestorableEpisode(gym.Wrapper[Any, Any, Any, Any]):
    """Outermost wrapper that records the episode so far and repeats it.

    :meth:`episode_records` gives the record, and :meth:`restore` repeats it.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        #: The previous episode and the present one. Of one that has just begun, there is nothing to compare.
        self._episodes: deque[_Episode] = deque(maxlen=2)
        #: Called once, at the latest when this object goes: a simulator ends, and files are written.
        self._close = weakref.finalize(self, env.close)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Info]:
        """Reset, after noting where the randomness and the running statistics of this episode start."""
        # With a seed the environment makes a new generator from it; the present one does not matter.
        bits = self._bits() if seed is None else None
        start = {"seed": seed, "options": options, "generator": bits and bits.state}
        episode = _Episode(start | {"statistics": self.statistics()})
        self._episodes.append(episode)
        observation, info = self.env.reset(seed=seed, options=options)
        episode.note(observation)
        return observation, info

    def step(self, action: Any) -> Step:
        """Step, noting the action and the outcome."""
        episode = self._episodes[-1]
        episode.act(action)
        observation, reward, terminated, truncated, info = self.env.step(action)
        episode.note(observation, reward, terminated, truncated)
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the environment, once."""
        self._close()

    def episode_records(self) -> list[State]:
        """State for :meth:`restore`, as values that a checkpoint takes."""
        return [episode.record() for episode in self._episodes]

    def restore(self, records: list[State]) -> bool:
        """Repeat the episodes of :meth:`episode_records`, and return whether all outcomes were the same."""
        return all(self._repeat(record) for record in records)

    def _repeat(self, record: State) -> bool:
        self.use_statistics(record["statistics"])
        bits = self._bits()
        if bits is not None and record["generator"] is not None:
            bits.state = record["generator"]
        self.reset(seed=record["seed"], options=record["options"])
        for action in np.asarray(record["actions"]):
            outcome = self.step(action)
            if outcome[2] or outcome[3]:  # perhaps sooner than the recorded episode
                break
        return bool(self._episodes[-1].record()["digest"] == record["digest"])

    def _bits(self) -> Any:
        """The environment's bit generator; None for numpy's older RandomState, which dm_control has."""
        return getattr(self.unwrapped.np_random, "bit_generator", None)

    def statistics(self) -> list[State]:
        """Running statistics of gymnasium's normalising wrappers inside, the outermost first."""
        return [
            {**vars(moments), "discounted": getattr(wrapper, "discounted_reward", None)}
            for wrapper, moments in self._normalising()
        ]

    def use_statistics(self, statistics: list[State], frozen: bool = False) -> None:
        """Take over the :meth:`statistics` of another environment.

        With ``frozen`` they do not move.
        """
        for (wrapper, moments), saved in zip(self._normalising(), statistics, strict=True):
            values = copy.deepcopy(saved)
            wrapper.discounted_reward = values.pop("discounted")
            vars(moments).update(values)
            wrapper.update_running_mean = not frozen

    def _normalising(self) -> Iterator[tuple[Any, Any]]:
        """The normalising wrappers with their running moments."""
        env = self.env
        while isinstance(env, gym.Wrapper):
            if isinstance(env, gym.wrappers.NormalizeObservation):
                yield env, env.obs_rms
            elif isinstance(env, gym.wrappers.NormalizeReward):
                yield env, env.return_rms
            env = env.env
