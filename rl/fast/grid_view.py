"""A MiniGrid agent's view, equal to MiniGrid's own and some ten times faster.

MiniGrid turns the view up to four times and walks over its cells in Python. Here cells, images and rows are looked up.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX
from minigrid.core.grid import Grid
from minigrid.core.world_object import Wall
from minigrid.minigrid_env import MiniGridEnv
from minigrid.wrappers import FlatObsWrapper

#: A cell as four bytes: kind, colour, state, and whether one sees through it.
_HIDDEN = bytes((OBJECT_TO_IDX["unseen"], 0, 0))
_EMPTY = bytes((OBJECT_TO_IDX["empty"], 0, 0, 1))
_WALLS = {
    color: bytes((OBJECT_TO_IDX["wall"], index, 0, 0)) for color, index in COLOR_TO_IDX.items()
}
#: The cell that lies around the grid.
_OUTSIDE = _WALLS[Wall().color]
#: Steps ahead and to the right of an agent that faces right, down, left or up.
_AHEAD = ((1, 0), (0, 1), (-1, 0), (0, -1))
_RIGHT = ((0, 1), (-1, 0), (0, -1), (1, 0))


class FlatObservation(gym.ObservationWrapper[np.ndarray, Any, dict[str, Any]]):
    """Equal to ``DtypeObservation(FlatObsWrapper(env), numpy.float32)``, and faster.

    Observations are the view, V·V·3 numbers from 0 to 255, and the mission, one-hot over 28 characters for each of its
    96 places (320 of BabyAI's sequences of instructions, which do not fit FlatObsWrapper): float32, one axis.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        places = 320 if "seq" in getattr(env.unwrapped, "instr_kinds", ()) else 96
        self._stock: Any = FlatObsWrapper(env, maxStrLen=places)
        self.observation_space = spaces.Box(0, 255, self._stock.observation_space.shape, np.float32)
        self._image_size = int(np.prod(env.observation_space["image"].shape))  # type: ignore[index]
        self._missions: dict[str, np.ndarray] = {}
        inner: Any = env.unwrapped
        views = [getattr(type(inner), name, None) for name in ("gen_obs", "gen_obs_grid")]
        if views == [MiniGridEnv.gen_obs, MiniGridEnv.gen_obs_grid]:  # no view of its own
            inner.gen_obs = functools.partial(_observation, inner, _Cells())

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        """Step with the action as Python's int, which MiniGrid compares with its names of actions several times."""
        return super().step(int(action))

    def observation(self, observation: dict[str, Any]) -> np.ndarray:
        """The flat observation."""
        mission = observation["mission"]
        if mission not in self._missions:
            self._missions[mission] = self._stock.observation(observation).astype(np.float32)
        flat = self._missions[mission].copy()
        flat[: self._image_size] = observation["image"].ravel()
        return flat


def _observation(env: MiniGridEnv, cells: _Cells) -> dict[str, Any]:
    """The observation of ``MiniGridEnv.gen_obs``; the image is (V, V, 3) uint8, left to right, far to near."""
    size, grid, through = env.agent_view_size, env.grid, env.see_through_walls
    if type(grid) is not Grid:
        raise TypeError(f"expected minigrid's own Grid, got {type(grid).__name__}")
    x, y = env.agent_pos
    pick = _cells_in_view(grid.width, grid.height, size, int(x), int(y), int(env.agent_dir))
    view = pick(cells.of(grid))
    # what the agent carries is shown where it stands
    image = _image(view, size, through, _cell_bytes(env.carrying)).copy()
    return {"image": image, "direction": env.agent_dir, "mission": env.mission}


class _Cells:
    """A grid's cells as bytes, of which only what can have changed is made anew for a view."""

    def __init__(self) -> None:
        self._objects: list[Any] = []
        self._walls: list[Wall] = []
        self._colors: list[str] = []
        self._others: list[tuple[int, Any]] = []
        self._bytes: list[bytes] = []

    def of(self, grid: Grid) -> list[bytes]:
        """The cells row by row, then the outside."""
        # most often no object has come, gone or moved; the list is compared by identity, for objects have no other
        if grid.grid != self._objects or [wall.color for wall in self._walls] != self._colors:
            self._objects = list(grid.grid)
            self._walls = [cell for cell in self._objects if cell.__class__ is Wall]
            self._colors = [wall.color for wall in self._walls]
            self._bytes = [*map(_cell_bytes, self._objects), _OUTSIDE]
            self._others = [
                (place, cell)
                for place, cell in enumerate(self._objects)
                if cell is not None and cell.__class__ is not Wall
            ]
        for place, cell in self._others:
            self._bytes[place] = _cell_bytes(cell)
        return self._bytes


@functools.lru_cache(maxsize=1 << 14)
def _image(view: tuple[bytes, ...], size: int, through: bool, carried: bytes) -> np.ndarray:
    """The image of the cells of a view, which are given row by row from far to near."""
    rows = []
    lit = (1 << size) - 1 if through else 1 << (size // 2)
    for start in range(size * (size - 1), -1, -size):  # row by row, away from the agent
        row, lit = _row(view[start : start + size], lit, through)
        rows.append(row)
        if not lit:
            rows += [_HIDDEN * size] * (size - len(rows))
            break
    rows.reverse()
    flat = np.frombuffer(b"".join(rows), dtype=np.uint8)
    image = flat.reshape(size, size, 3).transpose(1, 0, 2).copy()
    image[size // 2, size - 1] = tuple(carried[:3])
    return image


def _cell_bytes(cell: Any) -> bytes:
    if cell is None:
        return _EMPTY
    if cell.__class__ is Wall:
        return _WALLS[cell.color]
    return bytes((*cell.encode(), bool(cell.see_behind())))


@functools.lru_cache(maxsize=1 << 16)
def _row(cells: tuple[bytes, ...], lit: int, through: bool) -> tuple[bytes, int]:
    """One row of the view as three bytes per cell, and the cells of the next row that get light, see :func:`_light`."""
    clear = sum(cell[3] << place for place, cell in enumerate(cells))
    bright, ahead = (lit, lit) if through else _light(lit, clear, len(cells))
    shown = [cell[:3] if bright >> place & 1 else _HIDDEN for place, cell in enumerate(cells)]
    return b"".join(shown), ahead


@functools.cache
def _cells_in_view(
    width: int, height: int, size: int, x: int, y: int, direction: int
) -> Callable[[list[bytes]], tuple[bytes, ...]]:
    """Picks the cells of the view, row by row from far to near, out of the grid's list with the outside at its end."""
    (ahead_x, ahead_y), (right_x, right_y) = _AHEAD[direction], _RIGHT[direction]
    picked = []
    for far in range(size - 1, -1, -1):
        for side in range(-(size // 2), size - size // 2):
            i, j = x + ahead_x * far + right_x * side, y + ahead_y * far + right_y * side
            picked.append(j * width + i if 0 <= i < width and 0 <= j < height else -1)
    return operator.itemgetter(*picked)


def _light(lit: int, clear: int, size: int) -> tuple[int, int]:
    """The cells of a row that are seen, and those of the next row that get light: a bit per cell from left to right."""
    # a clear cell that is lit lights the one beside it and, in the next row, both; first to the right, then to the left
    ahead = 0
    for step, cells in ((1, range(size - 1)), (-1, range(size - 1, 0, -1))):
        for i in cells:
            if lit >> i & 1 and clear >> i & 1:
                lit |= 1 << (i + step)
                ahead |= 1 << (i + step) | 1 << i
    return lit, ahead
