"""Episodes that a resumed run goes on with: repeated by their actions, and what an environment keeps beyond them.

Where all randomness is ``np_random``, its generator, a reset and the actions reach the same state again. What outlives
an episode (a curriculum, a generator of its own, running statistics) is put back by value: see :func:`held`.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import random
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from torch import Tensor

from dem_apps.runtime.checkpoint import fitting

#: Of an array above the first size, in bytes, that a new environment has too, or above the second, a digest is kept.
_LARGE, _LARGEST = 1 << 20, 1 << 28
_PLAIN = (bool, int, float, str, np.generic, type(None))
#: Random generators, with how their state is asked for and put back.
_GENERATORS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], None]]] = {
    np.random.Generator: (
        lambda own: own.bit_generator.state,
        lambda own, to: setattr(own.bit_generator, "state", to),
    ),
    np.random.RandomState: (
        lambda own: own.get_state(legacy=False),
        lambda own, to: own.set_state(to),
    ),
    random.Random: (lambda own: own.getstate(), lambda own, to: own.setstate(to)),
    torch.Generator: (lambda own: own.get_state(), lambda own, to: own.set_state(to)),
}
#: Code and descriptions, which no step changes.
_FIXED = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    np.dtype,
    EnvSpec,
)
_ANY = np.dtype(object)
#: Containers that change in place, and types of which one is made again where it lies inside of another.
_CHANGING = (list, set, dict, deque)
_MADE = {kind.__name__: kind for kind in (list, tuple, set, dict)}
#: What holds a value, by which key, and the value.
_Place = tuple[Any, Any, Any]


class RestorableEpisode(gym.Wrapper[Any, Any, Any, Any]):
    """Outermost wrapper that records (:meth:`episode_record`) and repeats (:meth:`restore`) the episode so far."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._monitor: Any = env  # whose clock is no state; the environment inside of it is
        self._start: dict[str, Any] = {}
        self._actions: list[Any] = []
        #: Of the large arrays as they are in a new environment; None as long as it is one.
        self._new: dict[str, str] | None = None
        #: Called once, at the latest when this object goes: a simulator ends, and files are written.
        self._close = weakref.finalize(self, env.close)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset, after noting where the randomness of this episode starts."""
        # With a seed the environment makes a new generator from it; the present one does not matter.
        generator = self.unwrapped.np_random.bit_generator.state if seed is None else None
        self._start = {"seed": seed, "options": options, "generator": generator}
        self._actions = []
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, after noting the action."""
        self._actions.append(np.asarray(action).tolist())
        return self.env.step(action)

    def close(self) -> None:
        """Close the environment, once."""
        self._close()

    def episode_record(self, digests: dict[int, str] | None = None) -> dict[str, Any]:
        """State for :meth:`restore`, as values that a checkpoint takes.

        ``digests`` are of large arrays by ``id``: one dictionary for environments that may share them.
        """
        places = held(self._monitor.env)
        found = _digests(places, {} if digests is None else digests)
        self._new = found if self._new is None else self._new
        compared = {
            path: ("digest", digest)
            for path, digest in found.items()
            if digest == self._new.get(path) or places[path][2].nbytes > _LARGEST
        }
        kept = {
            path: compared.get(path) or _kept(value)
            for path, (_, _, value) in places.items()
            if value is not held
        }
        return {
            **self._start,
            "actions": list(self._actions),
            "rewards": list(self._monitor.rewards),
            "held": kept,
        }

    def restore(self, record: dict[str, Any]) -> tuple[Any, bool]:
        """Bring the environment to the state in which :meth:`episode_record` was called.

        Returns the observation after the repeated actions, and whether all of the environment's state is known: then
        only that observation may differ. Raises InputError: a value cannot be put back.
        """
        if record["generator"] is not None:
            self.unwrapped.np_random.bit_generator.state = record["generator"]
        observation, _ = self.reset(seed=record["seed"], options=record["options"])
        for action in record["actions"]:
            # [()] turns an array without dimensions into the scalar that a Discrete space expects
            observation = self.step(np.asarray(action, dtype=self.action_space.dtype)[()])[0]
        kept, present = record["held"], held(self._monitor.env)
        self._new = _digests(present, {})
        observation = copy.deepcopy(observation)  # which may be the environment's own array
        self._monitor.rewards = list(record["rewards"])
        known = {path for path, (_, _, value) in present.items() if value is not held}
        for path, value in kept.items():
            # an attribute that an earlier episode has made is made beside its object's others
            made = (
                holder
                for other, (holder, _, _) in present.items()
                if _object(other) == _object(path) is not None
            )
            holder, key, own = (
                present[path]
                if path in known
                else (next(made, None), path.rpartition(".")[2], None)
            )
            with fitting(
                f"--resume: the environment's {path}, which outlives an episode, cannot be put back"
            ):
                if not isinstance(value, tuple) or value[0] != "digest":
                    _put_back(holder, key, own, value)
                elif self._new.get(path) != value[1]:
                    raise ValueError("it is another large array than the run had")
        return observation, len(known) == len(present)

    def statistics(self) -> list[dict[str, Any]]:
        """Running means of gymnasium's normalising wrappers inside, the outermost first."""
        return [dict(vars(moments)) for _, moments in self._normalising()]

    def use_statistics(self, statistics: list[dict[str, Any]], frozen: bool) -> None:
        """Take over what another environment's :meth:`statistics` gave; ``frozen`` ones do not move."""
        for (wrapper, moments), values in zip(self._normalising(), statistics, strict=True):
            vars(moments).update(copy.deepcopy(values))
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


def held(env: gym.Env) -> dict[str, _Place]:
    """The places of all values that an environment's objects hold, by path such as ``env.own.level``.

    Values are numbers, texts, lists and dictionaries of these, arrays, tensors and random generators; for an object of
    which nothing is known (of a compiled simulator) the value is this function.
    """
    return dict(_places("env", {"env": env}, "env", env, set()))


def _places(
    path: str, holder: Any, key: Any, value: Any, seen: set[int]
) -> Iterator[tuple[str, _Place]]:
    if isinstance(value, _FIXED):
        return
    if isinstance(value, _PLAIN):
        yield path, (holder, key, value)
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, tuple(_GENERATORS)) or _is_plain(value, outermost=True):
        yield path, (holder, key, value)
    elif (
        isinstance(value, (dict, list, tuple, deque, np.ndarray))
        and getattr(value, "dtype", _ANY) == _ANY
    ):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in np.ndenumerate(value) if isinstance(value, np.ndarray) else items:
            yield from _places(f"{path}[{name!r}]", value, name, item, seen)
    elif not hasattr(value, "__dict__") or isinstance(value, Tensor):
        yield path, (holder, key, held)
    attributes = getattr(value, "__dict__", {})
    for name in ("_np_random", "spaces") if isinstance(value, spaces.Space) else list(attributes):
        if name in attributes:
            yield from _places(f"{path}.{name}", attributes, name, attributes[name], seen)


def _is_large(value: Any) -> bool:
    return isinstance(value, (np.ndarray, Tensor)) and value.nbytes > _LARGE


def _digests(places: dict[str, _Place], known: dict[int, str]) -> dict[str, str]:
    """Of the large arrays, by path; ``known`` ones by ``id``, to which it adds."""
    large = {path: value for path, (_, _, value) in places.items() if _is_large(value)}
    for value in large.values():
        if id(value) not in known:
            known[id(value)] = hashlib.sha256(_bytes(value).data).hexdigest()
    return {path: known[id(value)] for path, value in large.items()}


def _object(path: str) -> str | None:
    """The path of the object whose attribute this is; None for an item of a container."""
    return None if path.endswith("]") else path.rpartition(".")[0]


def _is_plain(value: Any, outermost: bool = False) -> bool:
    """Whether a value, or all that a container holds at any depth, is a number, a text or an array.

    The outermost container may be of any type that changes in place, such as a Counter; a named tuple is an object.
    """
    if isinstance(value, (tuple, *_CHANGING)):
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        made = type(value) in _MADE.values() or (outermost and isinstance(value, _CHANGING))
        return made and all(map(_is_plain, parts))
    if isinstance(value, (np.ndarray, Tensor)):
        whole = (
            not value.dtype.hasobject
            if isinstance(value, np.ndarray)
            else value.layout == torch.strided
        )
        return whole and (outermost or not _is_large(value))
    return isinstance(value, _PLAIN)


def _kept(value: Any) -> Any:
    """A value in a form that a checkpoint takes: what is no number or text as a tuple of its kind and content."""
    for kind, (state, _) in _GENERATORS.items():
        if isinstance(value, kind):
            return "generator", state(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return (
            "array",
            np.lib.format.dtype_to_descr(np.asarray(value).dtype),
            value.shape,
            _bytes(value).copy(),
        )
    if isinstance(value, Tensor):
        return (
            "tensor",
            str(value.dtype).partition(".")[2],
            tuple(value.shape),
            _bytes(value).copy(),
        )
    if isinstance(value, dict):
        return type(value).__name__, [(_kept(key), _kept(item)) for key, item in value.items()]
    return (
        (type(value).__name__, [_kept(item) for item in value])
        if isinstance(value, (tuple, *_CHANGING))
        else value
    )


def _bytes(value: Any) -> np.ndarray:
    """The content of an array or tensor, which may be infinite and so is no number in a checkpoint."""
    if isinstance(value, Tensor):
        return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def _value(kept: Any, kind: str | None = None) -> Any:
    """The inverse of :func:`_kept`; a container becomes one of ``kind``, by default its own."""
    if not isinstance(kept, tuple):
        return kept
    if kept[0] in ("array", "tensor"):
        name, dtype, shape, content = kept
        made: Any
        if name == "array":
            made = np.empty(shape, np.lib.format.descr_to_dtype(dtype))
        else:
            made = torch.empty(shape, dtype=getattr(torch, dtype))
        _bytes(made)[:] = content
        return made[()]
    kind, content = kind or kept[0], kept[1]
    if kind == "dict":
        return {_value(key): _value(item) for key, item in content}
    return _MADE[kind](map(_value, content))


def _put_back(holder: Any, key: Any, present: Any, kept: Any) -> None:
    """Give a place what was kept of it; containers and generators stay the same objects, for others may hold them."""
    for kind, (_, put) in _GENERATORS.items():
        if isinstance(present, kind):
            put(present, kept[1])
            return
    if (
        isinstance(present, _CHANGING)
        and isinstance(kept, tuple)
        and kept[0] == type(present).__name__
    ):
        content = _value(kept, "dict" if isinstance(present, dict) else "list")
        present.clear()
        (present.extend if isinstance(present, (list, deque)) else present.update)(content)
        return
    value = _value(kept)
    if isinstance(present, np.ndarray) and np.shape(value) == present.shape:
        np.copyto(present, value)
    elif (
        all(isinstance(each, Tensor) for each in (present, value)) and present.shape == value.shape
    ):
        present.detach().copy_(value)
    elif (
        not isinstance(holder, tuple) or value != present
    ):  # what has not changed may be in a named tuple
        holder[key] = value
