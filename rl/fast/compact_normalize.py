"""VecNormalize that computes only with the columns of the observations that were ever different from 0.

Most of MiniGrid's 2,835 columns are always 0. Such a column stays 0 when normalised, its weights get no gradient, and
its running variance is that of all such columns, so leaving it out changes no number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

#: Observations, rewards, ends and infos of E environments.
VecStep = tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]


class CompactNormalize(VecNormalize):
    """``VecNormalize`` over E environments with observations of K floats, the same numbers bit for bit.

    Used as any VecNormalize it takes and returns whole observations (E, K). :meth:`step_compact` returns the columns in
    use only, (E, D), which is what makes it fast; :attr:`columns` says which these are.
    """

    def __init__(self, venv: VecEnv, gamma: float) -> None:
        #: (D,) indices of the columns in use, rising.
        self.columns = np.arange(0)
        # of these columns; the variance of all others
        self._moments, self._unused_var = RunningMeanStd(), 1.0
        self._shape = venv.observation_space.shape or ()
        super().__init__(venv, gamma=gamma)

    @property
    def obs_rms(self) -> Any:
        """Running mean, variance (both (K,) float64) and count, as a copy; assign to change them."""
        running = RunningMeanStd()
        running.mean = np.zeros(self._shape)
        running.mean[self.columns] = self._moments.mean
        running.var = np.full(self._shape, self._unused_var)
        running.var[self.columns] = self._moments.var
        running.count = self._moments.count
        return running

    @obs_rms.setter
    def obs_rms(self, running: Any) -> None:
        # a column that was 0 throughout has the smallest variance that is possible after so many observations
        still = running.mean == 0
        self._unused_var = float(running.var[still].min()) if still.any() else 1.0
        self.columns = np.flatnonzero(~still | (running.var != self._unused_var))
        self._select(running)

    def use_columns(self, columns: np.ndarray) -> None:
        """Take these columns into use as well, as a resumed run must to add up in the same order."""
        running = self.obs_rms
        self.columns = np.union1d(self.columns, columns).astype(np.intp)
        self._select(running)

    def _select(self, running: RunningMeanStd) -> None:
        """Set the arrays that depend on :attr:`columns`."""
        self._moments.mean = running.mean[self.columns]
        self._moments.var = running.var[self.columns]
        self._moments.count = float(running.count)
        self._unused = np.ones(self._shape, bool)
        self._unused[self.columns] = False

    def expand(self, compact: np.ndarray) -> np.ndarray:
        """Whole normalised observations (…, K) of those in use (…, D)."""
        whole = np.zeros((*compact.shape[:-1], *self._shape), np.float32)
        whole[..., self.columns] = compact
        return whole

    def reset(self) -> np.ndarray:
        """As in VecNormalize."""
        observations = self.venv.reset()
        assert isinstance(observations, np.ndarray)
        self.old_obs = observations
        self.returns = np.zeros(self.num_envs)
        return self.expand(self._normalised(observations))

    def step_wait(self) -> VecStep:
        """As in VecNormalize."""
        observations, rewards, dones, infos = self._step_wait_compact()
        return self.expand(observations), rewards, dones, infos

    def step_compact(self, actions: np.ndarray) -> VecStep:
        """As ``step``, with the columns in use only; there may be more of them afterwards than before."""
        self.step_async(actions)
        return self._step_wait_compact()

    def _step_wait_compact(self) -> VecStep:
        observations, rewards, dones, infos = self.venv.step_wait()
        assert isinstance(observations, np.ndarray)
        self.old_obs, self.old_reward = observations, rewards
        normalised = self._normalised(observations)
        if self.training:
            self.returns = self.returns * self.gamma + rewards
            self.ret_rms.update_from_moments(*_moments(self.returns))
        rewards = self.normalize_reward(rewards)
        columns = self.columns
        for index in np.flatnonzero(dones):
            last = infos[index]["terminal_observation"]
            self._take_into_use(last[None])
            infos[index]["terminal_observation"] = self.normalize_obs(last)
        if len(columns) != len(self.columns):
            normalised = widened(normalised, columns, self.columns)
        self.returns[dones] = 0
        return normalised, rewards, dones, infos

    def _normalised(self, observations: np.ndarray) -> np.ndarray:
        """Return the columns in use, normalised; in training update the statistics first."""
        self._take_into_use(observations)
        # an index would give another order in memory
        compact = observations.take(self.columns, axis=1)
        if self.training and self.norm_obs:
            mean, var, batch = _moments(compact)
            self._unused_var = (
                self._unused_var * self._moments.count / (self._moments.count + batch)
            )
            self._moments.update_from_moments(mean, var, batch)
        return self.scaled(compact)

    def scaled(self, compact: np.ndarray) -> np.ndarray:
        """The columns in use, (N, D), normalised; the statistics stand still."""
        if not self.norm_obs:
            return compact
        scaled = compact - self._moments.mean
        scaled /= np.sqrt(self._moments.var + self.epsilon)
        return np.clip(scaled, -self.clip_obs, self.clip_obs, out=scaled).astype(np.float32)

    def unseen(self, observations: np.ndarray) -> np.ndarray:
        """Return the columns, (K,) bool, that are not in use and not 0 in these observations (N, K)."""
        unseen: np.ndarray = observations.any(axis=0) & self._unused
        return unseen

    def _take_into_use(self, observations: np.ndarray) -> None:
        new = self.unseen(observations)
        if new.any():
            self.use_columns(np.flatnonzero(new))


def widened(values: np.ndarray, columns: np.ndarray, more_columns: np.ndarray) -> np.ndarray:
    """``values`` (…, D) over ``columns``, with zeros in those of ``more_columns`` that it lacks."""
    wide = np.zeros((*values.shape[:-1], len(more_columns)), values.dtype)
    wide[..., np.searchsorted(more_columns, columns)] = values
    return wide


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Mean and variance over the first axis in the dtype of the values, as numpy has them, and the number of rows."""
    number = values.shape[0]
    mean = np.add.reduce(values, axis=0) / values.dtype.type(number)
    centred = values - mean
    centred *= centred
    return mean, np.add.reduce(centred, axis=0) / values.dtype.type(number), number
