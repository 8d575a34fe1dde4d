"""A MiniGrid agent's view, equal to MiniGrid's own and some ten times faster.

MiniGrid turns the view up to four times and walks over its cells in Python. Here cells and images are looked up.
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
from minigrid.core.world_object import Wall, WorldObj
from minigrid.minigrid_env import MiniGridEnv
from minigrid.wrappers import FlatObsWrapper

#: The bytes of cells that an agent sees most often, see :func:`_cell_bytes`.
_EMPTY = bytes((OBJECT_TO_IDX["empty"], 0, 0, 1))
_WALLS = {
    color: bytes((OBJECT_TO_IDX["wall"], index, 0, 0)) for color, index in COLOR_TO_IDX.items()
}
#: The cell that lies around the grid.
_OUTSIDE = Wall()


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
            inner.gen_obs = functools.partial(_observation, inner)

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


def _observation(env: MiniGridEnv) -> dict[str, Any]:
    """The observation of ``MiniGridEnv.gen_obs``; the image is (V, V, 3) uint8, left to right, far to near."""
    size, grid = env.agent_view_size, env.grid
    if type(grid) is not Grid:
        raise TypeError(f"expected minigrid's own Grid, got {type(grid).__name__}")
    x, y = env.agent_pos
    pick = _cells_in_view(grid.width, grid.height, size, int(x), int(y), int(env.agent_dir))
    view = tuple(map(_cell_bytes, pick([*grid.grid, _OUTSIDE])))
    image = _image(view, size, env.see_through_walls, _cell_bytes(env.carrying))
    return {"image": image.copy(), "direction": env.agent_dir, "mission": env.mission}


def _cell_bytes(cell: WorldObj | None) -> bytes:
    """A cell as four bytes: kind, colour, state, and whether one sees through it."""
    if cell is None:
        return _EMPTY
    if cell.__class__ is Wall:
        return _WALLS[cell.color]
    return bytes((*cell.encode(), bool(cell.see_behind())))


@functools.lru_cache(maxsize=1 << 14)
def _image(view: tuple[bytes, ...], size: int, through: bool, carried: bytes) -> np.ndarray:
    """The image of the cells of a view, which are given row by row from far to near."""
    cells = np.frombuffer(b"".join(view), np.uint8).reshape(size, size, 4)
    image = cells[:, :, :3].copy()
    if not through:
        image[~_lit(cells[:, :, 3].tolist())] = 0
    # what the agent carries is shown where it stands
    image[-1, size // 2] = tuple(carried[:3])
    return image.transpose(1, 0, 2).copy()


def _lit(clear: list[list[int]]) -> np.ndarray:
    """Compute which cells the agent sees, (V, V) bool, from those that one sees through; rows from far to near."""
    size = len(clear)
    lit = np.zeros((size, size), bool).tolist()
    lit[-1][size // 2] = True
    # a clear cell that is lit lights the one beside it and, in the next row, both; first to the right, then to the left
    for row in range(size - 1, -1, -1):
        next_row = max(row - 1, 0)
        for step, places in ((1, range(size - 1)), (-1, range(size - 1, 0, -1))):
            for place in places:
                if lit[row][place] and clear[row][place]:
                    lit[row][place + step] = True
                    lit[next_row][place] = lit[next_row][place + step] = True
    return np.array(lit)


@functools.cache
def _cells_in_view(
    width: int, height: int, size: int, x: int, y: int, direction: int
) -> Callable[[list[WorldObj | None]], tuple[WorldObj | None, ...]]:
    """Picks the cells of the view, row by row from far to near, out of the grid's list with the outside at its end."""
    reach, left = size - 1, size - 1 - size // 2
    places = np.pad(np.arange(width * height).reshape(height, width), reach, constant_values=-1)
    around = places[y : y + reach + size, x : x + reach + size]
    view = np.rot90(around, direction + 1)[:size, left : left + size]  # the agent looks up
    return operator.itemgetter(*view.ravel().tolist())
